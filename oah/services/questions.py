"""Answer what the program of a run asks: find the question, judge the answer, write it down, tell the owner to look.

The run goes on when its owner has a slot for it. An answer that is none is refused here, with what would be one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from oah.core.model.question import Question, question_from
from oah.core.model.run import Run, Step
from oah.core.policy import admission
from oah.errors import InvalidRequest, Unavailable
from oah.ports.broker import Broker
from oah.ports.steps import Inside
from oah.ports.store import Store


@dataclass(frozen=True, slots=True)
class Answering:
    """One caller, one run."""

    store: Store
    broker: Broker
    rules: admission.Rules
    inside: Inside

    def question(self) -> Step | None:
        """What the run's program asks now. Raises NotFound."""
        return self.store.question_of(self.inside)

    def answer(self, asked: Step, text: str, *, number: int | None) -> Run:
        """The run as it waits for its slot. ``number``: of the question that is meant; None: the one that stands.

        Raises InvalidRequest ``answer_unfit``, Conflict ``question_over``, ``already_answered``, ``run_not_waiting``.
        """
        question = question_from(asked.data["question"])
        admission.run_input(text, self.rules)
        admission.spoken(text)
        if number in (None, asked.number) and not question.takes(text):
            raise InvalidRequest(
                "that is no answer to what the program asks", code="answer_unfit", hint=_choices(question)
            )
        chosen = question.chosen(text)
        given = text if chosen is None else chosen.key
        owner = self.store.answer_question(self.inside, asked.number if number is None else number, given)
        if owner is not None:
            with contextlib.suppress(Unavailable):
                self.broker.look([owner])
        return self.store.run(self.inside.run_id, self.inside.workspace_id)


def _choices(question: Question) -> str:
    """What would be an answer."""
    offered = [f"{choice.key} ({choice.words})" for choice in question.choices]
    return "; ".join([*offered, *(["any text"] if question.free else [])])[:2_000]
