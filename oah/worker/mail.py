"""Messages in an attempt: taken one at a time, each a turn of its own, before the run's text; a wake has no other.

What is written down about a message is written by the slot thread: there is one in its hands at a time, so a crash at
any line leaves at most that one in doubt. While SQL is away nothing is taken any more: the run goes on with its text,
and what was delivered and could not be written down comes again and says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from oah.core.dialogue.messages import spoken
from oah.core.model.delivery import Outcome
from oah.core.model.ids import SessionId
from oah.core.model.message import AgentMessage, WakeMode
from oah.core.model.run import RunKind
from oah.core.policy.wake import UNRECOVERABLE
from oah.errors import AgentError, OahError, Unavailable
from oah.ports.agent import MAX_RESULT_BYTES, Agent, TurnResult, TurnStatus
from oah.ports.messages import Injected
from oah.ports.opening import AgentKind
from oah.worker.context import WorkerContext
from oah.worker.endings import NOT_STARTED
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

NO_MESSAGES = "agent_takes_no_messages"
REFUSED = frozenset({"input_rejected", "input_too_large", "command_refused", "line_too_long"})
"""This program will never take this text."""
UNTRIED = frozenset({"composer_not_empty", "agent_blocked"})
"""Nothing was typed, for a reason that passes."""
OTHERS_DECIDE = frozenset({"host_lost", *NOT_STARTED})
"""No fault of the run: what becomes of it is a matter of recovery, or it is released."""
NOT_TAKEN = frozenset({"delivery_failed", "delivery_unconfirmed", "agent_lost"})
TRIES = 20
"""How often what became of a message is written to a store that is away, half a second apart."""


class After(Enum):
    """What follows when the turn of a message is over."""

    NEXT = "next"
    """The next text."""
    END = "end"
    """The attempt ends with that turn's result."""
    BACK = "back"
    """The run is released: its own text was not given, and its agent is gone."""


