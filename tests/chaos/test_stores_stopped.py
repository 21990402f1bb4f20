"""Stores that stop, and ways to them that break: agents go on while one of the two witnesses is left."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support import eventually
from tests.support.scenes import LEASE, Act, Scene, play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    with play(postgres_server, RealServer("valkey", valkey_binary())) as found:
        yield found


def submit_meanwhile(act: Act, sessions: list[str], until: float) -> float:
    """A run a second until that moment, each accepted; how long the slowest answer took."""
    slowest, waiting = 0.0, iter(sessions)
    while time.monotonic() < until:
        begun = time.monotonic()
        act.submit(next(waiting), "0.2")
        slowest = max(slowest, time.monotonic() - begun)
        eventually(lambda begun=begun: time.monotonic() > begun + 1, within=2)  # type: ignore[misc]
    return slowest


@pytest.mark.parametrize("emptied", [False, True])
def test_redis_away_for_three_leases_kills_no_agent(scene: Scene, emptied: bool) -> None:
    """Runs settle in SQL, submits are accepted, dispatch pauses; it goes on when Redis is back, with or without what
    it held."""
    with scene.act() as act:
        short = act.submit_all(act.sessions(4), "6")
        long = act.submit_all(act.sessions(4), "25")
        conversation = act.session("shell")
        asked = act.submit(conversation, "sleep 8; echo said")
        behind = act.submit(conversation, "echo again")
        waiting = act.sessions(30)
        act.wait_running([*short, *long])
        begun = time.monotonic()
        if emptied:
            scene.server.stop()
        else:
            scene.server.signal(signal.SIGSTOP)
        slowest = submit_meanwhile(act, waiting, begun + 3 * LEASE)
        act.untouched([*short, asked])
        assert {row["status"] for row in act.rows(long).values()} == {"running"}
        back = time.monotonic()
        if emptied:
            scene.server.start()
        else:
            scene.server.signal(signal.SIGCONT)
        meanwhile = act.runs[len(short) + len(long) + 2 :]
        eventually(
            lambda: any(row["attempt"] for row in act.rows(meanwhile).values()),
            within=20,
            every=0.05,
            what="dispatch goes on",
        )
        resumed = time.monotonic() - back
        act.wait_terminal()
        act.untouched([*short, *long, asked, behind, *meanwhile])
        print(f"emptied={emptied}: slowest submit {slowest:.3f} s, dispatch resumed after {resumed:.2f} s")
        assert slowest < 1
        assert resumed < 5
