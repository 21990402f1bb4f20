"""The speaker: says texts into live turns. A command names its attempt; it is said once, or not at all.

Proof takes seconds, so each command has a thread of its own; there are as many as people speak at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.core.dialogue.messages import spoken
from oah.core.model.ids import SessionId
from oah.core.model.message import Sender
from oah.errors import OahError, Unavailable
from oah.ports.commands import CommandKind, Delivery, WorkerCommand
from oah.ports.steps import Inside
from oah.worker.context import WorkerContext
from oah.worker.slots import Slots
from oah.worker.table import Table
from oah.worker.work import Assignment

log = logging.getLogger(__name__)

TURN_BEGINS = 2.0
"""Seconds that a text waits for its run's agent to be open."""
PROOF = timedelta(seconds=3)
"""How long it is waited for the turn to listen and for the terminal to show the text. Both together are less than the
API waits for the answer (``services/steer.py``)."""
ANSWERS = 3
"""How often an answer is written to a store that is away; the asker then learns that it is unverified."""


class Speaker:
    """Thread safe."""

    def __init__(self, context: WorkerContext, table: Table, slots: Slots) -> None:
        self._context = context
        self._table = table
        self._slots = slots
        self.happened: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None
        """Told of committed events."""

    def take(self, command: WorkerCommand) -> None:
        """Say it, in a thread of its own."""
        threading.Thread(target=self._speak, args=(command,), name="speaker", daemon=True).start()

    def _speak(self, command: WorkerCommand) -> None:
        assignment = self._assignment(command)
        if command.kind is not CommandKind.INPUT:
            delivery = Delivery.MISSED if assignment is None else self._say(assignment, command)
            self._answer(
                command, assignment, lambda: self._context.store.answer_command(command.id, delivery), delivery
            )
            return
        resumed = assignment is not None and self._resumed(command, assignment)
        given = self._say(assignment, command) if assignment is not None and resumed else Delivery.MISSED
        self._answer(command, assignment, lambda: self._given(command, assignment, given, resumed=resumed), given)

    def _resumed(self, command: WorkerCommand, assignment: Assignment) -> bool:
        """Whether the run waited and goes on now: before it is told what it waited for, or it could be over sooner."""
        fence = assignment.fence
        try:
            told = self._context.store.resume_run(Inside(fence.run_id, fence=fence, by=command.by))
        except OahError as error:
            log.info("run %s takes no input: %s", fence.run_id, error)
            return False
        if told.event_number:
            self.happened([(fence.session_id, told.event_number)])
        return bool(told.event_number)

    def _assignment(self, command: WorkerCommand) -> Assignment | None:
        """The attempt that the command names, as long as it is this worker's and goes on."""
        for assignment in self._slots.working:
            fence = assignment.fence
            if (fence.run_id, fence.attempt) == (command.run_id, command.attempt):
                return assignment if self._goes_on(assignment) else None
        return None

    def _goes_on(self, assignment: Assignment) -> bool:
        entry = self._table.by_run(assignment.fence)
        return entry is not None and not entry.cancel_requested and not assignment.is_withdrawn()

    def _say(self, assignment: Assignment, command: WorkerCommand) -> Delivery:
        clock = self._context.clock
        begun = clock.monotonic()
        while assignment.agent is None:
            if clock.monotonic() - begun > TURN_BEGINS or not self._goes_on(assignment):
                return Delivery.MISSED
            threading.Event().wait(0.05)
        try:
            text, asked_for = _text(command), command.kind is CommandKind.INPUT
            profile = assignment.started.session.lane.profile
            if "message_id" in command.data and not self._context.takes_messages(profile):
                return Delivery.UNSUPPORTED
            return assignment.agent.say(text, PROOF, asked_for=asked_for)
        except Exception:
            log.exception("speaking to the agent of %s", assignment.fence.session_id)
            return Delivery.UNVERIFIED

    def _answer(
        self, command: WorkerCommand, assignment: Assignment | None, write: Callable[[], int], delivery: Delivery
    ) -> None:
        """``write``: writes it down; the number of its event."""
        log.info("run %s: said by %s: %s", command.run_id, command.by, delivery)
        for _ in range(ANSWERS):
            try:
                number = write()
            except Unavailable:
                threading.Event().wait(0.5)
                continue
            except OahError as error:
                log.warning("command %d is not answered: %s", command.id, error)
                return
            if number and assignment is not None:
                self.happened([(assignment.fence.session_id, number)])
            return

    def _given(
        self, command: WorkerCommand, assignment: Assignment | None, delivery: Delivery, *, resumed: bool
    ) -> int:
        """There is an event only when the run waits again."""
        assert command.run_id is not None  # an input is about a run
        inside = Inside(command.run_id, fence=None if assignment is None else assignment.fence, by=command.by)
        return self._context.store.input_given(inside, command.id, delivery, resumed=resumed).event_number


def _text(command: WorkerCommand) -> str:
    """What is typed; a message with the line that says whose it is."""
    text, message_id = str(command.data.get("text", "")), command.data.get("message_id")
    if message_id is None:
        return text
    sender = command.data.get("sender") or {}
    who = Sender(by=sender.get("by") or "", session_id=sender.get("session_id"), run_id=sender.get("run_id"))
    return spoken(str(message_id), who, text)
