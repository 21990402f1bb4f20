"""Runs that wait for an answer: parked with their agents, without a slot, for as long as it takes.

Nothing here is evicted: such a run ends by its answer, by somebody who does not want it any more, by a limit, or with
its worker. A pass looks for answers in SQL and has the sessions called (class ``resume``), again and again until they
are claimed, so that whatever the broker has forgotten comes back. What is to end does so in a thread of its own: it
needs no slot.

Somebody may have answered at the terminal, or the program itself (a countdown): then the question has left the screen,
and that is written down as its answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from oah.core.model.ids import SessionId
from oah.core.model.run import ReadyClass
from oah.errors import Conflict, LeaseError, NotFound
from oah.ports.broker import Ensure
from oah.ports.questions import TERMINAL
from oah.ports.steps import Inside
from oah.worker.context import WorkerContext
from oah.worker.table import Table
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

CALL_AGAIN = 1.0
"""Seconds after which a session with an answer that nobody has claimed is called once more."""


class Waiting:
    """Thread safe. ``__call__`` is one pass of its loop."""

    def __init__(self, context: WorkerContext, table: Table) -> None:
        self._context = context
        self._table = table
        self._lock = threading.Lock()
        self._waiting: dict[SessionId, Assignment] = {}
        self._ending: dict[SessionId, Assignment] = {}
        self._lent: dict[SessionId, Assignment] = {}
        """Those that wait for their children: their turns go on, in threads that hold no slot."""
        self._called: dict[SessionId, float] = {}
        self._gone: set[SessionId] = set()
        """Whose question was not on the screen in the last pass: once may be the middle of a repaint."""
        self.finish: Callable[[Assignment], None] = lambda assignment: None
        """Ends a turn that waits; called in a thread of its own."""
        self.called: Callable[[], None] = lambda: None
        """Told when a session of ours was called."""

    # --- who waits ---

    def put(self, assignment: Assignment) -> None:
        """Its question is in SQL."""
        with self._lock:
            self._waiting[assignment.fence.session_id] = assignment

    def lend(self, assignment: Assignment) -> None:
        """It waits for its children, and its turn for it."""
        with self._lock:
            self._lent[assignment.fence.session_id] = assignment

    def forget(self, assignment: Assignment) -> None:
        """The turn of one that waits for its children is over."""
        with self._lock:
            if self._lent.get(assignment.fence.session_id) is assignment:
                del self._lent[assignment.fence.session_id]
                self._called.pop(assignment.fence.session_id, None)

    def has_lent(self, session_id: SessionId) -> bool:
        """Whether its run waits for its children."""
        with self._lock:
            return session_id in self._lent

    def take(self, session_id: SessionId) -> Assignment | None:
        """To go on in a slot; None: it is being ended."""
        with self._lock:
            self._called.pop(session_id, None)
            self._gone.discard(session_id)
            return self._waiting.pop(session_id, None) or self._lent.pop(session_id, None)

    def question(self, session_id: SessionId) -> int:
        """The number of its question; 0: it does not wait here."""
        with self._lock:
            assignment, lent = self._waiting.get(session_id), self._lent.get(session_id)
        if lent is not None:
            return lent.lent or 0
        waited = None if assignment is None else assignment.waited
        return 0 if waited is None else waited.number

    def all(self) -> list[Assignment]:
        """Those that wait, and those that are being ended."""
        with self._lock:
            return [*self._waiting.values(), *self._ending.values()]

    @property
    def answered(self) -> int:
        """How many have an answer and are called for it."""
        with self._lock:
            return len(self._called)

    def answered_profiles(self) -> list[str]:
        """Of each of those."""
        with self._lock:
            called = [self._waiting.get(each) or self._lent.get(each) for each in self._called]
        return [each.started.session.lane.profile for each in called if each is not None]

    @property
    def lent(self) -> int:
        """How many wait for their children."""
        with self._lock:
            return len(self._lent)

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._ending) + len(self._lent)

    # --- the pass ---

    def __call__(self) -> None:
        """Raises Unavailable: the loop tries again."""
        with self._lock:
            waiting, lent = list(self._waiting.values()), list(self._lent.values())
        self._context.telemetry.gauge("oah_worker_waiting", len(waiting) + len(lent))
        for assignment in waiting:
            if self._is_to_end(assignment):
                self.end(assignment)
            elif self._is_gone(assignment):
                self._answered_there(assignment)
        if waiting or lent:
            self._look([*waiting, *lent])

    def _is_to_end(self, assignment: Assignment) -> bool:
        entry = self._table.by_run(assignment.fence)
        if entry is None or assignment.is_withdrawn() or entry.cancel_requested:
            return True
        agent = assignment.waited.agent if assignment.waited is not None else None
        if agent is None or not agent.alive():
            return True
        left = deadline_in(self._context, assignment)
        return left is not None and left <= timedelta(0)

    def _is_gone(self, assignment: Assignment) -> bool:
        """Whether its question has left the screen, for two passes."""
        session_id, waited = assignment.fence.session_id, assignment.waited
        if waited is None or waited.agent.asks():
            self._gone.discard(session_id)
            return False
        seen_before = session_id in self._gone
        self._gone.add(session_id)
        return seen_before

    def _answered_there(self, assignment: Assignment) -> None:
        """Write it down; the run goes on like any that was answered. Raises Unavailable."""
        fence, waited = assignment.fence, assignment.waited
        if waited is None or fence.session_id in self._called:
            return
        self._gone.discard(fence.session_id)
        try:
            inside = Inside(fence.run_id, fence=fence, by=TERMINAL)
            self._context.store.answer_question(inside, waited.number, "")
        except (Conflict, NotFound) as error:
            log.debug("run %s: %s", fence.run_id, error)  # somebody was faster, and is heard
        else:
            log.info("run %s: its question was answered at the terminal", fence.run_id)

    def end(self, assignment: Assignment) -> None:
        """End its turn, as it is to end; nothing when somebody has taken it meanwhile."""
        session_id = assignment.fence.session_id
        with self._lock:
            if self._waiting.get(session_id) is not assignment:
                return
            del self._waiting[session_id]
            self._called.pop(session_id, None)
            self._gone.discard(session_id)
            self._ending[session_id] = assignment

        def act() -> None:
            try:
                self.finish(assignment)
            except Exception:
                log.exception("ending the turn of %s", session_id)
            finally:
                with self._lock:
                    self._ending.pop(session_id, None)

        threading.Thread(target=act, name="end-waiting", daemon=True).start()

    def _look(self, waiting: list[Assignment]) -> None:
        """Which of them are answered, or have no live children any more: those are called."""
        by_run = {each.fence.run_id: each for each in waiting}
        steps = self._context.store.waits_for(list(by_run))
        parents = [run_id for run_id, step in steps.items() if "children" in step.data]
        over = set(parents) - self._context.store.with_live_children(parents) if parents else set()
        now = self._context.clock.monotonic()
        due: list[Assignment] = []
        with self._lock:
            for run_id, step in steps.items():
                session_id = by_run[run_id].fence.session_id
                if "answer" not in step.data and run_id not in over:
                    continue
                if session_id not in self._waiting and session_id not in self._lent:
                    continue
                if now - self._called.get(session_id, -CALL_AGAIN) >= CALL_AGAIN:
                    due.append(by_run[run_id])
        if due:
            self._call(due, now)

    def _call(self, due: list[Assignment], now: float) -> None:
        calls = []
        for assignment in due:
            session = assignment.started.session
            calls.append(Ensure(session.id, session.lane, session.workspace_id, ReadyClass.RESUME))
        epochs = self._context.epochs
        try:
            self._context.broker.ensure(epochs.current(), calls)
        except LeaseError as error:
            log.debug("called again later: %s", error)
            epochs.refresh()
            return
        with self._lock:
            for assignment in due:
                if assignment.fence.session_id in self._waiting or assignment.fence.session_id in self._lent:
                    self._called[assignment.fence.session_id] = now
        self.called()


def deadline_in(context: WorkerContext, assignment: Assignment) -> timedelta | None:
    """What is left of the run's deadline: what SQL said at the start, less what has passed since by our clock."""
    run, begun = assignment.started.run, assignment.begun_at
    if run.deadline_at is None or run.started_at is None:
        return None
    spent = 0.0 if begun is None else context.clock.boottime() - begun
    return max(run.deadline_at - run.started_at - timedelta(seconds=spent), timedelta(0))


def numbered(assignment: Assignment, number: int) -> Assignment:
    """The same, its question known by its number."""
    assert assignment.waited is not None  # it asks
    assignment.waited = replace(assignment.waited, number=number)
    return assignment
