"""Questions that programs ask while nobody sits in their slot: asked, answered once, and gone on with.

A question is the open wait of a run (``run_steps``, kind ``wait``), named by the run and the number of that step. While
it stands the run is ``waiting_tool`` and its owner row parked: no slot is used, the agent lives on with its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from oah.core.model.ids import WorkerId
from oah.core.model.run import Step
from oah.ports.rows import AfterRun, RunFence
from oah.ports.steps import Inside

TERMINAL = "terminal"
"""Who has "answered" a question that has left the program's screen: somebody at the terminal, or the program itself
when its countdown was over."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A turn that was left because its program asks. ``question``: as ``core/model/question.py`` writes it down;
    ``key``: of this asking, so that a repetition is found; ``timeout``: how long the question stands."""

    fence: RunFence
    key: str
    reason: str
    question: Mapping[str, Any]
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class AskReply:
    """``number``: of the question; 0 where the fence refused it."""

    after: AfterRun
    number: int = 0


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that goes on: what was answered, and its event's number (0: that was said before)."""

    answer: str
    by: str
    event_number: int = 0


class QuestionStore(Protocol):
    """Every write is fenced by the attempt, and under the lock of the session."""

    def ask(self, asked: Sequence[Asked]) -> list[AskReply]:
        """``running`` → ``waiting_tool``, the owner row parked, event ``run.waiting_tool``. Repeatable by its key."""
        ...

    def question_of(self, inside: Inside) -> Step | None:
        """The open wait with a question. Raises NotFound."""
        ...

    def answer_question(self, inside: Inside, number: int, answer: str) -> WorkerId | None:
        """Write the answer down, once; whose the run is. The run goes on when its owner has a slot for it.

        Raises NotFound, Conflict ``run_not_waiting``, ``question_over``, ``already_answered``.
        """
        ...

    def resume_answered(self, worker_id: WorkerId, waits: Sequence[tuple[RunFence, int]]) -> list[Resumed | None]:
        """``waiting_tool`` → ``running`` of answered questions, the owner row no longer parked, event ``run.resumed``.
        None: not answered yet, or no longer ours. Repeatable."""
        ...

    def note_answer(self, fence: RunFence, data: Mapping[str, Any]) -> int:
        """A ``run.answered`` event: a policy has answered a question. 0: the fence refused it."""
        ...
