"""What a slot thread makes of the turn of a message: what is written down, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from oah.core.model.delivery import Outcome
from oah.core.model.ids import ClaimToken, DeliveryId, MessageId, SessionId, WorkspaceId
from oah.core.model.message import AgentMessage, MessageMode, MessageState, Sender, WakeMode
from oah.core.model.run import ReadyClass, RunKind
from oah.errors import AgentError, Unavailable
from oah.ports.agent import TurnResult, TurnStatus
from oah.ports.messages import Injected, Settled, Taken
from oah.ports.opening import Opening
from oah.worker import mail
from oah.worker.mail import After, Mail
from oah.worker.work import Assignment
from tests.support.worker_doubles import Scripted, context, fence, started

F = fence()
LETTER = AgentMessage(
    message_id=MessageId("msg_1"),
    workspace_id=WorkspaceId("default"),
    session_id=SessionId("ses_1"),
    seq=1,
    mode=MessageMode.WAIT,
    state=MessageState.QUEUED,
    delivery_id=DeliveryId("dlv_1"),
    attempts=1,
    sender=Sender(by="key:k1"),
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
    payload=b"hello",
)
DONE = TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED, TurnStatus.TIMED_OUT
COMPLETED, FAILED, CANCELLED, TIMED_OUT = DONE


class Warm:
    """An agent as far as mail looks at it."""

    warm = True

    def __init__(self, **opening: Any) -> None:
        self.opening = Opening(**opening)

    def finish(self) -> str:
        return "recording"


def assignment(kind: RunKind = RunKind.PROMPT, **session: Any) -> Assignment:
    begun = started(F.session_id, ClaimToken(F.token))
    begun = replace(begun, run=replace(begun.run, kind=kind), session=replace(begun.session, **session))
    return Assignment(begun, F, ReadyClass.INTERACTIVE)


def desk(**answers: Any) -> tuple[Mail, Scripted]:
    store = Scripted(**{"injected": [Settled((MessageState.ACKED,), 7)], "end_wake": [None], **answers})
    return Mail(context(store, None)), store


def written(store: Scripted) -> Injected:
    [(_, (_, [done]), _)] = [call for call in store.calls if call[0] == "injected"]
    assert isinstance(done, Injected)
    return done


@pytest.mark.parametrize(
    ("kind", "result", "typed", "outcome", "over", "after"),
    [
        (RunKind.WAKE, TurnResult(status=COMPLETED, keep_warm=True), True, "confirmed", True, After.NEXT),
        (RunKind.WAKE, TurnResult(status=COMPLETED, delivery=Outcome.UNVERIFIED), True, "unverified", True, After.NEXT),
        (
            RunKind.PROMPT,
            TurnResult(status=FAILED, error_code="x", keep_warm=True),
            True,
            "confirmed",
            True,
            After.NEXT,
        ),
        (RunKind.WAKE, TurnResult(status=FAILED, error_code="agent_exited"), True, "unverified", False, After.END),
        (RunKind.PROMPT, TurnResult(status=FAILED, error_code="agent_exited"), True, "unverified", False, After.BACK),
        (RunKind.PROMPT, TurnResult(status=FAILED, error_code="host_lost"), True, "unverified", False, After.END),
        (RunKind.PROMPT, TurnResult(status=CANCELLED, keep_warm=True), True, "unverified", True, After.END),
        (RunKind.PROMPT, TurnResult(status=CANCELLED, keep_warm=True), False, "failed", False, After.END),
        (RunKind.PROMPT, TurnResult(status=TIMED_OUT), True, "unverified", False, After.END),
        (RunKind.WAKE, TurnResult(status=FAILED, error_code="delivery_failed"), False, "failed", False, After.END),
        (RunKind.WAKE, TurnResult(status=FAILED, error_code="agent_lost"), True, "unverified", False, After.END),
        (RunKind.WAKE, TurnResult(status=FAILED, error_code="agent_lost"), False, "failed", False, After.END),
        (RunKind.WAKE, TurnResult(status=FAILED, error_code="agent_blocked"), True, "unverified", False, After.END),
    ],
)
def test_what_follows(kind: RunKind, result: TurnResult, typed: bool, outcome: str, over: bool, after: After) -> None:
    post, store = desk()
    given = assignment(kind)
    given.letter, given.typed = LETTER, typed
    told: list[Any] = []
    post.happened = told.extend
    assert post.over(given, LETTER, result) is after
    done = written(store)
    assert (done.outcome, done.turn_over, done.refused) == (outcome, over, None)
    assert not (done.untried and typed), "what was typed is not untried"
    assert given.letter is None
    assert told == [(F.session_id, 7)]


def test_a_text_that_is_never_taken_is_dead_and_the_next_one_follows() -> None:
    post, store = desk()
    given = assignment(RunKind.WAKE)
    result = TurnResult(status=FAILED, error_code="input_too_large", keep_warm=True)
    assert post.over(given, LETTER, result) is After.NEXT
    assert written(store).refused == "input_too_large"


def test_while_a_person_types_nothing_counts() -> None:
    result = TurnResult(status=FAILED, error_code="composer_not_empty", keep_warm=True)
    post, store = desk()
    assert post.over(assignment(RunKind.WAKE), LETTER, result) is After.END
    assert (written(store).untried, store.called("end_wake")) == (True, 1)
    post, store = desk()
    given = assignment()
    assert post.over(given, LETTER, result) is After.NEXT
    assert (given.letters, store.called("end_wake")) == (False, 0), "the run's own text is next"


def test_a_store_that_is_away_costs_a_second_delivery_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "TRIES", 1)
    away = Unavailable("away")
    post, store = desk(injected=[away], take_messages=[away])
    given = assignment(RunKind.WAKE)
    assert post.over(given, LETTER, TurnResult(status=COMPLETED, keep_warm=True)) is After.NEXT
    assert post.next(given) is False
    assert given.letters is False
    assert post.next(given) is False
    assert store.called("take_messages") == 1


def test_one_at_a_time_until_none_is_left() -> None:
    post, store = desk(take_messages=[Taken((LETTER,), 3), Taken()])
    given = assignment(unsettled=1)
    post.begin(given, Warm(), "warm")  # type: ignore[arg-type]
    assert post.next(given)
    assert given.letter == LETTER
    assert not post.next(given)
    assert given.letter is None
    assert store.called("take_messages") == 2


def test_a_session_without_messages_costs_no_look() -> None:
    post, store = desk()
    given = assignment()
    post.begin(given, Warm(), "warm")  # type: ignore[arg-type]
    assert not post.next(given)
    assert store.calls == []


def test_a_new_conversation_is_not_told_what_was_meant_for_the_old() -> None:
    post, store = desk(lose_messages=[9])
    lost = Warm(reason="home_lost", resumable=True)
    with pytest.raises(AgentError) as error:
        post.begin(assignment(RunKind.WAKE, unsettled=1), lost, "fresh")  # type: ignore[arg-type]
    assert error.value.code == "session_unrecoverable"
    given = assignment(unsettled=1)
    post.begin(given, lost, "fresh")  # type: ignore[arg-type]
    assert given.letters is False
    first = assignment(unsettled=1)
    post.begin(first, Warm(reason="first", resumable=True), "fresh")  # type: ignore[arg-type]
    assert first.letters is True
    assert store.called("lose_messages") == 2


@pytest.mark.parametrize(
    ("session", "warm", "nothing"),
    [
        ({"unsettled": 0}, True, True),
        ({"unsettled": 1, "wake": WakeMode.EAGER}, False, False),
        ({"unsettled": 1, "wake": WakeMode.LAZY}, True, False),
        ({"unsettled": 1, "wake": WakeMode.LAZY}, False, True),
    ],
)
def test_a_wake_starts_nobody_for_nothing(session: dict[str, Any], warm: bool, nothing: bool) -> None:
    post, store = desk()
    assert post.nothing_to_do(assignment(RunKind.WAKE, **session), warm=warm) is nothing
    assert store.called("end_wake") == nothing
    assert post.nothing_to_do(assignment(unsettled=0), warm=False) is False, "a prompt has its own text"


def test_an_interpreter_is_not_started_for_messages() -> None:
    store = Scripted(lose_messages=[4], end_wake=[None])
    post = Mail(context(store, None, takes_messages=lambda profile: False))
    assert post.nothing_to_do(assignment(RunKind.WAKE, unsettled=1, wake=WakeMode.EAGER), warm=True)
    assert store.calls[0][2] == {"code": "agent_takes_no_messages"}


def test_the_result_of_a_wake_is_what_was_answered_in_order() -> None:
    post, _ = desk()
    given = assignment(RunKind.WAKE)
    given.replies = ["one", "two"]
    result = post.summary(given, Warm())  # type: ignore[arg-type]
    assert (result.status, result.output, result.keep_warm, result.recording) == (
        COMPLETED,
        "one\n\ntwo",
        True,
        "recording",
    )
    assert post.request(given, LETTER)["one_line"] is True
