"""Redis loses what it holds, or its answers, or has no room: under load with runs in every state."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support import eventually
from tests.support.proxy import Loss
from tests.support.scenes import PERIOD, Act, Scene, Stuck, play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    with play(postgres_server, RealServer("valkey", valkey_binary()), slots=25) as found:
        yield found


@dataclass
class Load:
    """Some 200 runs in every state that there is."""

    running: list[str]
    queued: list[str]
    delayed: list[str]
    paused: list[str]
    parked: list[str]
    """Sessions with a warm agent and nothing to do."""
    held: list[str]
    """The sessions of ``paused``."""

    @staticmethod
    def begin(act: Act, slots: int) -> "Load":
        parked = act.sessions(8, "shell")
        act.wait_terminal(act.submit_all(parked, "x=kept; echo ready"))
        held = act.sessions(10)
        for session in held:
            act.client.pause_session(session)
        paused = [*act.submit_all(held, "0.1"), *act.submit_all(held, "0.1")]
        running = act.submit_all(act.sessions(slots), "9")
        act.wait_running(running)
        behind = act.sessions(40)
        queued = [run for _ in range(3) for run in act.submit_all(behind, "0.05")]
        delayed = act.submit_all(act.sessions(15), "0.1", delay_seconds=4)
        delayed += act.submit_all(behind[:15], "0.1", delay_seconds=5)
        return Load(running, queued, delayed, paused, parked, held)

    def end(self, act: Act) -> None:
        """All that may run ends; the paused ones have not moved, and run once they may."""
        again = act.submit_all(self.parked, "echo $x")
        act.wait_terminal([*self.running, *self.queued, *self.delayed, *again])
        rows = act.rows(self.paused)
        assert {(row["status"], row["attempt"]) for row in rows.values()} == {("queued", 0)}, "ran while paused"
        for session in self.held:
            act.client.resume_session(session)
        act.wait_terminal(self.paused)
        act.untouched([*self.running, *self.queued, *self.delayed, *self.paused, *again])
        kept = [act.client.result(run)["output"] for run in again]
        assert all("kept" in output for output in kept), f"warm agents were lost: {kept}"


def test_a_flush_under_load_interrupts_nothing_and_loses_nothing(scene: Scene) -> None:
    with scene.act() as act:
        load = Load.begin(act, 12)
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


def test_every_twentieth_answer_of_redis_is_lost(scene: Scene) -> None:
    """The connection breaks, or nothing comes: nothing is started twice, and nothing is leased for nobody for longer
    than two periods."""
    with scene.act() as act, Stuck(scene) as stuck:
        for ends in (scene.near, scene.far):
            ends.redis.lose(every=20, how=(Loss.CUT, Loss.MUTE))
        ledgers, shells = act.sessions(40), act.sessions(6, "shell")
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
            f"{len(act.runs)} runs in {time.monotonic() - begun:.1f} s, {lost} answers of {scene.commands()} lost;"
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
        ledgers, shells = act.sessions(40), act.sessions(6, "shell")
        for ends in (scene.near, scene.far):
            ends.sql.lose(every=8, how=(Loss.CUT,))
        for _ in range(3):
            act.submit_all(ledgers, "0.2")
            act.submit_all(shells, "x=$((x + 1)); echo $x")
        begun = time.monotonic()
        for session in ledgers[:20]:
            act.submit(session, "0.1", delay=1)
        act.wait_terminal(within=60)
        lost = scene.near.sql.lost + scene.far.sql.lost
        commits = scene.near.sql.replies + scene.far.sql.replies
        print(
            f"{len(act.runs)} runs in {time.monotonic() - begun:.1f} s, {lost} of {commits} commits in doubt;"
            f" leased for nobody for {stuck.unlisted:.2f} s, nothing started for {stuck.idle:.2f} s at most"
        )
        assert lost >= 10
        assert stuck.unlisted < 2 * PERIOD + 1.5
        assert stuck.idle < 2 * PERIOD + 1.5
        rows = scene.query("SELECT count(*) FROM runs WHERE session_id = ANY(%s)", [*ledgers, *shells])
        assert rows[0][0] == len(act.runs), "a submit was accepted twice"
        act.untouched(act.runs)