class Mail:
    """Called from slot threads. ``happened`` is told of committed events."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.happened: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None

    # --- before an agent is opened ---

    def nothing_to_do(self, assignment: Assignment, *, warm: bool) -> bool:
        """Whether a wake needs no agent: nothing waits, or a lazy session's agent has gone meanwhile."""
        session, run = assignment.started.session, assignment.started.run
        if run.kind is not RunKind.WAKE:
            return False
        lazy = session.wake is WakeMode.LAZY and not warm and not run.metadata.get("by_hand")
        takes = self._context.takes_messages(session.lane.profile)
        if session.unsettled and not lazy and takes:
            return False
        try:
            if session.unsettled and not takes:
                self._told(assignment, self._context.store.lose_messages(assignment.fence, code=NO_MESSAGES))
            self._context.store.end_wake(assignment.fence)
        except Unavailable as error:
            log.warning("session %s: its wake did nothing: %s", session.id, error)
        return True

    # --- with an agent ---

    def begin(self, assignment: Assignment, agent: Agent, kind: str) -> None:
        """Before the first look. Raises AgentError: nothing of it can be delivered to this agent, all of it is dead."""
        session, run = assignment.started.session, assignment.started.run
        assignment.letters = run.kind is RunKind.WAKE or session.unsettled > 0
        if not assignment.letters:
            return
        takes = self._context.takes_messages(session.lane.profile)
        if takes and (kind != AgentKind.FRESH or agent.opening.reason == "first"):
            return
        code = UNRECOVERABLE if takes else NO_MESSAGES
        number = self._context.store.lose_messages(assignment.fence, code=code, after_turns=takes)
        self._told(assignment, number)
        if number and run.kind is RunKind.WAKE:
            raise AgentError(f"its messages cannot be delivered: {code}", code=code)
        assignment.letters = takes and not number

    def next(self, assignment: Assignment) -> bool:
        """Take the next one into ``assignment.letter``. False: none is left."""
        assignment.letter, assignment.typed = None, False
        if not assignment.letters:
            return False
        try:
            taken = self._context.store.take_messages(
                assignment.fence, limit=1, most_attempts=self._context.message_attempts
            )
        except Unavailable as error:
            log.warning("session %s: its messages wait: %s", assignment.fence.session_id, error)
            assignment.letters = False
            return False
        self._told(assignment, taken.number)
        if not taken.messages:
            assignment.letters = False
            return False
        assignment.letter = taken.messages[0]
        return True

    def text(self, letter: AgentMessage) -> str:
        """What the agent is given."""
        return spoken(
            letter.message_id, letter.sender, letter.payload.decode("utf-8", "replace"), again=letter.redelivered
        )

    def request(self, assignment: Assignment, letter: AgentMessage) -> dict[str, Any]:
        """What the request of a message's turn has besides. The driver tells without being held up."""

        def tell(outcome: Outcome) -> None:
            assignment.typed = True
            done = Injected(message_id=letter.message_id, delivery_id=letter.delivery_id, outcome=outcome.value)
            threading.Thread(target=self._write, args=(assignment, done, 1), name="mail", daemon=True).start()

        one_line = b"\n" not in letter.payload.rstrip(b"\n")
        return {"one_line": one_line, "goes_on": True, "delivered": tell}

    def over(self, assignment: Assignment, letter: AgentMessage, result: TurnResult) -> After:
        """The turn of a message is over: what became of it is written down first."""
        code, status = result.error_code, result.status
        over = status is TurnStatus.COMPLETED or (status is TurnStatus.FAILED and result.keep_warm)
        cancelled = status is TurnStatus.CANCELLED
        refused = code if code in REFUSED else None
        untried = not assignment.typed and ((code in UNTRIED and result.keep_warm) or cancelled)
        failed = code in NOT_TAKEN or refused is not None or untried
        # What was typed once is never said to have failed: given again, it says that it may have reached the agent.
        outcome = result.delivery or (Outcome.CONFIRMED if over else Outcome.UNVERIFIED)
        if failed:
            outcome = Outcome.UNVERIFIED if assignment.typed and refused is None else Outcome.FAILED
        ended = (over or cancelled) and not failed
        done = Injected(
            message_id=letter.message_id,
            delivery_id=letter.delivery_id,
            outcome=outcome.value,
            turn_over=ended,
            reply=result.output if ended else None,
            refused=refused,
            untried=untried,
        )
        self._write(assignment, done, TRIES)
        self._context.telemetry.count("oah_messages_delivered_total", outcome=outcome.value)
        if ended and result.output:
            assignment.replies.append(result.output)
        assignment.letter = None
        if untried and assignment.is_wake:
            self._give_up(assignment)
        return self._after(assignment, result, goes_on=over and (refused is not None or not failed), untried=untried)

    def _after(self, assignment: Assignment, result: TurnResult, *, goes_on: bool, untried: bool) -> After:
        if goes_on:
            return After.NEXT
        ends = result.status in (TurnStatus.CANCELLED, TurnStatus.TIMED_OUT) or result.error_code in OTHERS_DECIDE
        if assignment.is_wake or ends:
            return After.END
        if untried or result.keep_warm:  # somebody types: the run's own text finds that out by itself
            assignment.letters = False
            return After.NEXT
        return After.BACK

    def summary(self, assignment: Assignment, agent: Agent) -> TurnResult:
        """A wake that has given everything: what was answered, in order."""
        text = "\n\n".join(assignment.replies)
        cut = text.encode()[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
        warm = agent.warm
        return TurnResult(
            status=TurnStatus.COMPLETED, output=cut, keep_warm=warm, recording=agent.finish(), tree_empty=False
        )

    def _give_up(self, assignment: Assignment) -> None:
        """A wake that ends early for a reason that passes: what waits makes another."""
        try:
            self._context.store.end_wake(assignment.fence)
        except OahError as error:
            log.warning("session %s: %s", assignment.fence.session_id, error)

    def _write(self, assignment: Assignment, done: Injected, tries: int) -> None:
        for left in reversed(range(tries)):
            try:
                settled = self._context.store.injected(assignment.fence, [done])
            except Unavailable as error:
                if not left or assignment.is_lost():
                    log.warning("message %s: what became of it is not written down: %s", done.message_id, error)
                    return
                threading.Event().wait(0.5)
                continue
            except OahError:
                log.exception("message %s", done.message_id)
                return
            self._told(assignment, settled.number)
            return

    def _told(self, assignment: Assignment, number: int) -> None:
        if number:
            self.happened([(assignment.fence.session_id, number)])
