"""A run waits for its children: parked, its worker told, and on again when the last of them has ended."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import RunId, WorkerId
from oah.core.model.run import RunStatus
from oah.ports.commands import CommandKind
from oah.ports.steps import Inside, Told
from oah.ports.store import RunFence
from tests.support.store_clerk import Clerk, fence_of

W = WorkerId("w.1")
PARENT = RunId("parent")


@pytest.fixture
def family(clerk: Clerk) -> RunFence:
    """A running parent with two queued children."""
    clerk.submit("s1", PARENT)
    fence = fence_of(clerk.start())
    for name in ("a", "b"):
        clerk.session(f"s{name}")
        clerk.submit(f"s{name}", name, parent_run_id=PARENT)
    return fence


def wait(clerk: Clerk, fence: RunFence, timeout: timedelta | None = None) -> Told:
    return clerk.store.wait_run(Inside(PARENT, fence=fence, by="agent"), "child runs", timeout=timeout, children=True)


def end(clerk: Clerk, name: str) -> None:
    clerk.settle(clerk.start(f"s{name}", worker="w.2"))


def test_it_is_parked_and_its_worker_told(clerk: Clerk, family: RunFence) -> None:
    told = wait(clerk, family)
    assert told.event_number and told.run.status is RunStatus.WAITING_TOOL
    assert clerk.owner().parked
    [command] = clerk.store.take_commands(W)
    assert (command.kind, command.run_id, command.attempt, command.data) == (CommandKind.LEND, PARENT, 1, {"number": 1})
    assert wait(clerk, family).event_number == 0 and clerk.store.take_commands(W) == []
    clerk.audit()


def test_it_goes_on_when_the_last_child_has_ended(clerk: Clerk, family: RunFence) -> None:
    wait(clerk, family)
    end(clerk, "a")
    assert clerk.store.with_live_children([PARENT, RunId("a")]) == {PARENT}
    assert clerk.store.resume_answered(W, [(family, 1)]) == [None]
    end(clerk, "b")
    assert clerk.store.with_live_children([PARENT]) == set()
    [resumed] = clerk.store.resume_answered(W, [(family, 1)])
    assert resumed is not None and resumed.by == "children" and resumed.event_number
    assert clerk.run(PARENT).status is RunStatus.RUNNING and not clerk.owner().parked
    assert clerk.store.steps(PARENT)[0].outcome == "completed"
    assert clerk.settle(family).applied
    clerk.audit()


def test_without_live_children_it_does_not_wait(clerk: Clerk, family: RunFence) -> None:
    for name in ("a", "b"):
        end(clerk, name)
    told = wait(clerk, family)
    assert (told.event_number, told.run.status) == (0, RunStatus.RUNNING)
    assert clerk.store.take_commands(W) == [] and clerk.store.steps(PARENT) == []


def test_nobody_waits_for_a_child_that_begins_after_its_parents_end(clerk: Clerk, family: RunFence) -> None:
    """In the session of its parent it would wait for its parent, and its parent for it."""
    clerk.submit("s1", "later", parent_run_id=PARENT)
    wait(clerk, family)
    for name in ("a", "b"):
        end(clerk, name)
    assert clerk.store.with_live_children([PARENT]) == set()
    [resumed] = clerk.store.resume_answered(W, [(family, 1)])
    assert resumed is not None and wait(clerk, family).run.status is RunStatus.RUNNING, "and it does not wait again"
    clerk.audit()


def test_one_that_waits_no_longer_goes_on_when_it_has_a_slot(clerk: Clerk, family: RunFence) -> None:
    wait(clerk, family)
    told = clerk.store.resume_run(Inside(PARENT, fence=family, by="agent"))
    assert told.run.status is RunStatus.WAITING_TOOL, "it has none yet"
    [resumed] = clerk.store.resume_answered(W, [(family, 1)])
    assert resumed is not None and resumed.by == "agent"


def test_it_may_end_while_it_waits(clerk: Clerk, family: RunFence) -> None:
    wait(clerk, family)
    assert clerk.settle(family).applied
    assert clerk.store.resume_answered(W, [(family, 1)]) == [None]
    clerk.audit()
