"""What messages for agents promise, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import MessageId, SessionId
from oah.core.model.message import MessageMode, MessageState, Sender
from oah.core.model.run import RunKind, RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.wake import Rules
from oah.errors import Conflict, InvalidRequest, LimitReached
from oah.ports.commands import Delivery
from oah.ports.dead_letters import LetterFilter, LetterKind
from oah.ports.mailboxes import NewMessage
from oah.ports.webhooks import NewWebhook
from oah.settings import MailSettings
from tests.support.agent_mail import AgentMail
from tests.support.store_clerk import Clerk
from tests.support.waiting import eventually


@pytest.fixture
def mail(clerk: Clerk) -> AgentMail:
    return AgentMail(clerk, clerk.session("ses_1"))


def test_a_message_for_a_lazy_session_waits_and_goes_before_the_next_prompt(mail: AgentMail) -> None:
    first, second = mail.send("one", "two")
    assert (first.seq, second.seq, first.wake, second.wake) == (1, 2, None, None)
    assert mail.nothing_to_start()
    mail.clerk.submit(mail.session)
    run, fence = mail.start()
    assert run.kind is RunKind.PROMPT
    one = mail.taken(fence)
    assert (one.payload, one.attempts, one.redelivered, one.state) == (b"one", 1, False, MessageState.QUEUED)
    assert mail.store.cursors(mail.session).received == 0
    assert mail.done(fence, one) is MessageState.DELIVERED
    cursors = mail.store.cursors(mail.session)
    assert (cursors.received, cursors.acked, cursors.last) == (1, 0, 2)
    assert mail.over(fence, one) is MessageState.ACKED
    assert mail.deliver_all(fence) == ["two"]
    assert mail.states() == ["acked", "acked"]
    cursors = mail.store.cursors(mail.session)
    assert (cursors.received, cursors.acked, cursors.last) == (2, 2, 2)
    mail.end(fence)
    delivered = ["message.queued"] * 2 + ["message.delivered", "message.acked"] * 2
    assert mail.events() == delivered
    mail.audit()


def test_ten_at_once_make_one_wake_and_ten_deliveries_in_order(mail: AgentMail) -> None:
    mail.eager()
    sent = mail.send(*(f"text {number}" for number in range(10)))
    assert sum(each.wake is not None for each in sent) == 1
    run, fence = mail.start()
    assert (run.kind, run.input, run.max_retries) == (RunKind.WAKE, "", 0)
    one = mail.taken(fence)
    assert mail.send("while it runs")[0].wake is None, "the wake that is under way looks again"
    mail.over(fence, one)
    assert mail.deliver_all(fence) == [*(f"text {number}" for number in range(1, 10)), "while it runs"]
    assert mail.send("after its last look")[0].wake is not None
    mail.end(fence)
    mail.audit()


def test_a_lazy_session_with_a_live_agent_is_woken(mail: AgentMail) -> None:
    mail.talked(keep=True)
    [sent] = mail.send("are you there")
    assert sent.wake is not None
    [after] = mail.send("still there")
    assert after.wake is None
    run, _ = mail.start_parked()
    assert run.kind is RunKind.WAKE


def test_a_wake_that_is_lost_after_its_last_look_goes_back_beside_the_next(mail: AgentMail) -> None:
    mail.eager().send("one")
    first, fence = mail.start()
    assert mail.deliver_all(fence) == ["one"]
    [sent] = mail.send("two")
    assert sent.wake is not None, "nobody looks again"
    mail.clerk.recover(mail.clerk.owner(mail.session))
    again, fence = mail.start()
    assert (again.id, again.attempt) == (first.id, 2)
    assert mail.deliver_all(fence) == ["two"]
    mail.end(fence)
    last, fence = mail.start()
    assert last.id == sent.wake.run.id
    assert mail.deliver_all(fence) == []
    mail.end(fence, agent="")
    assert mail.nothing_to_start()
    mail.audit()


def test_no_wake_beside_a_run_that_waits(mail: AgentMail) -> None:
    mail.eager()
    mail.clerk.submit(mail.session)
    assert mail.send("hello")[0].wake is None
    mail.clerk.submit(mail.session, delay=timedelta(hours=1))
    _, fence = mail.start()
    assert mail.deliver_all(fence) == ["hello"]
    assert mail.send("during the turn")[0].wake is not None, "only a delayed run waits now"
    mail.end(fence)


def test_what_a_lost_attempt_had_in_hand_comes_again_and_says_so(mail: AgentMail) -> None:
    mail.eager()
    mail.send("one", "two", "three")
    _, fence = mail.start()
    one = mail.taken(fence)
    mail.over(fence, one)
    two = mail.taken(fence)
    mail.done(fence, two)
    mail.clerk.recover(mail.clerk.owner(mail.session))  # the worker is gone
    run, again = mail.start()
    assert (run.kind, run.attempt) == (RunKind.WAKE, 2)
    assert mail.take(fence) is None, "the fence is shut"
    second = mail.taken(again)
    assert (second.payload, second.redelivered, second.attempts) == (b"two", True, 2)
    mail.over(again, second)
    three = mail.taken(again)
    assert (three.payload, three.redelivered, three.attempts) == (b"three", False, 1)
    mail.audit()


def test_a_late_word_of_an_older_delivery_changes_nothing(mail: AgentMail) -> None:
    mail.eager()
    mail.send("one", "two")
    _, fence = mail.start()
    one = mail.taken(fence)
    mail.done(fence, one)
    mail.clerk.recover(mail.clerk.owner(mail.session))
    _, again = mail.start()
    assert mail.take(fence) is None, "the fence is shut"
    second = mail.taken(again)
    assert (second.payload, second.redelivered, second.attempts) == (b"one", True, 2)
    assert second.delivery_id != one.delivery_id
    assert mail.over(fence, one) is MessageState.QUEUED
    assert mail.one(one.message_id).state is MessageState.QUEUED
    assert mail.over(again, second) is MessageState.ACKED
    assert mail.deliver_all(again) == ["two"]
    assert mail.events() == [
        *["message.queued"] * 2,
        "message.delivered",
        "message.returned",
        *["message.delivered", "message.acked"] * 2,
    ]


def test_tried_too_often_it_is_a_dead_letter_and_the_sender_hears_of_it(mail: AgentMail) -> None:
    mail.clerk.session("origin")
    sender = Sender(by="run:r9", session_id=SessionId("origin"))
    mail.eager().send("poison", sender=sender)
    mail.send("next")
    for _ in range(2):
        _, fence = mail.start()
        poison = mail.taken(fence, most=2)
        assert poison.payload == b"poison"
        mail.end(fence, RunStatus.FAILED)
        mail.sweep()
    _, fence = mail.start()
    after = mail.taken(fence, most=2)
    assert after.payload == b"next"
    dead = mail.all()[0]
    assert (dead.state, dead.reason, dead.attempts) == (MessageState.DEAD, "attempts_spent", 2)
    [letter] = mail.store.dead_letters(LetterFilter(kind=LetterKind.MESSAGE)).items
    whole = mail.store.dead_letter(letter.id, None)
    assert (letter.code, letter.attempts, whole.payload_bytes) == ("attempts_spent", 2, b"poison")
    assert whole.payload["sender"]["session_id"] == "origin"
    [failed] = mail.store.events(SessionId("origin"), after=0, limit=9)
    assert (failed.type, failed.data["code"], failed.data["to"]) == ("message.failed", "attempts_spent", "ses_1")
    assert mail.store.cursors(mail.session).acked == 1, "cursors pass what is dead"
    mail.audit()


def test_expired_within_one_sweep_with_a_letter_and_a_word_to_the_sender(mail: AgentMail) -> None:
    mail.clerk.session("origin")
    [sent] = mail.send("late", sender=Sender(by="k", session_id=SessionId("origin")))
    mail.send("kept")
    mail.expire(sent.message_id)
    mail.clerk.submit(mail.session)
    _, fence = mail.start()
    kept = mail.taken(fence)
    assert kept.payload == b"kept", "what has expired is given to nobody, swept or not"
    assert mail.sweep().expired == 1
    assert mail.states() == ["expired", "queued"]
    assert mail.events()[-1] == "message.expired"
    assert mail.clerk.events("origin") == ["message.failed"]
    [letter] = mail.store.dead_letters(LetterFilter(kind=LetterKind.MESSAGE)).items
    assert letter.code == "expired"
    assert mail.sweep().expired == 0
    mail.audit()


def test_a_redriven_message_keeps_its_name_and_gets_a_new_delivery(mail: AgentMail) -> None:
    mail.eager()
    [sent] = mail.send("again please")
    before = mail.one(sent.message_id)
    mail.expire(sent.message_id)
    mail.sweep()
    [letter] = mail.store.dead_letters(LetterFilter(kind=LetterKind.MESSAGE)).items
    [done] = mail.store.redrive_chunk([letter.id], None, by="key:op")
    assert done.code is None, done
    after = mail.one(sent.message_id)
    assert (after.state, after.attempts, after.seq, after.expires_at) == (MessageState.QUEUED, 0, 1, None)
    assert after.delivery_id != before.delivery_id
    assert after.created_at == before.created_at
    [again] = mail.store.redrive_chunk([letter.id], None, by="key:op")
    assert again.code == "already_redriven"
    _, fence = mail.start()
    assert mail.deliver_all(fence) == ["again please"]
    mail.end(fence)
    mail.audit()


def test_the_newest_is_refused_when_too_many_wait_and_none_is_lost(mail: AgentMail) -> None:
    assert MailSettings().session_messages == 256
    answers = mail.try_send(*(f"{number}" for number in range(13)), most=12)
    assert isinstance(answers[12], LimitReached)
    assert answers[12].code == "mailbox_full"
    assert mail.states() == ["queued"] * 12
    mail.clerk.submit(mail.session)
    _, fence = mail.start()
    first = mail.taken(fence)
    assert first.payload == b"0"
    mail.over(fence, first)
    assert not isinstance(mail.try_send("room again", most=12)[0], LimitReached)
    mail.audit()


def test_a_closed_session_takes_none_and_gives_back_what_waits(mail: AgentMail) -> None:
    mail.send("too late")
    mail.store.close_session(mail.session, None)
    [refused] = mail.try_send("no")
    assert isinstance(refused, Conflict)
    assert refused.code == "session_closed"
    assert mail.sweep().dead == 1
    assert (mail.states(), mail.all()[0].reason) == (["dead"], "session_closed")


def test_an_agent_that_is_gone_and_cannot_go_on_gets_nothing_any_more(mail: AgentMail) -> None:
    mail.eager()
    assert mail.send("never started: simply started")[0].wake is not None
    _, fence = mail.start()
    mail.deliver_all(fence)
    mail.end(fence, keep=True)
    [waits] = mail.send("while it lives")
    assert waits.wake is not None
    _, fence = mail.start_parked()
    assert mail.deliver_all(fence) == ["while it lives"]
    mail.end(fence)
    [lost] = mail.send("gone")
    assert lost.wake is None
    assert mail.states()[-1] == "dead"
    assert mail.one(lost.message_id).reason == "session_unrecoverable"
    mail.resumable()
    assert mail.send("a conversation with a name goes on")[0].wake is not None


def test_an_attempt_whose_conversation_is_lost_ends_what_waits(mail: AgentMail) -> None:
    mail.talked()
    mail.resumable().eager()
    mail.send("one", "two")
    _, fence = mail.start()
    assert mail.store.lose_messages(fence, code="session_unrecoverable", after_turns=True) > 0
    assert mail.states() == ["dead", "dead"]
    mail.end(fence, RunStatus.FAILED)
    assert mail.sweep().stopped == ()
    assert mail.store.session(mail.session, None).wake_failures == 0
    mail.audit()


def test_wakes_that_fail_are_spaced_counted_and_stopped_until_somebody_wakes(mail: AgentMail) -> None:
    mail.resumable().eager().send("hello")
    rules = Rules(pause=timedelta(0), failures=3)
    for failures in (1, 2, 3):
        _, fence = mail.start()
        mail.end(fence, RunStatus.FAILED)
        swept = mail.sweep(rules)
        assert mail.store.session(mail.session, None).wake_failures == failures
        assert (len(swept.wakes), len(swept.stopped)) == ((1, 0) if failures < 3 else (0, 1))
    session = mail.store.session(mail.session, None)
    assert session.wake_stopped is not None
    assert "agent_not_ready" in session.wake_stopped
    assert mail.events("wake.") == ["wake.stopped"]
    assert mail.send("more")[0].wake is None
    assert mail.sweep(rules).wakes == ()
    woken = mail.store.wake_session(mail.session, None, by="key:op")
    assert woken.run_id is not None
    assert woken.waiting == 2
    _, fence = mail.start()
    assert mail.deliver_all(fence) == ["hello", "more"]
    mail.end(fence)
    assert mail.store.session(mail.session, None).wake_failures == 0
    assert mail.events("wake.") == ["wake.stopped", "wake.resumed"]
    mail.audit()


def test_the_next_start_of_an_agent_waits_for_the_pause(mail: AgentMail) -> None:
    mail.resumable().eager().send("hello")
    _, fence = mail.start()
    mail.end(fence, RunStatus.FAILED)
    mail.clerk.behind.query("UPDATE sessions SET wake_after = (SELECT max(created_at) FROM runs) WHERE id = 'ses_1'")
    _later(mail)
    [wake] = mail.sweep(Rules(pause=timedelta(seconds=30), failures=3)).wakes
    assert wake.due_in is not None
    assert timedelta(seconds=20) < wake.due_in <= timedelta(seconds=60)
    assert wake.run.deferred


def _later(mail: AgentMail) -> None:
    """The pause has a minute left."""
    sqlite = mail.clerk.url.startswith("sqlite")
    plus = "wake_after + 60000000" if sqlite else "wake_after + interval '60 seconds'"
    mail.clerk.behind.query(f"UPDATE sessions SET wake_after = {plus} WHERE id = 'ses_1'")


def test_a_missing_wake_is_made(mail: AgentMail) -> None:
    mail.eager()
    run = mail.clerk.submit(mail.session)
    mail.send("hello")
    mail.store.cancel(run.id, None, by="x")
    assert mail.nothing_to_start()
    [wake] = mail.sweep().wakes
    assert wake.run.kind is RunKind.WAKE
    assert mail.sweep().wakes == ()
    mail.audit()


def test_steered_into_the_live_turn(mail: AgentMail) -> None:
    mail.clerk.submit(mail.session)
    _, fence = mail.start()
    [sent] = mail.send("listen", mode=MessageMode.STEER)
    assert sent.look == "w.1"
    assert mail.take(fence) is None, "it is being said"
    [command] = mail.store.take_commands(sent.look)
    assert (command.data["text"], command.data["message_id"]) == ("listen", sent.message_id)
    assert mail.store.answer_command(command.id, Delivery.UNVERIFIED)
    assert (mail.one(sent.message_id).state, mail.one(sent.message_id).outcome) == ("delivered", "unverified")
    mail.end(fence)
    mail.sweep()
    assert mail.states() == ["acked"]
    mail.audit()


def test_what_was_said_into_a_turn_that_was_lost_comes_again_and_says_so(mail: AgentMail) -> None:
    mail.resumable().clerk.submit(mail.session)
    mail.start()
    [sent] = mail.send("listen", mode=MessageMode.STEER)
    [command] = mail.store.take_commands(sent.look)
    mail.store.answer_command(command.id, Delivery.DELIVERED)
    mail.clerk.recover(mail.clerk.owner(mail.session))  # the worker is gone, and with it the turn
    _, again = mail.start()
    message = mail.taken(again)
    assert (message.payload, message.redelivered) == (b"listen", True)
    mail.over(again, message)
    assert mail.states() == ["acked"]
    mail.audit()


def test_what_came_too_late_for_the_turn_waits(mail: AgentMail) -> None:
    [early] = mail.send("nobody works", mode=MessageMode.STEER)
    assert early.look is None
    mail.clerk.submit(mail.session)
    _, fence = mail.start()
    assert mail.deliver_all(fence) == ["nobody works"]
    [late] = mail.send("missed", mode=MessageMode.STEER)
    [command] = mail.store.take_commands(late.look)
    mail.store.answer_command(command.id, Delivery.MISSED)
    assert mail.deliver_all(fence) == ["missed"]
    [lost] = mail.send("its worker dies", mode=MessageMode.STEER)
    mail.store.take_commands(lost.look)
    mail.end(fence)
    mail.sweep()
    assert mail.one(lost.message_id).redelivered, "a worker had taken it"
    mail.audit()


def test_what_was_typed_comes_again_and_says_so_whatever_is_said_of_it_later(mail: AgentMail) -> None:
    mail.resumable().clerk.submit(mail.session)
    mail.send("one")
    _, fence = mail.start()
    message = mail.taken(fence)
    assert mail.done(fence, message, "unverified") is MessageState.DELIVERED
    mail.done(fence, message, "failed", untried=True)
    mail.end(fence)
    mail.sweep()
    [found] = mail.all()
    assert (found.state, found.redelivered, found.attempts) == (MessageState.QUEUED, True, 1)
    mail.audit()


def test_what_was_said_is_acknowledged_however_late_its_worker_says_so(mail: AgentMail) -> None:
    """The run is over and the sweep has given the message back when the answer comes: it neither hangs between the
    states nor holds the cursor up."""
    mail.resumable().clerk.submit(mail.session)
    _, fence = mail.start()
    [sent] = mail.send("listen", mode=MessageMode.STEER)
    [command] = mail.store.take_commands(sent.look)
    mail.end(fence)
    mail.sweep()
    assert mail.states() == ["queued"]
    assert mail.store.answer_command(command.id, Delivery.DELIVERED)
    assert mail.states() == ["acked"]
    assert mail.store.cursors(mail.session).acked == 1
    assert mail.events()[-2:] == ["message.delivered", "message.acked"]
    mail.audit()


def test_a_delayed_message_makes_no_run_in_a_session_that_was_closed_meanwhile(mail: AgentMail) -> None:
    origin = SessionId(mail.clerk.session("ses_2"))
    sender = Sender(by="run:r", session_id=origin)
    [sent] = mail.send("later", mode=MessageMode.RUN, delay=timedelta(milliseconds=1), sender=sender)
    mail.store.close_session(mail.session, None)
    eventually(lambda: mail.store.sweep_mail().due == 1, within=10)
    found = mail.one(sent.message_id)
    assert (found.state, found.reason, found.run_id) == (MessageState.DEAD, "session_closed", None)
    assert mail.nothing_to_start()
    assert mail.clerk.events(origin)[-1] == "message.failed"
    mail.audit()


def test_each_sender_hears_of_a_lost_conversation_whoever_finds_it_out(mail: AgentMail) -> None:
    """A send locks its own sender, not those of the messages that waited before."""
    first, second = (SessionId(mail.clerk.session(name)) for name in ("ses_2", "ses_3"))
    mail.talked(keep=True)
    mail.send("one", sender=Sender(by="run:a", session_id=first))
    _, fence = mail.start_parked()
    mail.store.end_wake(fence)
    mail.end(fence)
    mail.send("two", sender=Sender(by="run:b", session_id=second))
    mail.sweep()
    assert mail.states() == ["dead", "dead"]
    assert [mail.clerk.events(each)[-1] for each in (first, second)] == ["message.failed"] * 2


def test_a_live_agent_that_somebody_types_to_is_not_woken_again_and_again(mail: AgentMail) -> None:
    """The wake finds the composer full and gives up: the next one is made by the leader, after the pause."""
    rules = Rules(pause=timedelta(minutes=5))
    mail.resumable().talked(keep=True)
    mail.send("one")
    for pause in (False, True):
        if pause:
            [wake] = mail.sweep(rules).wakes
            assert wake.due_in is None
        _, fence = mail.start_parked()
        message = mail.taken(fence)
        mail.done(fence, message, "failed", untried=True)
        mail.store.end_wake(fence)
        mail.end(fence, keep=True)
    [wake] = mail.sweep(rules).wakes
    assert wake.due_in is not None and wake.due_in > timedelta(minutes=4)
    assert mail.sweep(rules).wakes == ()
    mail.audit()


def test_a_message_that_becomes_a_run(mail: AgentMail) -> None:
    [sent] = mail.send("do it", mode=MessageMode.RUN)
    assert sent.wake is not None
    run, fence = mail.start()
    assert (run.kind, run.input, run.metadata) == (RunKind.PROMPT, "do it", {"message_id": sent.message_id})
    assert mail.one(sent.message_id).run_id == run.id
    mail.sweep()
    assert mail.states() == ["delivered"]
    mail.end(fence)
    mail.sweep()
    assert mail.states() == ["acked"]
    [other] = mail.send("never mind", mode=MessageMode.RUN)
    assert other.wake is not None
    mail.store.cancel(other.wake.run.id, None, by="x")
    mail.sweep()
    assert (mail.states()[-1], mail.all()[-1].reason) == ("dead", "run_not_started")
    mail.audit()


def test_the_agent_itself_says_what_it_has(mail: AgentMail) -> None:
    mail.clerk.submit(mail.session)
    mail.send("one", "two", "three")
    _, fence = mail.start()
    for _ in range(2):
        message = mail.taken(fence)
        mail.done(fence, message)
    cursors, number = mail.store.ack_messages(mail.session, up_to=3, by="run:r1")
    assert (cursors.acked, cursors.received, cursors.last) == (2, 2, 3)
    assert number
    assert mail.states() == ["acked", "acked", "queued"], "what was never delivered is not skipped"
    assert mail.store.ack_messages(mail.session, up_to=3, by="run:r1")[1] == 0
    assert mail.over(fence, message) is MessageState.ACKED


def test_a_delayed_message_has_no_number_until_it_is_due(mail: AgentMail) -> None:
    mail.eager()
    [sent] = mail.send("later", delay=timedelta(hours=1))
    assert (sent.seq, sent.wake) == (None, None)
    assert mail.sweep().wakes == ()
    moment = "1" if mail.clerk.url.startswith("sqlite") else "now() - interval '1 second'"
    mail.clerk.behind.query(f"UPDATE messages SET due_at = {moment}")
    swept = mail.store.sweep_mail()
    assert [each.seq for each in swept.sent] == [1]
    _, fence = mail.start()
    assert mail.deliver_all(fence) == ["later"]


def test_messages_for_agents_are_texts(mail: AgentMail) -> None:
    for payload in (b"\xff\xfe", b"a\0b"):
        new = NewMessage(id=MessageId("m_x"), workspace_id=DEFAULT_WORKSPACE, address=mail.session, payload=payload)
        [answer] = mail.store.send_messages([new])
        assert isinstance(answer, InvalidRequest)
        assert answer.code == "not_text"
    assert mail.send("")[0].seq == 1, "an empty one is one"


def test_overdue_is_told_once_and_repaired(mail: AgentMail) -> None:
    mail.eager()
    [sent] = mail.send("hello")
    assert mail.store.overdue_messages(longer_than=timedelta(minutes=1)) == []
    mail.older(sent.message_id)
    for _ in range(2):
        [late] = mail.store.overdue_messages(longer_than=timedelta(minutes=1))
        assert (late.session_id, late.count) == (mail.session, 1)
        assert late.oldest > timedelta(hours=1)
    assert mail.events() == ["message.queued", "message.overdue"]
    _, fence = mail.start()
    assert mail.store.overdue_messages(longer_than=timedelta(minutes=1)) == [], "somebody works on it"
    assert mail.deliver_all(fence) == ["hello"]


def test_untried_and_refused(mail: AgentMail) -> None:
    mail.clerk.submit(mail.session)
    mail.send("one", "two")
    _, fence = mail.start()
    one = mail.taken(fence)
    assert mail.done(fence, one, "failed", untried=True) is MessageState.QUEUED
    assert mail.one(one.message_id).attempts == 0
    one = mail.taken(fence)
    assert (one.payload, one.redelivered) == (b"one", False)
    assert mail.done(fence, one, "failed", refused="input_too_large") is MessageState.DEAD
    assert mail.deliver_all(fence) == ["two"]
    mail.audit()


def test_each_later_change_is_a_delivery_of_the_webhook_that_the_sender_named(mail: AgentMail) -> None:
    hook = mail.store.create_webhook(
        NewWebhook(
            id="wh_1",
            workspace_id=DEFAULT_WORKSPACE,
            url="https://example.org/told",
            secret="s" * 32,
            events=("run.failed",),
            timeout=timedelta(seconds=5),
            by="key:k1",
        )
    )
    mail.clerk.submit(mail.session)
    mail.send("one", callback=hook.id)
    mail.send("nobody is told")
    mail.send("unknown", callback="wh_nowhere")
    _, fence = mail.start()
    mail.deliver_all(fence)
    told = [each.type for each in mail.store.deliveries(hook.id, None).items]
    assert sorted(told) == ["message.acked", "message.delivered"]
