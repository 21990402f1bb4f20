"""Redis loses what it holds, or its answers, or has no room: under load with runs in every state."""

import time
from collections.abc import Iterator
from statistics import median

import pytest

from tests.support import eventually
from tests.support.load import Load
from tests.support.proxy import Loss
from tests.support.scenes import PERIOD, Scene, Stuck, play
from tests.support.servers_redis import REDIS_7, RealServer
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    with play(postgres_server, RealServer("redis7", REDIS_7), slots=25) as found:
        yield found


def test_a_flush_under_load_interrupts_nothing_and_loses_nothing(scene: Scene) -> None:
    with scene.act() as act:
        load = Load.begin(act, running=12)
        for ends in (scene.near, scene.far):
            ends.redis.delay(0.01)  # what rebuilds and what works meet more often
        took = []
        for _ in range(3):
            begun, before = time.monotonic(), scene.epoch()
            scene.server.client().flushall()
            eventually(
                lambda before=before: scene.epoch() not in (None, before),  # type: ignore[misc]
                within=15,
                every=0.02,
                what="another epoch",
            )
            took.append(round(time.monotonic() - begun, 2))
        print(f"{len(act.runs)} runs; another epoch after {took} s")
        load.end(act)


def test_an_old_snapshot_under_load_interrupts_nothing_and_loses_nothing(scene: Scene) -> None:
    """The server comes back with the right epoch and yesterday's queues."""
    with scene.act() as act:
        load = Load.begin(act, running=12, seconds=10)
        redis = scene.server.client()
        redis.save()
        before = scene.epoch()
        act.wait_terminal(load.queued[:20])
        newer = act.submit_all(act.sessions(10), "0.1") + act.submit_all(act.sessions(4), "10")
        act.wait_running(newer[10:])
        scene.server.stop()
        scene.server.start()
        assert scene.server.client().hget("oah:{0}:epoch", "id").decode() == before
        begun = time.monotonic()
        eventually(lambda: scene.epoch() not in (None, before), within=20, every=0.05, what="another epoch")
        print(f"{len(act.runs)} runs; another epoch {time.monotonic() - begun:.2f} s after the snapshot was loaded")
        load.end(act)
        act.wait_terminal(newer)
        act.untouched(newer)


def test_every_twentieth_answer_of_redis_is_lost(scene: Scene) -> None:
    """The connection breaks, or nothing comes: nothing is started twice, and nothing is leased for nobody for longer
    than two periods."""
    with scene.act() as act, Stuck(scene) as stuck:
        before = scene.commands()
        for ends in (scene.near, scene.far):
            ends.redis.lose(every=20, how=(Loss.CUT, Loss.MUTE))
        ledgers, shells = act.sessions(30), act.sessions(6, "shell")
        for _ in range(3):
            act.submit_all(ledgers, "0.2")
            act.submit_all(shells, "x=$((x + 1)); echo $x")
        begun = time.monotonic()
        more = act.sessions(20)
        for session in more:
            act.submit(session, "0.1", delay=1)
        act.wait_terminal(within=60)
        lost = scene.near.redis.lost + scene.far.redis.lost
        print(
            f"{len(act.runs)} runs in {time.monotonic() - begun:.1f} s,"
            f" {lost} of {scene.commands() - before} answers lost;"
            f" leased for nobody for {stuck.unlisted:.2f} s, nothing started for {stuck.idle:.2f} s at most"
        )
        assert lost >= 20
        assert stuck.looks > 20
        assert stuck.unlisted < 2 * PERIOD + 1.5
        assert stuck.idle < 2 * PERIOD + 1.5
        act.untouched(act.runs)


def test_every_eighth_commit_is_in_doubt(scene: Scene) -> None:
    """PostgreSQL has committed, nobody hears of it: nothing is started or settled twice, nothing is forgotten."""
    with scene.act() as act, Stuck(scene) as stuck:
        ledgers, shells = act.sessions(24), act.sessions(6, "shell")
        for ends in (scene.near, scene.far):
            ends.sql.lose(every=8, how=(Loss.CUT,))
        for _ in range(3):
            act.submit_all(ledgers, "0.2")
            act.submit_all(shells, "x=$((x + 1)); echo $x")
        begun = time.monotonic()
        for session in ledgers[:12]:
            act.submit(session, "0.1", delay=1)
        act.wait_terminal(within=60)
        lost = scene.near.sql.lost + scene.far.sql.lost
        commits = scene.near.sql.replies + scene.far.sql.replies
        print(
            f"{len(act.runs)} runs in {time.monotonic() - begun:.1f} s, {lost} of {commits} commits in doubt;"
            f" leased for nobody for {stuck.unlisted:.2f} s, nothing started for {stuck.idle:.2f} s at most"
        )
        assert lost >= 8
        assert stuck.unlisted < 2 * PERIOD + 1.5
        assert stuck.idle < 2 * PERIOD + 1.5
        rows = scene.query("SELECT count(*) FROM runs WHERE session_id = ANY(%s)", [*ledgers, *shells])
        assert rows[0][0] == len(act.runs), "a submit was accepted twice"
        act.untouched(act.runs)


def test_a_redis_without_room_stops_dispatch_and_nothing_else(scene: Scene) -> None:
    """HB13: over maxmemory nobody's lease may end; all agents finish, submits are accepted, and dispatched later."""
    with scene.act() as act:
        running = act.submit_all(act.sessions(48), "7")
        again = act.submit_all(act.sessions(2, "shell"), "sleep 6; echo done")
        act.wait_running([*running, *again], within=60)
        scene.server.client().config_set("maxmemory", "1mb")
        later, took = [], list[float]()
        for session in act.sessions(10):
            begun = time.monotonic()
            later.append(act.submit(session, "0.2"))
            took.append(time.monotonic() - begun)
        act.wait_terminal([*running, *again], within=60)
        act.untouched([*running, *again])
        assert scene.server.client().info("errorstats")["errorstat_OOM"]["count"] > 0
        assert {(row["status"], row["attempt"]) for row in act.rows(later).values()} == {("queued", 0)}
        scene.server.client().config_set("maxmemory", 0)
        freed = time.monotonic()
        act.wait_terminal(later, within=30)
        print(f"slowest submit {max(took):.3f} s; all done {time.monotonic() - freed:.2f} s after there was room")
        assert median(took) < 1
        act.untouched(later)
