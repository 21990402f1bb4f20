"""Queue groups on both databases: one member each, redelivered when the lease ends or its holder goes, never lost."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Connection, update

from oah.adapters.sql import mail_groups
from oah.adapters.sql.mail_tables import messages
from oah.adapters.sql.store import open_store
from oah.core.model.ids import MailboxId
from oah.core.model.message import Message, Priority
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import NotFound
from oah.ports.dead_letters import LetterFilter, LetterKind
from oah.ports.mailboxes import Leased
from tests.support.mail_clerk import MINUTE, SECOND, MailClerk


def seqs(leased: list[Leased]) -> list[int]:
    return [each.message.seq for each in leased]


def filled(mail: MailClerk, count: int, **more: object) -> MailboxId:
    box = mail.box(**more)  # type: ignore[arg-type]
    mail.store.send_messages([mail.new(str(n)) for n in range(1, count + 1)])
    return box


def test_stored_messages_are_shared_by_the_members(mail: MailClerk) -> None:
    box = filled(mail, 7)
    shares = [mail.lease(box, holder=f"h{n}", limit=n) for n in (1, 2, 3)]
    assert [seqs(each) for each in shares] == [[1], [2, 3], [4, 5, 6]]
    assert seqs(mail.lease(box, holder="h4")) == [7]
    assert mail.lease(box, holder="h5") == []
    assert len({each.lease_id for share in shares for each in share}) == 6
    assert [each.attempt for share in shares for each in share] == [1] * 6


def test_an_ack_ends_it_and_only_once(mail: MailClerk) -> None:
    box = filled(mail, 2)
    first, second = mail.lease(box)
    assert mail.store.settle_lease(box, first.lease_id, ack=True)
    assert not mail.store.settle_lease(box, first.lease_id, ack=True)
    assert not mail.store.settle_lease(box, first.lease_id, ack=False)
    assert not mail.store.settle_lease(box, "no\0thing", ack=True)
    assert not mail.store.settle_lease(MailboxId("none"), second.lease_id, ack=True)
    assert mail.texts(box) == ["2"], "the only group is done with it"
    mail.pass_time(2 * MINUTE)
    assert not mail.store.settle_lease(box, second.lease_id, ack=True), "its lease has ended"
    assert seqs(mail.lease(box)) == [2]


def test_what_its_member_never_saw_was_no_attempt(mail: MailClerk) -> None:
    box = filled(mail, 1)
    for _ in range(5):
        [leased] = mail.lease(box, most_attempts=2)
        assert leased.attempt == 1
        turn = mail.store.heads({box: None})[box].turn
        assert mail.store.settle_lease(box, leased.lease_id, ack=False, untried=True)
        assert not mail.store.settle_lease(box, leased.lease_id, ack=False, untried=True)
        assert mail.store.heads({box: None})[box].turn == turn + 1
    [leased] = mail.lease(box, most_attempts=2)
    assert mail.store.settle_lease(box, leased.lease_id, ack=True)


def test_two_groups_are_independent(mail: MailClerk) -> None:
    box = filled(mail, 3)
    ours, theirs = mail.lease(box, "a"), mail.lease(box, "b", limit=1)
    assert (seqs(ours), seqs(theirs)) == ([1, 2, 3], [1])
    for each in ours:
        assert mail.store.settle_lease(box, each.lease_id, ack=True)
    assert mail.texts(box) == ["1", "2", "3"], "the other group is not done with any"
    assert mail.lease(box, "a") == []
    assert mail.store.settle_lease(box, theirs[0].lease_id, ack=True)
    assert mail.texts(box) == ["2", "3"]
    assert seqs(mail.lease(box, "b")) == [2, 3]
    assert seqs(mail.lease(box, "c")) == [2, 3], "a new group gets what is stored"


def test_what_a_member_held_goes_to_another_when_the_lease_ends(mail: MailClerk) -> None:
    box = filled(mail, 2)
    [held, _] = mail.lease(box, holder="h1", lease=30 * SECOND)
    mail.pass_time(15 * SECOND)
    assert mail.lease(box, holder="h2") == []
    boxes = [box, mail.box("other")]
    assert mail.store.ended_leases(boxes) == set()
    mail.pass_time(16 * SECOND)
    assert mail.store.ended_leases(boxes) == {box}
    assert mail.store.ended_leases(boxes[1:]) == mail.store.ended_leases([]) == set()
    turn = mail.store.heads({box: None})[box].turn
    swept = mail.store.sweep_mail()
    assert (swept.freed, swept.dead, swept.changed) == (2, 0, ((box, 0),))
    assert mail.store.heads({box: None})[box].turn == turn + 1, "who lost the hint sees it"
    assert mail.store.sweep_mail().freed == 0
    assert mail.store.ended_leases(boxes) == set()
    again = mail.lease(box, holder="h2")
    assert [(each.message.seq, each.attempt) for each in again] == [(1, 2), (2, 2)]
    assert not mail.store.settle_lease(box, held.lease_id, ack=True), "a late ack of an old lease changes nothing"
    assert mail.texts(box) == ["1", "2"]


def test_without_a_sweep_a_lease_that_ended_has_ended(mail: MailClerk) -> None:
    box = filled(mail, 1)
    mail.lease(box, lease=SECOND)
    mail.pass_time(2 * SECOND)
    assert seqs(mail.lease(box, holder="h2")) == [1]


def test_what_a_member_held_goes_to_another_when_it_dies(mail: MailClerk) -> None:
    box, other = filled(mail, 4), mail.box("other")
    mail.send("x", to="other")
    mail.lease(box, holder="h1", limit=2)
    mail.lease(other, holder="h1")
    mail.lease(box, holder="h2", limit=1)
    assert sorted(mail.store.release_holder("h1")) == sorted([(box, 4), (other, 1)])
    assert mail.store.release_holder("h1") == []
    assert seqs(mail.lease(box, holder="h3")) == [1, 2, 4]


def test_a_member_that_lives_keeps_what_it_has(mail: MailClerk) -> None:
    box = filled(mail, 2)
    mail.lease(box, holder="h1", lease=30 * SECOND)
    for _ in range(3):
        mail.pass_time(20 * SECOND)
        assert mail.store.extend_leases("h1", lease=30 * SECOND) == 2
    assert mail.store.extend_leases("h2", lease=MINUTE) == 0
    assert mail.lease(box, holder="h2") == []
    mail.pass_time(31 * SECOND)
    assert mail.store.extend_leases("h1", lease=MINUTE) == 0, "too late"
    assert seqs(mail.lease(box, holder="h2")) == [1, 2]


def test_a_nack_gives_it_back_at_once_or_later(mail: MailClerk) -> None:
    box = filled(mail, 2)
    first, second = mail.lease(box)
    assert mail.store.settle_lease(box, first.lease_id, ack=False)
    assert mail.store.settle_lease(box, second.lease_id, ack=False, delay=MINUTE)
    [again] = mail.lease(box, holder="h2")
    assert (again.message.seq, again.attempt) == (1, 2)
    mail.pass_time(40 * SECOND)
    assert mail.store.sweep_mail().freed == 0
    mail.pass_time(21 * SECOND)
    assert mail.store.sweep_mail().changed == ((box, 0),)
    assert 2 in seqs(mail.lease(box, holder="h3"))


def test_strict_priority_also_for_what_comes_back(mail: MailClerk) -> None:
    box = mail.box()
    for priority, text in ((0, "n1"), (2, "c1"), (0, "n2"), (1, "u1")):
        mail.send(text, priority=Priority(priority))
    [critical] = mail.lease(box, limit=1)
    assert critical.message.payload == b"c1"
    mail.send("c2", priority=Priority.CRITICAL)
    mail.store.settle_lease(box, critical.lease_id, ack=False)
    assert [each.message.payload for each in mail.lease(box)] == [b"c1", b"c2", b"u1", b"n1", b"n2"]


def test_members_may_ask_for_some_priorities(mail: MailClerk) -> None:
    box = mail.box()
    mail.send("n")
    mail.send("u", priority=Priority.URGENT)
    assert [each.message.payload for each in mail.lease(box, priorities=[Priority.URGENT])] == [b"u"]
    assert [each.message.payload for each in mail.lease(box)] == [b"n"]


def test_deleted_and_expired_messages_are_handed_to_nobody(mail: MailClerk) -> None:
    box = filled(mail, 2)
    mail.send("short", ttl=30 * SECOND)
    leased = mail.lease(box, lease=20 * SECOND)
    assert mail.store.delete_message(box, 1)
    assert not mail.store.settle_lease(box, leased[0].lease_id, ack=True)
    mail.pass_time(31 * SECOND)
    assert seqs(mail.lease(box, holder="h2")) == [2]
    mail.store.sweep_mail()
    assert mail.rows("group_leases") == 1


def test_attempts_are_counted_and_the_last_makes_a_dead_letter(mail: MailClerk) -> None:
    box = mail.box()
    sent = mail.send(b"a\0b", priority=Priority.URGENT, headers=b"A: 1\r\n", sender="me", tags=("t",), ttl=9 * MINUTE)
    mail.lease(box, most_attempts=3)
    mail.pass_time(2 * MINUTE)
    mail.lease(box, most_attempts=3)
    mail.store.release_holder("h1")
    [last] = mail.lease(box, most_attempts=3)
    assert last.attempt == 3
    assert mail.store.settle_lease(box, last.lease_id, ack=False)
    assert mail.lease(box) == mail.ready(box) == []
    [found] = mail.store.dead_letters(LetterFilter(kind=LetterKind.MESSAGE)).items
    letter = mail.store.dead_letter(found.id, DEFAULT_WORKSPACE)
    assert (letter.subject, letter.code, letter.attempts) == (sent.message_id, "attempts_spent", 3)
    assert letter.payload_bytes == b"a\0b"
    about = dict(letter.payload)
    assert base64.b64decode(about["headers_base64"]) == b"A: 1\r\n"
    assert (about["mailbox"], about["group"], about["seq"], about["priority"]) == ("team.reviews", "g", 1, "urgent")
    assert (about["sender"], about["tags"], about["life_us"]) == ("me", ["t"], 540_000_000)


@pytest.mark.parametrize("how", ["sweep", "lease"])
def test_the_last_lease_that_ends_makes_one_too(mail: MailClerk, how: str) -> None:
    box = filled(mail, 2)
    mail.lease(box, limit=1, most_attempts=1, lease=SECOND)
    mail.pass_time(2 * SECOND)
    if how == "sweep":
        assert mail.store.sweep_mail().dead == 1
    else:
        assert seqs(mail.lease(box, limit=1, most_attempts=1)) == [2], "it goes on with the next"
    assert mail.texts(box) == ["2"]
    assert len(mail.store.dead_letters(LetterFilter()).items) == 1


def test_a_letter_of_one_group_takes_nothing_from_another(mail: MailClerk) -> None:
    box = filled(mail, 1)
    mail.lease(box, "b", limit=1)
    [bad] = mail.lease(box, "a", most_attempts=1)
    mail.store.settle_lease(box, bad.lease_id, ack=False)
    assert mail.texts(box) == ["1"]
    assert mail.lease(box, "a") == []
    [letter] = mail.store.dead_letters(LetterFilter()).items
    [done] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert done.code is None
    assert [(each.message.seq, each.attempt) for each in mail.lease(box, "a")] == [(1, 1)]


def test_a_redrive_keeps_the_message_and_gives_it_to_its_group_alone(mail: MailClerk) -> None:
    box = filled(mail, 3)
    bad, *_ = mail.lease(box, "a", most_attempts=1, limit=1)
    for each in mail.lease(box, "b"):
        mail.store.settle_lease(box, each.lease_id, ack=True)
    mail.store.settle_lease(box, bad.lease_id, ack=False)
    assert mail.texts(box) == ["2", "3"]
    [letter] = mail.store.dead_letters(LetterFilter()).items
    turn = mail.store.heads({box: None})[box].turn
    [done] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert done.code is None
    assert mail.store.heads({box: None})[box].turn > turn
    again = mail.lease(box, "a", limit=1)
    assert [(each.message.id, each.message.seq, each.attempt) for each in again] == [
        (bad.message.id, bad.message.seq, 1)
    ]
    assert mail.lease(box, "b") == []
    [twice] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert twice.code == "already_redriven"
    assert not mail.store.settle_lease(box, bad.lease_id, ack=True), "the old attempt is over"
    assert mail.store.settle_lease(box, again[0].lease_id, ack=True)
    assert mail.texts(box) == ["2", "3"]


def test_a_redrive_into_the_next_mailbox_of_that_name_or_nowhere(mail: MailClerk) -> None:
    box = filled(mail, 1)
    [bad] = mail.lease(box, most_attempts=1)
    mail.store.settle_lease(box, bad.lease_id, ack=False)
    [letter] = mail.store.dead_letters(LetterFilter()).items
    mail.store.delete_mailbox(DEFAULT_WORKSPACE, "team.reviews")
    [refused] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert refused.code == "not_redrivable"
    new = mail.box()
    mail.send("first")
    [done] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert done.code is None
    assert [(each.id, each.seq) for each in mail.ready(new)][1] == (bad.message.id, 2)


def test_a_redrive_takes_a_message_out_of_the_dead_mailbox_where_another_group_had_it(mail: MailClerk) -> None:
    box = filled(mail, 1)
    mail.lease(box, "b")
    [bad] = mail.lease(box, "a", most_attempts=1)
    mail.store.settle_lease(box, bad.lease_id, ack=False)
    [letter] = mail.store.dead_letters(LetterFilter()).items
    mail.store.delete_mailbox(DEFAULT_WORKSPACE, "team.reviews")
    new = mail.box()
    [done] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert done.code is None
    mail.store.sweep_mail()
    assert [each.id for each in mail.ready(new)] == [bad.message.id]


def test_a_redrive_of_a_message_that_has_just_expired_gives_it_its_life_again(mail: MailClerk) -> None:
    box = mail.box()
    mail.send("mortal", ttl=MINUTE)
    mail.lease(box, "b", lease=10 * MINUTE)
    [bad] = mail.lease(box, "a", most_attempts=1)
    mail.store.settle_lease(box, bad.lease_id, ack=False)
    [letter] = mail.store.dead_letters(LetterFilter()).items
    mail.pass_time(2 * MINUTE)
    [done] = mail.store.redrive_chunk([letter.id], DEFAULT_WORKSPACE, by="ops")
    assert done.code is None
    assert mail.store.sweep_mail().messages == 0
    assert [each.message.id for each in mail.lease(box, "a")] == [bad.message.id]


def test_a_group_that_was_forgotten_is_given_what_it_left_only_once(mail: MailClerk) -> None:
    box = filled(mail, 2)
    mail.lease(box, limit=1)
    mail.pass_time(timedelta(days=8))
    mail.store.sweep_mail()
    assert mail.rows("group_cursors") == 0
    again = mail.lease(box)
    assert [(each.message.seq, each.attempt) for each in again] == [(1, 2), (2, 1)]
    for each in again:
        assert mail.store.settle_lease(box, each.lease_id, ack=True)
    assert mail.texts(box) == []


def test_a_lease_names_its_mailbox(mail: MailClerk) -> None:
    box = filled(mail, 1)
    [leased] = mail.lease(box)
    assert mail.store.leased_mailbox(leased.lease_id).id == box
    for name in ("none", "a\0b"):
        with pytest.raises(NotFound):
            mail.store.leased_mailbox(name)
    mail.store.settle_lease(box, leased.lease_id, ack=True)
    with pytest.raises(NotFound):
        mail.store.leased_mailbox(leased.lease_id)


def test_a_group_that_nobody_asks_for_is_forgotten(mail: MailClerk) -> None:
    box = filled(mail, 1)
    [leased] = mail.lease(box, "a")
    mail.lease(box, "old")
    mail.store.release_holder("h1")
    mail.pass_time(timedelta(days=6))
    assert mail.lease(box, "a", holder="h2"), "this one is asked for"
    mail.pass_time(timedelta(days=2))
    mail.store.sweep_mail()
    [leased] = mail.lease(box, "a")
    assert mail.store.settle_lease(box, leased.lease_id, ack=True)
    assert mail.texts(box) == [], "and what it left behind does not keep a message"


def test_concurrent_members_never_get_the_same(mail: MailClerk) -> None:
    box = filled(mail, 120)
    stores = [open_store(mail.url) for _ in range(4)]

    def member(number: int) -> list[int]:
        store, mine = stores[number], []
        while True:
            leased = store.lease_messages(box, "g", holder=f"h{number}", limit=7, lease=MINUTE, most_attempts=5)
            if not leased:
                return mine
            for each in leased:
                mine.append(each.message.seq)
                assert store.settle_lease(box, each.lease_id, ack=True)

    with ThreadPoolExecutor(len(stores)) as pool:
        handed = Counter(seq for share in pool.map(member, range(len(stores))) for seq in share)
    assert handed == Counter(range(1, 121))
    assert mail.rows("messages") == mail.rows("group_leases") == 0
    for store in stores:
        store.close()


def test_a_group_is_given_what_is_behind_a_message_that_expires_while_it_asks(
    mail: MailClerk, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = mail.box()
    mail.send("mortal", ttl=MINUTE)
    mail.send("lasting")
    fetch = mail_groups.fetch

    def late(connection: Connection, ids: Sequence[str]) -> dict[str, Message]:
        monkeypatch.setattr(mail_groups, "fetch", fetch)
        connection.execute(update(messages).where(messages.c.seq == 1).values(expires_at=messages.c.sent_at))
        return fetch(connection, ids)

    monkeypatch.setattr(mail_groups, "fetch", late)
    [leased] = mail.lease(box, limit=1)
    assert leased.message.payload == b"lasting"
    assert mail.store.sweep_mail().messages == 1
