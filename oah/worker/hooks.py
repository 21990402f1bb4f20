"""Hooks around the runs of a worker. They never fail a run, and hold it up for their time-out at most.

Only `before_run` is waited for; all others are called by a few threads of their own, from a bounded queue. What did not
go well becomes a `hook.notice` event of the session, what went well is only counted.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from oah.core.model.hook import Hook, HookWhen
from oah.core.model.ids import SessionId
from oah.core.model.run import Outcome, RunStatus
from oah.errors import OahError, Unavailable
from oah.ports.hooks import HookAnswer
from oah.ports.store import AfterRun
from oah.worker.context import WorkerContext
from oah.worker.work import Assignment, Finished

log = logging.getLogger(__name__)

THREADS = 4
WAITING = 256
"""Calls that wait for a thread; beyond it they are dropped, with a notice."""
NOTICES = 5
"""How often a notice is written to a store that is away, a second apart."""


class Hooks:
    """Thread safe."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(WAITING)
        self._threads = 0
        self.happened: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None
        """Told of committed events."""

    # --- moments ---

    def before(self, assignment: Assignment, *, stop: Callable[[], bool]) -> None:
        """An attempt begins: wait for its hooks, one after the other, in the slot's thread."""
        for hook in self._due(assignment, HookWhen.BEFORE_RUN):
            if stop():
                return
            facts = self._facts(assignment, HookWhen.BEFORE_RUN, hook)
            self._judge(assignment, HookWhen.BEFORE_RUN, hook, self._call(hook, facts, stop))

    def asked_to_stop(self, assignment: Assignment, *, by: str, reason: str) -> None:
        """Somebody wants the run stopped, and its agent is being told; so are these."""
        self._later(assignment, HookWhen.ON_CANCEL, {"stopped_by": by, "stop_reason": reason})

    def over(self, item: Finished, after: AfterRun) -> None:
        """An attempt is settled, and with it the run unless it is tried again."""
        assignment, outcome = item.assignment, item.settlement.outcome
        if assignment is None:
            return
        again = after.status is RunStatus.QUEUED
        facts = {**_told(outcome), "final": "0" if again else "1"}
        self._later(assignment, HookWhen.AFTER_RUN, facts)
        ended = None if again else HookWhen.at_end(outcome.status)
        if ended is not None:
            self._later(assignment, ended, facts)

    @property
    def idle(self) -> bool:
        """Whether nothing is being called or waits for it."""
        return not self._queue.unfinished_tasks

    # --- calls ---

    def _due(self, assignment: Assignment, when: HookWhen) -> list[Hook]:
        hooks = self._context.hooks(assignment.started.session.lane.profile)
        return [hook for hook in hooks if when in hook.when]

    def _later(self, assignment: Assignment, when: HookWhen, more: Mapping[str, str]) -> None:
        for hook in self._due(assignment, when):
            facts = {**self._facts(assignment, when, hook), **more}

            def act(hook: Hook = hook, facts: Mapping[str, str] = facts) -> None:
                self._judge(assignment, when, hook, self._call(hook, facts, lambda: False))

            if not self._put(act):
                log.warning("hook %s at %s is dropped: too many wait", hook.name, when)
                self._context.telemetry.count("oah_hooks_total", when=when.value, outcome="dropped")

    def _call(self, hook: Hook, facts: Mapping[str, str], stop: Callable[[], bool]) -> HookAnswer:
        try:
            return self._context.hook_caller.call(hook, facts, stop=stop)
        except Exception as error:
            log.exception("hook %s", hook.name)
            return HookAnswer("not_started", repr(error), timedelta(0))

    def _judge(self, assignment: Assignment, when: HookWhen, hook: Hook, answer: HookAnswer) -> None:
        outcome = "ok" if answer.reason is None else "timeout" if answer.reason == "timeout" else "failed"
        self._context.telemetry.count("oah_hooks_total", when=when.value, outcome=outcome)
        if answer.reason is None or answer.reason == "interrupted":
            return
        log.warning("hook %s at %s: %s (%s)", hook.name, when, answer.reason, answer.message)
        data = {
            "hook": hook.name,
            "when": when.value,
            "reason": answer.reason,
            "message": answer.message[:500],
            "seconds": round(answer.took.total_seconds(), 3),
            "output": answer.output,
        }
        if not self._put(lambda: self._notice(assignment, data)):
            log.warning("its notice is dropped: too many wait")

    def _notice(self, assignment: Assignment, data: Mapping[str, Any]) -> None:
        fence = assignment.fence
        for _ in range(NOTICES):
            try:
                number = self._context.store.notice(fence.session_id, fence.run_id, fence.attempt, data)
            except Unavailable:
                threading.Event().wait(1.0)
                continue
            except OahError as error:
                log.warning("a hook's notice is lost: %s", error)
                return
            if number:
                self.happened([(fence.session_id, number)])
            return

    def _facts(self, assignment: Assignment, when: HookWhen, hook: Hook) -> dict[str, str]:
        session, fence = assignment.started.session, assignment.fence
        return {
            "hook": hook.name,
            "hook_when": when.value,
            "run_id": fence.run_id,
            "session_id": fence.session_id,
            "workspace_id": session.workspace_id,
            "attempt": str(fence.attempt),
            "agent": session.lane.profile,
            "pool": session.lane.pool,
            "worker_id": self._context.worker_id,
        }

    # --- threads ---

    def _put(self, act: Callable[[], None]) -> bool:
        try:
            self._queue.put_nowait(act)
        except queue.Full:
            return False
        with self._lock:
            begin = self._threads < THREADS
            self._threads += begin
        if begin:
            threading.Thread(target=self._serve, name="hooks", daemon=True).start()
        return True

    def _serve(self) -> None:
        while True:
            act = self._queue.get()
            try:
                act()
            except Exception:
                log.exception("a hook's thread")
            finally:
                self._queue.task_done()


def _told(outcome: Outcome) -> dict[str, str]:
    facts = {"status": outcome.status.value}
    if outcome.exit_code is not None:
        facts["exit_code"] = str(outcome.exit_code)
    if outcome.error is not None:
        facts |= {"error_code": outcome.error.code, "error_message": outcome.error.message[:2_000]}
    return facts
