"""The hand on a running turn: what a slot thread hears of stops, and when silence is believed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass, StopReason
from oah.core.model.timeout import TimeoutReason
from oah.ports.store import Stop
from oah.worker.control import Control
from oah.worker.table import Entry, Phase, Table
from oah.worker.work import Assignment
from tests.support.worker_doubles import Scripted, fence, started

SECOND = timedelta(seconds=1)


class Desk:
    def __init__(self) -> None:
        self.now = 100.0
        self.marks = 0
        self.table = Table(lease=6 * SECOND, margin=SECOND)
        self.fence = fence()
        made = started(self.fence.session_id, self.fence.token)
        self.entry: Entry = self.table.started(made, self.fence.token, begun_at=90.0)
        assert self.entry.fence is not None
        self.fence = self.entry.fence
        assignment = Assignment(made, self.fence, ReadyClass.INTERACTIVE)
        self.control = Control(self.entry, assignment, Scripted(), 100, lambda: self.now, self.mark_now)

    def mark_now(self) -> None:
        self.marks += 1

    def marked(self, at: float, heard: timedelta | None = None) -> None:
        session = SessionId(self.fence.session_id)
        self.table.heard({} if heard is None else {session: heard}, begun_at=at)
        self.table.marked([(session, self.fence.token)], frozenset({session}), begun_at=at)


def test_silence_is_believed_once_a_mark_that_began_afterwards_says_so() -> None:
    desk = Desk()
    assert desk.control.idle_for(5 * SECOND) is None
    assert desk.control.idle_for(5 * SECOND) is None
    assert desk.marks == 1, "asked once"
    desk.marked(99.9)
    assert desk.control.idle_for(5 * SECOND) is None, "that mark had begun before"
    desk.marked(100.5)
    desk.now = 101.0
    assert desk.control.idle_for(6 * SECOND) == 6 * SECOND
    assert desk.control.idle_for(6 * SECOND) is None, "the next question is a new one"
    assert desk.marks == 2


def test_what_sql_has_heard_counts() -> None:
    desk = Desk()
    assert desk.control.idle_for(5 * SECOND) is None
    desk.marked(100.5, heard=2 * SECOND)
    desk.now = 101.0
    assert desk.control.idle_for(6 * SECOND) == 2.5 * SECOND
    assert desk.control.idle_for(SECOND) is None
    desk.marked(102.0, heard=30 * SECOND)
    desk.now = 102.0
    assert desk.control.idle_for(SECOND) == SECOND, "older words change nothing"


@pytest.mark.parametrize(
    ("reason", "cancel", "overdue"),
    [
        (StopReason.CANCEL, True, None),
        (StopReason.INTERRUPT, True, None),
        (StopReason.STEP_TIMEOUT, False, TimeoutReason.STEP),
        (StopReason.MODEL_TIMEOUT, False, TimeoutReason.MODEL),
        (StopReason.WAIT_TIMEOUT, False, TimeoutReason.WAIT),
    ],
)
def test_a_limit_is_no_cancel(reason: StopReason, cancel: bool, overdue: TimeoutReason | None) -> None:
    desk = Desk()
    assert (desk.control.cancel_requested(), desk.control.overdue()) == (False, None)
    stop = Stop(desk.fence, reason, "somebody")
    assert desk.table.stop(stop), "news"
    assert not desk.table.stop(stop), "and no news"
    assert (desk.control.cancel_requested(), desk.control.overdue()) == (cancel, overdue)


def test_a_stop_of_another_attempt_is_not_ours() -> None:
    desk = Desk()
    assert not desk.table.stop(Stop(fence(2), StopReason.CANCEL))
    assert desk.entry.phase is Phase.RUNNING and not desk.entry.cancel_requested
