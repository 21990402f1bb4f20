"""Who goes first, and when one may go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.core.model.ids import WorkerId
from oah.core.model.scaling import Going
from oah.core.model.worker import WorkerReport, WorkerState
from oah.core.policy.shrinking import Member, Rules, may_go, order

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules(missing=timedelta(seconds=60), patience=timedelta(seconds=30))
LONG = timedelta(hours=1)


def report(name: str, *, busy: int = 0, parked: int = 0, age: int = 0, **more: Any) -> WorkerReport:
    values: dict[str, Any] = {"cordoned": False, "draining": False, **more}
    return WorkerReport(
        id=WorkerId(f"{name}.1"), name=name, host="h", pid=1, pool="p", profiles=("shell",),
        state=WorkerState.BUSY if busy else WorkerState.IDLE, slots=4, busy=busy, parked=parked, version="1",
        started_at=NOW - timedelta(seconds=age), **values,
    )  # fmt: skip


def member(name: str, **more: Any) -> Member:
    return Member(name=name, report=report(name, **more))


def going(name: str, *, chosen: timedelta = timedelta(0), removing: bool = False, **more: Any) -> Member:
    return Member(name=name, report=report(name, **more), going=Going(NOW, removing=removing), chosen=chosen)


def test_fewest_busy_then_fewest_parked_then_youngest() -> None:
    members = [
        member("busy2", busy=2),
        member("busy1", busy=1),
        member("warm", parked=3),
        member("old", age=100),
        member("young", age=1),
    ]
    assert order(members, RULES) == ["young", "old", "warm", "busy1", "busy2"]


def test_what_is_lost_already_goes_before_what_is_of_use() -> None:
    members = [
        member("busy", busy=1),
        member("idle"),
        member("out", busy=4, cordoned=True),
        going("leaves", busy=1),
        going("sure", busy=1, removing=True),
        going("stuck", busy=1, chosen=LONG),
        Member(name="sick", silent=LONG),
        Member(name="starting", silent=timedelta(seconds=59)),
    ]
    assert order(members, RULES) == ["sure", "sick", "leaves", "out", "idle", "stuck", "busy"]


def test_one_that_is_empty_is_not_stuck() -> None:
    assert order([member("idle"), going("leaves", chosen=LONG)], RULES) == ["leaves", "idle"]


@pytest.mark.parametrize(
    ("who", "owns", "works", "expected"),
    [
        (going("a", cordoned=True), False, False, True),
        (going("a", draining=True, parked=2), True, False, True),
        (going("a", cordoned=True), True, True, False),
        (going("a", cordoned=True, busy=1), True, False, False),
        (going("a"), False, False, False),
        (member("a", cordoned=True), False, False, False),
        (Member(name="a", silent=LONG, going=Going(NOW)), False, False, True),
        (Member(name="a", silent=LONG, going=Going(NOW)), True, False, False),
        (Member(name="a", silent=timedelta(seconds=59), going=Going(NOW)), False, False, False),
    ],
)
def test_only_who_is_known_to_be_empty_may_go(who: Member, owns: bool, works: bool, expected: bool) -> None:
    assert may_go(who, RULES, owns=owns, works=works) is expected
