"""The leader's pass over messages for agents: what it tells the broker and people, and what it leaves alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import RunId, SessionId
from oah.core.model.message import Sender
from oah.core.model.run import RunStatus
from oah.core.policy.wake import Rules
from oah.ports.telemetry import NullTelemetry
from oah.services.decisions import Decisions
from oah.services.wake import TellAgents, TendMessages, wake
from tests.support.agent_mail import AgentMail
from tests.support.clock import StillClock
from tests.support.store_clerk import EPOCH, Clerk
from tests.support.worker_doubles import Scripted


@pytest.fixture
def mail(clerk: Clerk) -> AgentMail:
    return AgentMail(clerk, clerk.session("ses_1"))


def broker() -> Scripted:
    return Scripted(enqueue=[[]], publish=[None], look=[None])


def tend(mail: AgentMail, redis: Scripted) -> tuple[TendMessages, Decisions]:
    decisions = Decisions(StillClock())
    rules = Rules(pause=timedelta(0), failures=1)
    made = TendMessages(mail.store, redis, NullTelemetry(), decisions, rules, timedelta(minutes=1))  # type: ignore[arg-type]
    return made, decisions


def test_the_broker_hears_of_the_wakes_of_a_send(mail: AgentMail) -> None:
    redis = broker()
    sent = mail.eager().send("one", "two")
    TellAgents(mail.store, redis, lambda: EPOCH)(sent)  # type: ignore[arg-type]
    assert (redis.called("enqueue"), redis.called("look")) == (1, 0)
    [(_, (hints,), _)] = [call for call in redis.calls if call[0] == "publish"][-1:]
    assert dict(hints)[mail.session] == max(each.event_number for each in sent)


def test_a_pass_repairs_stops_and_tells(mail: AgentMail) -> None:
    redis = broker()
    tending, decisions = tend(mail, redis)
    assert tending(EPOCH).wakes == ()
    assert redis.calls == [], "an idle pass says nothing"
    mail.resumable().eager()
    run = mail.clerk.submit(mail.session)
    [sent] = mail.send("hello")
    mail.store.cancel(run.id, None, by="x")
    assert len(tending(EPOCH).wakes) == 1
    assert redis.called("enqueue") == 1
    _, fence = mail.start()
    mail.end(fence, RunStatus.FAILED)
    assert tending(EPOCH).stopped == (mail.session,)
    mail.older(sent.message_id)
    assert tending.watch() == 0, "too many wakes failed: that is no oversight"
    woken = wake(mail.store, redis, EPOCH, mail.session, None, by="key:op")  # type: ignore[arg-type]
    assert woken.run_id is not None
    assert tending.watch() == 1
    kinds = [(each.kind, each.outcome) for each in reversed(decisions.last())]
    assert kinds == [("wake", "made"), ("wake", "stopped"), ("message", "overdue")]


def test_what_a_rolled_back_run_had_sent_is_void(mail: AgentMail) -> None:
    mail.clerk.session("ses_2")
    run = mail.clerk.submit("ses_2")
    sender = Sender(by="run", session_id=SessionId("ses_2"), run_id=RunId(run.id))
    [sent] = mail.send("forget it", sender=sender)
    mail.clerk.behind.query("UPDATE runs SET voided = true WHERE id = ?", run.id)
    tend(mail, broker())[0](EPOCH)
    found = mail.one(sent.message_id)
    assert (found.state, found.reason) == ("dead", "sender_rolled_back")
    mail.audit()
