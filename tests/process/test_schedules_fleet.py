"""Schedules across processes: three controllers, of which the leader is killed.

That their clocks may differ is shown in tests/contract/test_store_schedules.py: it is the database's that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from oah.testing.fleet import CONTROLLER, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

EVERY = timedelta(seconds=2)


def test_each_fire_time_once_with_three_controllers(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(
        workers=1,
        controllers=3,
        env={"OAH_CONTROLLER__LEADER_LEASE_SECONDS": "3", "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1"},
    )
    client = fleet.client
    session = client.create_session("noop")["id"]
    client.create_schedule("often", "*/2 * * * * *", session_id=session, run={"input": "tick"}, overlap="queue")

    def fired(count: int) -> Callable[[], bool]:
        return lambda: len([1 for each in client.schedule_firings("often") if each["run_id"]]) >= count

    eventually(fired(2), within=30, what="two fire times")
    leader = client.controller()["leader"]
    [killed] = [name for name, pid in fleet.pids.items() if name.startswith(CONTROLLER) and f"{pid}" in leader]
    fleet.kill(killed)
    before = len([1 for each in client.schedule_firings("often") if each["run_id"]])
    eventually(fired(before + 3), within=40, what="another leader goes on")
    client.update_schedule("often", paused=True)

    firings = sorted(client.schedule_firings("often"), key=lambda each: each["fire_at"])
    runs = [each for each in firings if each["run_id"]]
    assert {each["outcome"] for each in firings} <= {"submitted", "missed"}
    assert max(Counter(each["run_id"] for each in runs).values()) == 1
    assert len({each["fire_at"] for each in runs}) == len(runs) == len(client.runs(session=session))
    covered = datetime.fromisoformat(firings[0]["fire_at"])
    for each in firings:  # nothing in between: a run, or counted among those that nobody met
        assert datetime.fromisoformat(each["fire_at"]) == covered, firings
        covered += EVERY * (1 if each["run_id"] else int(each["detail"].split()[0]))
    for each in runs:
        assert client.wait(each["run_id"], timeout=30)["status"] == "completed"
