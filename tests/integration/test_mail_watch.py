"""Readers are told at once through the broker, and within the look's interval when every hint is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from oah.adapters.system.ids import SystemIds
from oah.core.model.ids import MailboxId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import InvalidRequest, PayloadTooLarge, RequestError, Unavailable
from oah.ports.mailboxes import Head, Outgoing, Sent
from oah.ports.telemetry import NullTelemetry
from oah.runtime.batches import Batches
from oah.runtime.mail_watch import MailWatch
from oah.services.mail_sweep import SweepMail
from oah.services.post import MailRules, Post
from tests.support.broker_desk import Desk
from tests.support.clock import StillClock
from tests.support.mail_clerk import SECOND, MailClerk
from tests.support.waiting import eventually

AT_ONCE = timedelta(milliseconds=1)


@dataclass
class Told:
    """What a reader was told, and the watch that tells it."""

    watch: MailWatch
    clock: StillClock
    heads: list[Head] = field(default_factory=list)

    def __call__(self, mailbox_id: MailboxId, head: Head) -> None:
        self.heads.append(head)

    def look(self) -> list[Head]:
        """Two seconds later, whatever hints there were."""
        self.clock.seconds += 2
        return self.hear()

    def hear(self) -> list[Head]:
        """One step; what is new."""
        before = len(self.heads)
        self.watch.step(AT_ONCE)
        return self.heads[before:]


class Deaf:
    """A broker that is away."""

    def mail_hints(self, *, timeout: timedelta) -> list[tuple[MailboxId, int]]:
        raise Unavailable("away")

    def publish_mail(self, hints: object) -> None:
        """Best effort."""


@pytest.fixture
def alone(mail: MailClerk) -> Told:
    """A watch that no hint reaches."""
    clock = StillClock()
    return Told(MailWatch(mail.store, Deaf(), clock), clock)  # type: ignore[arg-type]


def quietly(told: Told) -> list[Head]:
    before = len(told.heads)
    told.clock.seconds += 2
    with pytest.raises(Unavailable):
        told.watch.step(AT_ONCE)
    return told.heads[before:]


def test_a_lost_hint_costs_two_seconds(mail: MailClerk, alone: Told) -> None:
    box = mail.box()
    unwatch = alone.watch.watch(box, alone)
    assert [head.last_seq for head in quietly(alone)] == [0], "the first look tells everybody"
    assert quietly(alone) == []
    mail.send("x")
    assert [head.last_seq for head in quietly(alone)] == [1]
    mail.lease(box, lease=SECOND)
    mail.pass_time(2 * SECOND)
    assert quietly(alone) == []
    mail.store.sweep_mail()
    assert [head.turn for head in quietly(alone)] == [1], "a lease that ended"
    mail.store.delete_mailbox(DEFAULT_WORKSPACE, "team.reviews")
    assert [head.gone for head in quietly(alone)] == [True]
    assert quietly(alone) == [], "gone once"
    unwatch()
    unwatch()
    assert quietly(alone) == []


def test_a_mailbox_that_is_about_to_end_is_looked_at_then(mail: MailClerk, alone: Told) -> None:
    box = mail.box(ttl=SECOND)
    alone.watch.watch(box, alone)
    quietly(alone)
    mail.pass_time(2 * SECOND)
    alone.clock.seconds += 1
    with pytest.raises(Unavailable):
        alone.watch.step(AT_ONCE)
    assert alone.heads[-1].gone


def test_hints_of_another_process_come_at_once(mail: MailClerk, desk: Desk) -> None:
    clock = StillClock()
    told = Told(MailWatch(mail.store, desk.broker, clock), clock)
    box, other = mail.box(), mail.box("other")
    told.watch.watch(box, told)
    told.look()  # it has subscribed, and looked
    post = Post(mail.store, desk.broker, SystemIds(), MailRules(), NullTelemetry(), together=Batches)
    letters = [Outgoing(workspace_id=DEFAULT_WORKSPACE, address=to, payload=b"x") for to in ("team.reviews", "other")]
    assert all(isinstance(each, Sent) for each in post.send(letters))
    eventually(lambda: told.hear())
    assert [head.last_seq for head in told.heads[1:]] == [1]
    [leased] = post.receive(box, "g", "h", limit=1)
    assert post.settle(box, leased.lease_id, ack=False)
    eventually(lambda: told.hear())
    assert len(told.heads) == 3
    assert post.delete_mailbox(DEFAULT_WORKSPACE, "team.reviews")
    eventually(lambda: told.hear())
    assert told.heads[-1].gone
    assert other


def test_what_this_process_sends_its_own_readers_hear_directly(mail: MailClerk, alone: Told) -> None:
    box = mail.box()
    deaf = Deaf()
    post = Post(mail.store, deaf, SystemIds(), MailRules(), NullTelemetry(), watch=alone.watch)  # type: ignore[arg-type]
    alone.watch.watch(box, alone)
    post.send([Outgoing(workspace_id=DEFAULT_WORKSPACE, address="team.reviews", payload=b"x")])
    assert [head.last_seq for head in alone.heads] == [1]
    mail.send("later", delay=SECOND)
    mail.pass_time(2 * SECOND)
    SweepMail(mail.store, alone, NullTelemetry()).measure()  # type: ignore[arg-type]
    assert mail.store.sweep_mail().due == 1
    assert [head.last_seq for head in quietly(alone)] == [2]


def test_what_may_be_sent_is_judged_one_by_one(mail: MailClerk) -> None:
    mail.box()
    rules = MailRules(max_payload_bytes=10)
    post = Post(mail.store, Deaf(), SystemIds(), rules, NullTelemetry())  # type: ignore[arg-type]

    def letter(payload: bytes = b"x", **more: object) -> Outgoing:
        return Outgoing(workspace_id=DEFAULT_WORKSPACE, address="team.reviews", payload=payload, **more)  # type: ignore[arg-type]

    letters = [
        letter(b"0123456789"),
        letter(b"0123456789a"),
        letter(headers=b"a" * 65_537),
        letter(ttl=timedelta(0)),
        letter(ttl=timedelta(days=31)),
        letter(delay=timedelta(days=31)),
        letter(key=""),
        letter(sender="s" * 257),
        letter(tags=tuple(str(n) for n in range(17))),
    ]
    answers = post.send(letters)
    assert isinstance(answers[0], Sent)
    assert [type(each) for each in answers[1:3]] == [PayloadTooLarge] * 2
    assert all(isinstance(each, InvalidRequest) for each in answers[3:])
    assert [each.code for each in answers[3:6] if isinstance(each, RequestError)] == [
        "invalid_ttl", "invalid_ttl", "invalid_delay",
    ]  # fmt: skip


def test_mailboxes_are_private_by_chance_or_public_by_name(mail: MailClerk) -> None:
    post = Post(mail.store, Deaf(), SystemIds(), MailRules(), NullTelemetry())  # type: ignore[arg-type]
    private = {post.create(DEFAULT_WORKSPACE).mailbox.address for _ in range(20)}
    assert len(private) == 20
    assert all(each.startswith("m-") and len(each) == 2 + 32 for each in private), "128 bits"
    public = post.create(DEFAULT_WORKSPACE, address="a.b", public=True)
    assert (public.new, public.mailbox.ttl) == (True, timedelta(days=1))
    for wrong in (
        {"address": "a.b"},
        {"public": True},
        {"address": "a.urgent", "public": True},
        {"address": "A", "public": True},
        {"address": "m-x", "public": True},
        {"address": "ses_1", "public": True},
        {"ttl": timedelta(days=31)},
        {"ttl": timedelta(0)},
    ):
        with pytest.raises(InvalidRequest):
            post.create(DEFAULT_WORKSPACE, **wrong)  # type: ignore[arg-type]
    assert not post.delete_mailbox(DEFAULT_WORKSPACE, "none")
