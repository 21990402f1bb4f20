"""For tests that drive an agent without a worker."""

from __future__ import annotations

import threading
from datetime import timedelta

from oah.core.model.question import Question
from oah.core.model.timeout import TimeoutReason


class HeldTurn:
    """ports.agent.TurnControl: collects progress, can be cancelled from another thread, at once or as soon as a text
    was seen."""

    def __init__(self, *, cancel_when: str | None = None) -> None:
        self._cancel = threading.Event()
        self._when = cancel_when
        self.shown: list[str] = []
        self.asked: list[Question] = []
        self.answers: list[str] = []
        """What a policy would say, in this order."""
        self.over: TimeoutReason | None = None
        """Set it, and the turn ends with it."""

    def cancel(self) -> None:
        self._cancel.set()

    def cancel_requested(self) -> bool:
        return self._cancel.is_set()

    def kill_after(self) -> timedelta | None:
        return None

    def overdue(self) -> TimeoutReason | None:
        return self.over

    def idle_for(self, seen: timedelta) -> timedelta | None:
        return seen

    def answer(self, question: Question) -> str | None:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else None

    def on_output(self, text: str) -> None:
        self.shown.append(text)
        if self._when is not None and self._when in self.text:
            self._cancel.set()

    @property
    def text(self) -> str:
        return "".join(self.shown)

    def wait_cancelled(self, timeout: timedelta) -> bool:
        return self._cancel.wait(timeout.total_seconds())
