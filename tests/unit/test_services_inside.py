"""A text for a run that waits: what its asker is told when nobody knows whether it was said."""

from __future__ import annotations

from typing import Any

import pytest

from oah.core.model.ids import RunId
from oah.core.policy import admission
from oah.errors import InDoubt, Unavailable
from oah.ports.commands import Delivery, Spoken
from oah.ports.steps import Inside
from oah.services.inside import Speaking
from tests.support.worker_doubles import Scripted

RUN, REQUEST = RunId("r"), RunId("q")
AWAY = Unavailable("the store is away")
TYPED = Spoken(7, RUN, taken=True, answer=Delivery.DELIVERED)
WAITS = Spoken(7, RUN, taken=False, answer=None)


def answer(**answers: Any) -> Any:
    store: Any = Scripted(ask_input=[None], **answers)
    speaking = Speaking(store, Scripted(), admission.Rules(), Inside(RUN))  # type: ignore[arg-type]
    return speaking.answer("yes", REQUEST, lambda: None, tries=2)


def test_it_was_said() -> None:
    assert answer(spoken=[TYPED], run=["the run"]) == ("the run", Delivery.DELIVERED)


@pytest.mark.parametrize("answers", [{"spoken": [AWAY]}, {"spoken": [WAITS, AWAY]}, {"spoken": [TYPED], "run": [AWAY]}])
def test_a_store_that_goes_away_after_the_question_leaves_a_doubt(answers: dict[str, Any]) -> None:
    with pytest.raises(InDoubt) as raised:
        answer(**answers)
    assert raised.value.code == "in_doubt", "nobody repeats it without looking"


def test_what_no_worker_has_taken_was_not_said() -> None:
    with pytest.raises(Unavailable) as raised:
        answer(spoken=[WAITS], withdraw_command=[True])
    assert raised.value.code == "worker_silent"


def test_before_the_question_nothing_was_said() -> None:
    store: Any = Scripted(ask_input=[AWAY])
    with pytest.raises(Unavailable) as raised:
        Speaking(store, Scripted(), admission.Rules(), Inside(RUN)).answer(  # type: ignore[arg-type]
            "yes", REQUEST, lambda: None, tries=2
        )
    assert not isinstance(raised.value, InDoubt)
