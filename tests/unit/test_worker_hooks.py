"""Hooks of a worker: which are waited for, what is told of them, and what happens when there are too many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from oah.core.model.hook import Hook, HookWhen
from oah.core.model.run import Outcome, ReadyClass, RunError, RunStatus
from oah.errors import Unavailable
from oah.ports.hooks import HookAnswer
from oah.ports.store import AfterRun, Settlement
from oah.worker import hooks as module
from oah.worker.hooks import Hooks
from oah.worker.work import Assignment, Finished
from tests.support import eventually
from tests.support.worker_doubles import Scripted, context, fence, started

FINE = HookAnswer(None, "", timedelta(0))
HUNG = HookAnswer("timeout", "did not end in time", timedelta(seconds=2), "begun\n")


class Caller:
    """Answers at once, or when it is let go on."""

    def __init__(self, answer: HookAnswer = FINE) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def call(self, hook: Hook, facts: Mapping[str, str], *, stop: Callable[[], bool] = lambda: False) -> HookAnswer:
        self.calls.append((hook.name, dict(facts)))
        assert self.go_on.wait(20)
        return self.answer


def hook(name: str, *when: HookWhen) -> Hook:
    return Hook(name=name, when=frozenset(when), command=("true",))


def worker(caller: Caller, *given: Hook, store: Any = None) -> tuple[Hooks, Assignment]:
    fenced = fence()
    store = store or Scripted(notice=[7])
    hooks = Hooks(context(store, Scripted(), hooks=lambda profile: given, hook_caller=caller))
    return hooks, Assignment(started(fenced.session_id, fenced.token), fenced, ReadyClass.INTERACTIVE)


def finished(assignment: Assignment, status: RunStatus, error: RunError | None = None) -> Finished:
    settlement = Settlement(assignment.fence, Outcome(status, error=error, exit_code=3))
    return Finished(settlement, ReadyClass.INTERACTIVE, 1.0, assignment=assignment)


def after(status: RunStatus) -> AfterRun:
    return AfterRun(applied=True, waiting=None, status=status)


def test_before_is_waited_for_and_stops_when_nobody_needs_it() -> None:
    caller = Caller()
    hooks, assignment = worker(caller, hook("a", HookWhen.BEFORE_RUN), hook("b", HookWhen.BEFORE_RUN))
    hooks.before(assignment, stop=lambda: len(caller.calls) == 1)
    assert [name for name, _ in caller.calls] == ["a"]
    facts = caller.calls[0][1]
    assert (facts["hook"], facts["hook_when"], facts["run_id"]) == ("a", "before_run", assignment.fence.run_id)


@pytest.mark.parametrize(
    ("status", "now", "expected"),
    [
        (RunStatus.COMPLETED, RunStatus.COMPLETED, {"after", "completed"}),
        (RunStatus.FAILED, RunStatus.FAILED, {"after", "failed"}),
        (RunStatus.FAILED, RunStatus.QUEUED, {"after"}),
        (RunStatus.TIMED_OUT, RunStatus.TIMED_OUT, {"after", "timed_out"}),
    ],
)
def test_an_end_is_told_once_the_run_is_over(status: RunStatus, now: RunStatus, expected: set[str]) -> None:
    caller = Caller()
    ends = (hook("completed", HookWhen.ON_COMPLETED), hook("failed", HookWhen.ON_FAILED))
    hooks, assignment = worker(
        caller, hook("after", HookWhen.AFTER_RUN), *ends, hook("timed_out", HookWhen.ON_TIMED_OUT)
    )
    hooks.over(finished(assignment, status, RunError("why", "because")), after(now))
    eventually(lambda: hooks.idle)
    assert {name for name, _ in caller.calls} == expected
    facts = next(facts for name, facts in caller.calls if name == "after")
    assert (facts["status"], facts["error_code"], facts["exit_code"]) == (status, "why", "3")
    assert facts["final"] == ("0" if now is RunStatus.QUEUED else "1")


def test_what_went_wrong_is_a_notice_and_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Scripted(notice=[Unavailable("away"), 7])
    told: list[Any] = []
    hooks, assignment = worker(Caller(HUNG), hook("h", HookWhen.BEFORE_RUN), store=store)
    hooks.happened = told.extend
    hooks.before(assignment, stop=lambda: False)
    eventually(lambda: told == [(assignment.fence.session_id, 7)])
    _, (session, run, attempt, data), _ = store.calls[-1]
    assert (session, run, attempt) == (assignment.fence.session_id, assignment.fence.run_id, assignment.fence.attempt)
    assert (data["hook"], data["when"], data["reason"], data["seconds"]) == ("h", "before_run", "timeout", 2.0)
    assert data["output"] == "begun\n"


def test_too_many_are_dropped_and_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    caller = Caller()
    caller.go_on.clear()
    hooks, assignment = worker(caller, hook("h", HookWhen.ON_CANCEL))
    for _ in range(20):
        hooks.asked_to_stop(assignment, by="somebody", reason="cancel")
    caller.go_on.set()
    eventually(lambda: hooks.idle)
    assert 3 <= len(caller.calls) <= 3 + module.THREADS
    assert caller.calls[0][1]["stopped_by"] == "somebody"


def test_a_caller_that_breaks_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Caller):
        def call(self, hook: Hook, facts: Mapping[str, str], *, stop: Any = None) -> HookAnswer:
            raise RuntimeError("a bug")

    store = Scripted(notice=[7])
    hooks, assignment = worker(Broken(), hook("h", HookWhen.BEFORE_RUN), store=store)
    hooks.before(assignment, stop=lambda: False)
    eventually(lambda: store.called("notice") == 1)


def test_without_hooks_nothing_is_called() -> None:
    caller = Caller()
    hooks, assignment = worker(caller)
    hooks.before(assignment, stop=lambda: False)
    hooks.over(finished(assignment, RunStatus.COMPLETED), after(RunStatus.COMPLETED))
    hooks.over(replace(finished(assignment, RunStatus.COMPLETED), assignment=None), after(RunStatus.COMPLETED))
    eventually(lambda: hooks.idle)
    assert caller.calls == []
