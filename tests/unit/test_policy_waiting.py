"""Why a run waits: the first thing that would have to change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.group import ALL, Group, GroupKind, Pause
from oah.core.model.ids import RunId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy.waiting import Before, Cap, View, WaitCode, why

LANE = Lane("default", "shell")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
GROUPS = (GroupKind.WORKSPACE, GroupKind.PROFILE, GroupKind.ALL)


def worker(**more: Any) -> WorkerReport:
    """A live worker with a free slot."""
    report = WorkerReport(
        id=WorkerId("w.1"),
        name="w",
        host="h",
        pid=1,
        pool="default",
        profiles=("shell",),
        state=WorkerState.IDLE,
        slots=2,
        busy=1,
        parked=0,
        cordoned=False,
        draining=False,
        version="1",
        started_at=NOON,
    )
    return replace(report, **more)


FREE = View(status=RunStatus.QUEUED, lane=LANE, workers=(worker(),))
BUSY = worker(busy=2, state=WorkerState.BUSY)


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        ({"status": RunStatus.WAITING_TOOL}, WaitCode.WAITING_INPUT, {}),
        ({"deferred": True, "due_at": NOON}, WaitCode.DELAYED, {"until": NOON}),
        (
            {"deferred": True, "due_at": NOON, "retried": True, "failed_attempts": 2},
            WaitCode.RETRY_BACKOFF,
            {"until": NOON, "failed_attempts": 2},
        ),
        (
            {"holds": {HoldReason.BACKOFF: NOON, HoldReason.PAUSED: None}},
            WaitCode.SESSION_HELD,
            {"reasons": {"backoff": NOON, "paused": None}, "until": None},
        ),
        (
            {"holds": {HoldReason.BACKOFF: NOON, HoldReason.PAUSED: LATER}},
            WaitCode.SESSION_HELD,
            {"reasons": {"backoff": NOON, "paused": LATER}, "until": LATER},
        ),
        (
            {"before": Before(RunId("r"), RunStatus.RUNNING)},
            WaitCode.BEHIND_RUN,
            {"run_id": "r", "status": RunStatus.RUNNING},
        ),
        ({"broker_away": True, "workers": ()}, WaitCode.BROKER_AWAY, {}),
        ({"rebuilding": True}, WaitCode.REBUILDING, {}),
        ({"workers": ()}, WaitCode.NO_WORKER, {"lane": "default/shell", "workers": 0, "withdrawn": {}}),
        (
            {"workers": (worker(pool="other"),)},
            WaitCode.NO_WORKER,
            {"lane": "default/shell", "workers": 0, "withdrawn": {}},
        ),
        (
            {"workers": (worker(profiles=("python",)),)},
            WaitCode.NO_WORKER,
            {"lane": "default/shell", "workers": 0, "withdrawn": {}},
        ),
        (
            {"workers": (worker(state=WorkerState.STOPPING),)},
            WaitCode.NO_WORKER,
            {"lane": "default/shell", "workers": 0, "withdrawn": {}},
        ),
        (
            {"workers": (worker(cordoned=True), worker(draining=True))},
            WaitCode.NO_WORKER,
            {"lane": "default/shell", "workers": 2, "withdrawn": {}},
        ),
        ({"caps": (Cap(3, 3),)}, WaitCode.WORKSPACE_CAP, {"active": 3, "max_active_runs": 3}),
        ({"caps": (Cap(0, 0),)}, WaitCode.WORKSPACE_CAP, {"active": 0, "max_active_runs": 0}),
        ({"caps": (Cap(2, 3),)}, WaitCode.DISPATCHING, {}),
        (
            {"caps": (Cap(2, 3), Cap(4, 4, GroupKind.PROFILE), Cap(9, 9, GroupKind.ALL))},
            WaitCode.PROFILE_CAP,
            {"profile": "shell", "active": 4, "max_active_runs": 4},
        ),
        ({"caps": (Cap(9, 9, GroupKind.ALL),)}, WaitCode.GLOBAL_CAP, {"active": 9, "max_active_runs": 9}),
        (
            {"pause": Pause(Group(GroupKind.POOL, "default"), "key:1", NOON, "night")},
            WaitCode.PAUSED,
            {"kind": "pool", "name": "default", "by": "key:1", "since": NOON, "reason": "night"},
        ),
        (
            {"workers": (worker(pressure=("memory", "load")), worker(pressure=("disk",)))},
            WaitCode.PRESSURE,
            {"lane": "default/shell", "workers": 2, "resources": ["disk", "load", "memory"]},
        ),
        ({"workers": (worker(pressure=("memory",)), worker())}, WaitCode.DISPATCHING, {}),
        ({"workers": (worker(busy=2, slots_max=8),)}, WaitCode.DISPATCHING, {}),
        (
            {"workers": (worker(slots_max=8, weight=4, weights={"shell": 5}),)},
            WaitCode.NO_FREE_SLOT,
            {"workers": 1, "slots": 8, "suspect": False},
        ),
        ({"workers": (BUSY, BUSY)}, WaitCode.NO_FREE_SLOT, {"workers": 2, "slots": 4, "suspect": False}),
        ({"recovery_attempts": 1}, WaitCode.NO_FREE_SLOT, {"workers": 1, "slots": 2, "suspect": True}),
        ({"leader": False}, WaitCode.NO_LEADER, {}),
        ({}, WaitCode.DISPATCHING, {}),
    ],
)
def test_reasons(change: dict[str, Any], code: WaitCode, data: dict[str, Any]) -> None:
    reason = why(replace(FREE, **change))
    assert reason is not None
    assert (reason.code, dict(reason.data)) == (code, data)
    assert reason.message


@pytest.mark.parametrize(
    ("views", "code"),
    [
        ([{"deferred": True}, {"holds": {HoldReason.PAUSED: None}}, {"workers": ()}], WaitCode.DELAYED),
        (
            [{"holds": {HoldReason.PAUSED: None}}, {"before": Before(RunId("r"), RunStatus.QUEUED)}],
            WaitCode.SESSION_HELD,
        ),
        ([{"before": Before(RunId("r"), RunStatus.QUEUED)}, {"workers": ()}], WaitCode.BEHIND_RUN),
        ([{"workers": ()}, {"caps": (Cap(1, 1),)}], WaitCode.NO_WORKER),
        ([{"workers": (BUSY,)}, {"caps": (Cap(1, 1),)}], WaitCode.WORKSPACE_CAP),
        ([{"workers": (replace(BUSY, pressure=("load",)),)}, {"recovery_attempts": 1}], WaitCode.PRESSURE),
        ([{"workers": (BUSY,)}, {"leader": False}], WaitCode.NO_FREE_SLOT),
        ([{"pause": Pause(ALL, "key:1", NOON)}, {"broker_away": True}], WaitCode.PAUSED),
        ([{"pause": Pause(ALL, "key:1", NOON)}, {"holds": {HoldReason.PAUSED: None}}], WaitCode.SESSION_HELD),
    ],
)
def test_the_first_of_several(views: list[dict[str, Any]], code: WaitCode) -> None:
    view = FREE
    for change in views:
        view = replace(view, **change)
    reason = why(view)
    assert reason is not None and reason.code is code


@given(
    st.builds(
        View,
        status=st.sampled_from(RunStatus),
        lane=st.just(LANE),
        deferred=st.booleans(),
        due_at=st.none() | st.just(NOON),
        retried=st.booleans(),
        recovery_attempts=st.integers(0, 2),
        holds=st.dictionaries(st.sampled_from(HoldReason), st.none() | st.just(NOON)),
        before=st.none() | st.just(Before(RunId("r"), RunStatus.RUNNING)),
        pause=st.none() | st.just(Pause(ALL, "key:1", NOON)),
        caps=st.lists(st.builds(Cap, st.integers(0, 2), st.integers(0, 2), st.sampled_from(GROUPS)), max_size=3),
        workers=st.lists(st.sampled_from([worker(), BUSY, worker(cordoned=True), worker(pool="x")]), max_size=3),
        broker_away=st.booleans(),
        rebuilding=st.booleans(),
        leader=st.booleans(),
    )
)
def test_exactly_what_waits_has_a_reason(view: View) -> None:
    waits = view.status in (RunStatus.QUEUED, RunStatus.WAITING_TOOL)
    assert (why(view) is not None) == waits
