"""The hand on a running turn: what its slot hears of stops, when silence is believed, who answers for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.question import Question
from oah.core.model.timeout import TimeoutReason
from oah.core.policy import answers
from oah.ports.store import OutputChunk
from oah.worker.settler import Settler
from oah.worker.table import Entry
from oah.worker.work import Answered, Assignment


@dataclass(slots=True)
class Control:
    """See ports.agent.TurnControl. ``policy``: what profile and workspace say about questions."""

    entry: Entry
    assignment: Assignment
    settler: Settler
    limit: int
    boottime: Callable[[], float]
    mark_now: Callable[[], None]
    policy: answers.Rules = answers.ASK_ALWAYS
    asked_at: float | None = None

    def cancel_requested(self) -> bool:
        """Somebody wants it to end, and no limit has passed."""
        return self.entry.cancel_requested and self.overdue() is None and not self.assignment.is_lost()

    def kill_after(self) -> timedelta | None:
        """As the table has it."""
        return self.entry.kill_after

    def overdue(self) -> TimeoutReason | None:
        """A limit that the leader watches."""
        return TimeoutReason.of_stop(self.entry.stop_reason)

    def idle_for(self, seen: timedelta) -> timedelta | None:
        """SQL knows of steps, progress calls and waits; only a mark that begins from now on says that there were
        none."""
        now = self.boottime()
        if self.asked_at is None:
            self.asked_at = now
            self.mark_now()
        if self.entry.sql_at < self.asked_at:
            return None
        self.asked_at = None
        heard = self.entry.heard_at
        return seen if heard is None else min(seen, timedelta(seconds=max(now - heard, 0.0)))

    def answer(self, question: Question) -> str | None:
        """What a rule says, told as an event; None: a person is asked."""
        decision = answers.decide(question, self.policy)
        if isinstance(decision, answers.Ask):
            return None
        how = "denied" if isinstance(decision, answers.Deny) else "allowed"
        self.settler.answered(Answered(self.assignment.fence, question, decision.choice, decision.rule, how))
        return decision.choice

    def on_output(self, text: str) -> None:
        """Bounded per attempt."""
        size = len(text.encode("utf-8", "replace"))
        if not text or self.assignment.said + size > self.limit:
            return
        self.assignment.said += size
        self.settler.said(OutputChunk(self.assignment.fence, text))
