"""The clock of the host that Redis runs on jumps."""

from collections.abc import Iterator

import pytest

from tests.support import eventually
from tests.support.false_clock import FalseClock
from tests.support.scenes import LEASE, LIFE, Scene, boottime, play
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def server() -> FalseClock:
    return FalseClock()


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer, server: FalseClock) -> Iterator[Scene]:
    with play(postgres_server, server, slots=12) as found:
        yield found


def test_a_redis_clock_that_jumps_moves_no_session_of_a_living_agent(scene: Scene, server: FalseClock) -> None:
    """HB4: a minute ahead, every lease has passed. Who has a fresh mark is left alone; a worker that cannot mark loses
    its agents first, and its sessions a lease later."""
    with scene.act() as act:
        with scene.only("worker-2"):
            fresh = act.submit_all(act.sessions(4), "20")
            act.wait_running(fresh)
        with scene.only("worker-1"):
            blind = act.submit_all(act.sessions(2), "30")
            act.wait_running(blind)
        scene.near.sql.stall()
        cut = boottime()
        eventually(lambda: boottime() > cut + LEASE + 1, within=LEASE + 5, what="its marks are older than a lease")
        assert {row["attempt"] for row in act.rows().values()} == {1}, "the other witness has kept them"
        server.shift(60)
        jumped = boottime()
        assert 59 < server.off_by() < 61
        eventually(lambda: [x for x in act.lines() if x.attempt == 2], within=40, every=0.2, what="a successor writes")
        died = max(line.at for line in act.lines() if line.run in blind and line.attempt == 1) / 1e9
        first = min(line.at for line in act.lines() if line.attempt == 2) / 1e9
        print(f"last line {died - jumped:.2f} s after the jump, first of a successor {first - jumped:.2f} s after it")
        assert died <= jumped + LIFE + 0.5
        assert first >= jumped + LEASE - 0.1
        scene.near.heal()
        for run in blind:
            act.client.cancel(run)
        act.wait_terminal(within=40)
        act.untouched(fresh)
