"""What mailboxes promise on both databases: names, order, expiry to the second, limits, identity of what was sent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from oah.adapters.sql import mail_reads
from oah.adapters.sql.store import open_store
from oah.core.model.ids import MailboxId, WorkspaceId
from oah.core.model.message import Message, Priority
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import Conflict, InvalidRequest, LimitReached, NotFound, RequestError
from oah.ports.mailboxes import Head, Sent, Watermarks
from tests.support.mail_clerk import MINUTE, SECOND, MailClerk
from tests.support.store_clerk import Clerk

T = TypeVar("T")
U, C, N = Priority.URGENT, Priority.CRITICAL, Priority.NORMAL


def code(answer: object) -> str:
    assert isinstance(answer, RequestError), answer
    return answer.code


# --- mailboxes ---


def test_the_first_create_of_a_name_counts(mail: MailClerk) -> None:
    first = mail.store.create_mailbox(mail.new_box("a.b", ttl=MINUTE, most=5))
    second = mail.store.create_mailbox(mail.new_box("a.b", ttl=9 * MINUTE, most=7))
    assert first.new
    assert not second.new
    assert second.mailbox == first.mailbox
    assert (first.mailbox.ttl, first.mailbox.max_messages, first.mailbox.last_seq) == (MINUTE, 5, 0)
    assert mail.store.mailbox(DEFAULT_WORKSPACE, "a.b") == first.mailbox


def test_of_concurrent_creates_exactly_one_is_new(mail: MailClerk) -> None:
    stores = [open_store(mail.url) for _ in range(6)]
    for address in ("one", "two", "three"):
        new = [mail.new_box(address) for _ in stores]
        with ThreadPoolExecutor(len(stores)) as pool:
            made = list(pool.map(lambda pair: pair[0].create_mailbox(pair[1], most=100), zip(stores, new, strict=True)))
        assert [each.new for each in made].count(True) == 1
        assert len({each.mailbox.id for each in made}) == 1
    for store in stores:
        store.close()


def test_a_new_mailbox_under_an_expired_name_shows_nothing_old(mail: MailClerk) -> None:
    old = mail.box("a.b", ttl=MINUTE)
    mail.send("old", to="a.b", dedup_key="k")
    mail.send("later", to="a.b", delay=MINUTE)
    mail.pass_time(MINUTE)
    new = mail.store.create_mailbox(mail.new_box("a.b", ttl=MINUTE))
    assert new.new
    assert new.mailbox.id != old
    assert mail.ready(new.mailbox.id) == []
    assert not mail.send("anew", to="a.b", dedup_key="k").duplicate
    with pytest.raises(NotFound):
        mail.ready(old)
    mail.pass_time(timedelta(seconds=1))
    mail.store.sweep_mail()
    assert mail.texts(new.mailbox.id) == ["anew"]
    assert (mail.rows("mailboxes"), mail.rows("messages"), mail.rows("message_keys")) == (1, 1, 1)


def test_a_mailbox_deleted_is_gone_at_once_and_its_name_is_free(mail: MailClerk) -> None:
    box = mail.box("a.b")
    mail.send("x", to="a.b")
    mail.lease(box)
    assert mail.store.delete_mailbox(DEFAULT_WORKSPACE, "a.b")
    assert not mail.store.delete_mailbox(DEFAULT_WORKSPACE, "a.b")
    assert mail.store.heads({box: None})[box].gone
    assert code(mail.try_send("x", to="a.b")) == "mailbox_not_found"
    with pytest.raises(NotFound):
        mail.store.mailbox(DEFAULT_WORKSPACE, "a.b")
    assert mail.store.create_mailbox(mail.new_box("a.b")).new
    swept = mail.store.sweep_mail()
    assert (swept.gone, swept.mailboxes, swept.messages) == ((box,), 1, 1)
    assert mail.store.heads({box: None})[box].gone, "it has no row any more"
    assert mail.rows("group_leases") == mail.rows("group_cursors") == 0


def test_workspaces_do_not_see_each_other(mail: MailClerk) -> None:
    other = WorkspaceId("ws_other")
    mail.store.create_workspace(other, "other", weight=1, max_active_runs=None, max_queued_runs=None)
    mail.box("a.b")
    with pytest.raises(NotFound):
        mail.store.mailbox(other, "a.b")
    theirs = mail.store.create_mailbox(mail.new_box("a.b", workspace=other))
    assert theirs.new
    mail.send("ours", to="a.b")
    assert mail.ready(theirs.mailbox.id) == []
    assert [each.address for each in mail.store.mailboxes(other).items] == ["a.b"]
    assert not mail.store.delete_mailbox(WorkspaceId("ws_none"), "a.b")
    with pytest.raises(NotFound):
        mail.store.create_mailbox(mail.new_box("x", workspace=WorkspaceId("ws_none")))


def test_listing_mailboxes_pages_by_address_and_hides_private_ones(mail: MailClerk) -> None:
    for name in ("c", "a", "b", "d"):
        mail.box(name, ttl=MINUTE if name == "d" else None)
    private = mail.new_box("m-1")
    mail.store.create_mailbox(type(private)(**{f: getattr(private, f) for f in private.__slots__} | {"public": False}))
    page = mail.store.mailboxes(DEFAULT_WORKSPACE, limit=3)
    assert [each.address for each in page.items] == ["a", "b", "c"]
    rest = mail.store.mailboxes(DEFAULT_WORKSPACE, cursor=page.next_cursor, limit=3)
    assert ([each.address for each in rest.items], rest.next_cursor) == (["d"], None)
    mail.pass_time(MINUTE)
    assert [each.address for each in mail.store.mailboxes(None, public=False).items] == ["a", "b", "c", "m-1"]
    with pytest.raises(InvalidRequest):
        mail.store.mailboxes(None, cursor="nonsense")


def test_a_workspace_has_so_many_mailboxes(mail: MailClerk) -> None:
    for name in ("a", "b"):
        mail.store.create_mailbox(mail.new_box(name), most=2)
    with pytest.raises(LimitReached) as refused:
        mail.store.create_mailbox(mail.new_box("c"), most=2)
    assert refused.value.code == "mailboxes_full"
    assert not mail.store.create_mailbox(mail.new_box("a"), most=2).new, "what is there is there"


# --- expiry at the edge: everybody agrees ---


def test_a_mailbox_a_second_before_its_end(mail: MailClerk) -> None:
    """The end is put a second ahead before each question."""
    box = mail.box("a.b", ttl=MINUTE)
    seq = mail.send("x", to="a.b").seq or 0

    def still(ask: Callable[[], T]) -> T:
        mail.ends_in("mailboxes", SECOND)
        return ask()

    assert not still(lambda: mail.store.heads({box: None}))[box].gone
    assert isinstance(still(lambda: mail.try_send("y", to="a.b")), Sent)
    assert still(lambda: mail.texts(box)) == ["x", "y"]
    assert len(still(lambda: mail.store.list_messages(box)).items) == 2
    assert still(lambda: mail.store.peek_message(box, seq)).payload == b"x"
    assert still(lambda: mail.lease(box))
    assert still(lambda: mail.store.delete_message(box, seq))
    assert still(lambda: mail.store.mailbox(DEFAULT_WORKSPACE, "a.b")).id == box
    assert not still(lambda: mail.store.create_mailbox(mail.new_box("a.b"))).new
    assert still(lambda: mail.store.sweep_mail()).mailboxes == 0


def test_a_mailbox_a_second_after_its_end(mail: MailClerk) -> None:
    box = mail.box("a.b", ttl=MINUTE)
    seq = mail.send("x", to="a.b").seq or 0
    mail.ends_in("mailboxes", -SECOND)
    assert mail.store.heads({box: None})[box].gone
    assert code(mail.try_send("y", to="a.b")) == "mailbox_expired"
    for call in (
        lambda: mail.ready(box),
        lambda: mail.store.list_messages(box),
        lambda: mail.store.peek_message(box, seq),
        lambda: mail.store.purge_messages(box),
        lambda: mail.lease(box),
        lambda: mail.store.mailbox(DEFAULT_WORKSPACE, "a.b"),
    ):
        with pytest.raises(NotFound):
            call()
    assert not mail.store.delete_message(box, seq)
    assert not mail.store.delete_mailbox(DEFAULT_WORKSPACE, "a.b")
    assert mail.store.mailboxes(None, public=False).items == ()


def test_a_message_a_second_before_and_after_its_end(mail: MailClerk) -> None:
    box = mail.box()
    seq = mail.send("x", ttl=MINUTE).seq or 0

    def seen(left: timedelta, group: str) -> list[int]:
        """How many of it whoever asks finds: reader, list, peek, members of a group, sweep."""

        def ask(question: Callable[[], int]) -> int:
            mail.ends_in("messages", left)
            return question()

        def peeked() -> int:
            try:
                return len(mail.store.peek_message(box, seq).payload)
            except NotFound:
                return 0

        return [
            ask(lambda: len(mail.ready(box))),
            ask(lambda: len(mail.store.list_messages(box).items)),
            ask(peeked),
            ask(lambda: len(mail.lease(box, group))),
            ask(lambda: 1 - mail.store.sweep_mail().messages),
        ]

    assert seen(SECOND, "early") == [1] * 5
    assert seen(-SECOND, "late") == [0] * 5
    second = mail.send("y", ttl=MINUTE).seq or 0
    mail.ends_in("messages", -SECOND)
    assert not mail.store.delete_message(box, second)
    mail.ends_in("messages", SECOND)
    assert mail.store.delete_message(box, second)


# --- order ---


def test_priorities_are_strict_and_fifo_inside_each(mail: MailClerk) -> None:
    box = mail.box()
    chance = random.Random(5)
    sent = [(mail.send(str(n), priority=chance.choice(list(Priority))).seq, n) for n in range(60)]
    assert [seq for seq, _ in sent] == list(range(1, 61)), "dense"
    found = mail.ready(box)
    assert [(-each.priority, each.seq) for each in found] == sorted((-each.priority, each.seq) for each in found)
    assert sorted(int(each.payload) for each in found) == list(range(60))
    listed = []
    cursor = None
    while True:
        page = mail.store.list_messages(box, cursor=cursor, limit=7)
        listed += page.items
        if (cursor := page.next_cursor) is None:
            break
    assert [each.id for each in listed] == [each.id for each in found]
    assert all(each.payload == b"" and each.size for each in listed)
    assert [each.message.id for each in mail.lease(box)] == [each.id for each in found]


def test_a_reader_goes_on_where_it_was_in_each_priority(mail: MailClerk) -> None:
    box = mail.box()
    for text in ("n1", "n2", "n3"):
        mail.send(text)
    had = Watermarks()
    [first] = mail.ready(box, had, limit=1)
    had = had.after(first)
    mail.send("c1", priority=C)
    mail.send("u1", priority=U)
    assert [each.payload for each in mail.ready(box, had)] == [b"c1", b"u1", b"n2", b"n3"]
    assert [each.payload for each in mail.ready(box, had, priorities=[U])] == [b"u1"]
    for each in mail.ready(box, had):
        had = had.after(each)
    assert mail.ready(box, had) == []


def test_a_reader_takes_so_many_bytes_but_one_message_at_least(mail: MailClerk) -> None:
    box = mail.box()
    for _ in range(4):
        mail.send(b"\0" * 1_000)
    assert len(mail.ready(box, most_bytes=2_500)) == 2
    assert len(mail.ready(box, most_bytes=10)) == 1
    assert len(mail.lease(box, most_bytes=2_500)) == 2


def test_payloads_are_bytes_end_to_end(mail: MailClerk) -> None:
    box = mail.box()
    for payload in (b"", b"\0", bytes(range(256)) * 9, b"a\r\nb", b"\xff\xfe", b'{"msg_id":1}'):
        sent = mail.send(payload, headers=b"A: \xff\r\nA: b\r\n", sender="key_1", tags=("t", "é"), key=None)
        assert sent.seq is not None
        whole = mail.store.peek_message(box, sent.seq)
        assert (whole.payload, whole.headers, whole.size) == (payload, b"A: \xff\r\nA: b\r\n", len(payload))
        assert (whole.sender, whole.tags) == ("key_1", ("t", "é"))


# --- sending ---


def test_a_message_that_cannot_be_stored_fails_alone(mail: MailClerk) -> None:
    box = mail.box(most=2)
    answers = mail.store.send_messages(
        [
            mail.new("1"),
            mail.new("?", to="no.such"),
            mail.new("?", sender="a\0b"),
            mail.new("?", to="a\0b"),
            mail.new("?", to="ses_none"),
            mail.new("2"),
            mail.new("3"),
        ]
    )
    assert [each.seq if isinstance(each, Sent) else each.code for each in answers] == [
        1, "mailbox_not_found", "invalid_request", "invalid_request", "mailbox_not_found", 2, "mailbox_full",
    ]  # fmt: skip
    assert mail.texts(box) == ["1", "2"]


def test_257_are_too_many_and_none_is_lost(mail: MailClerk) -> None:
    box = mail.box(most=256)
    answers = mail.store.send_messages([mail.new(str(n)) for n in range(257)])
    assert [isinstance(each, Sent) for each in answers] == [True] * 256 + [False]
    refused = answers[-1]
    assert isinstance(refused, LimitReached)
    assert (refused.code, refused.retryable) == ("mailbox_full", True)
    assert mail.texts(box) == [str(n) for n in range(256)]
    mail.store.delete_message(box, 1)
    assert mail.send("again").seq == 257


def test_what_has_expired_or_is_delayed_and_room(mail: MailClerk) -> None:
    mail.box(most=2)
    mail.send("short", ttl=30 * SECOND)
    mail.send("later", delay=MINUTE)
    assert code(mail.try_send("third")) == "mailbox_full"
    mail.pass_time(31 * SECOND)
    assert mail.send("third").seq == 2


def test_a_senders_own_key_is_remembered_for_its_window(mail: MailClerk) -> None:
    box = mail.box()
    first = mail.send("one", dedup_key="k", dedup_window=MINUTE)
    again = mail.send("two", dedup_key="k", dedup_window=MINUTE)
    assert (again.message_id, again.seq, again.duplicate) == (first.message_id, first.seq, True)
    both = mail.store.send_messages([mail.new("a", dedup_key="j"), mail.new("b", dedup_key="j")])
    assert [each.duplicate for each in both if isinstance(each, Sent)] == [False, True]
    mail.store.delete_message(box, first.seq or 0)
    assert mail.send("three", dedup_key="k", dedup_window=MINUTE).duplicate, "longer than the message"
    mail.box("other")
    assert not mail.send("x", to="other", dedup_key="k").duplicate
    mail.pass_time(40 * SECOND)
    assert mail.send("four", dedup_key="k").duplicate
    mail.pass_time(21 * SECOND)
    assert not mail.send("five", dedup_key="k", dedup_window=MINUTE).duplicate
    mail.store.sweep_mail()
    assert mail.rows("message_keys") == 3, "the one of the five minutes, of the other mailbox, the newest"


def test_of_a_key_only_the_newest_stays(mail: MailClerk) -> None:
    box = mail.box()
    other = mail.box("other")
    for n in range(3):
        mail.send(f"s{n}", key="status", priority=Priority(n))
    mail.send("x", key="y")
    mail.send("theirs", key="status", to="other")
    mail.store.send_messages([mail.new("a", key="k"), mail.new("b", key="k"), mail.new("c")])
    assert mail.texts(box) == ["s2", "x", "b", "c"]
    assert mail.texts(other) == ["theirs"]
    mail.lease(box)
    mail.send("s3", key="status", delay=MINUTE)
    assert "s2" in mail.texts(box), "a delayed one replaces when it is due"
    mail.pass_time(MINUTE)
    mail.store.sweep_mail()
    assert mail.texts(box) == ["x", "b", "c", "s3"]
    assert [each.key for each in mail.store.list_messages(box, key="status").items] == ["status"]


def test_a_delayed_message_is_there_when_it_is_due_and_in_that_order(mail: MailClerk) -> None:
    box = mail.box()
    late = mail.send("late", delay=2 * MINUTE)
    soon = mail.send("soon", delay=MINUTE)
    short = mail.send("never", delay=MINUTE, ttl=30 * SECOND)
    assert [each.seq for each in (late, soon, short)] == [None] * 3
    mail.send("now")
    assert mail.store.sweep_mail().due == 0
    mail.pass_time(40 * SECOND)
    mail.store.sweep_mail()
    assert mail.texts(box) == ["now"]
    mail.pass_time(21 * SECOND)
    swept = mail.store.sweep_mail()
    assert (swept.due, swept.changed) == (1, ((box, 2),))
    mail.pass_time(MINUTE)
    assert mail.store.sweep_mail().changed == ((box, 3),)
    assert mail.texts(box) == ["now", "soon", "late"]
    assert mail.store.heads({box: None})[box].last_seq == 3
    assert mail.rows("messages") == 3


def test_listing_by_tag_and_time(mail: MailClerk) -> None:
    box = mail.box()
    mail.send("a", tags=("red", "x"))
    mail.send("b", tags=("redder",))
    mail.send("c", tags=())
    sent = mail.store.peek_message(box, 2).sent_at
    assert [each.seq for each in mail.store.list_messages(box, tag="red").items] == [1]
    assert mail.store.list_messages(box, tag="a\0").items == ()
    assert [each.seq for each in mail.store.list_messages(box, since=sent).items] == [3]
    for cursor in ("x", "1", "1.x", "²." + "1", "1." + "9" * 30):
        with pytest.raises(InvalidRequest):
            mail.store.list_messages(box, cursor=cursor)


# --- deleting ---


def test_delete_says_whether_something_was_deleted(mail: MailClerk) -> None:
    box, other = mail.box(), mail.box("other")
    seq = mail.send("x").seq or 0
    mail.send("y", to="other")
    mail.send("z", to="other")
    assert not mail.store.delete_message(other, 99)
    assert not mail.store.delete_message(MailboxId("none"), seq)
    assert mail.store.delete_message(box, seq)
    assert not mail.store.delete_message(box, seq)
    assert not mail.store.delete_message(box, 2), "a number of another mailbox"
    assert mail.texts(other) == ["y", "z"]


def test_purge_takes_all_and_the_numbers_go_on(mail: MailClerk) -> None:
    box = mail.box()
    mail.send("expired", ttl=SECOND)
    mail.pass_time(2 * SECOND)
    for _ in range(3):
        mail.send("x", priority=U)
    mail.send("later", delay=MINUTE)
    mail.lease(box)
    assert mail.store.purge_messages(box) == 4
    assert mail.store.purge_messages(box) == 0
    assert mail.ready(box) == []
    assert mail.send("y").seq == 5
    assert [each.message.payload for each in mail.lease(box)] == [b"y"]


def test_the_mailbox_of_a_session_is_its_agents(clerk: Clerk) -> None:
    mail = MailClerk(clerk.store, clerk.url)
    session = clerk.session("ses_1")
    sent = mail.send("hello", to=session)
    assert (sent.seq, sent.session_id) == (1, session)
    box = mail.store.mailbox(DEFAULT_WORKSPACE, session)
    assert box.session_id == session
    assert mail.texts(box.id) == ["hello"]
    for call in (
        lambda: mail.lease(box.id),
        lambda: mail.store.purge_messages(box.id),
        lambda: mail.store.delete_mailbox(DEFAULT_WORKSPACE, session),
    ):
        with pytest.raises(Conflict) as refused:
            call()
        assert refused.value.code == "session_mailbox"
    assert mail.store.delete_message(box.id, 1), "withdrawn"
    assert not mail.store.delete_message(box.id, 1)
    assert mail.texts(box.id) == []
    answer = mail.store.send_messages([mail.new("x", to=session), mail.new("y", to=session)], session_messages=1)
    assert [each.seq if isinstance(each, Sent) else each.code for each in answer] == [2, "mailbox_full"]


def test_heads_and_figures(mail: MailClerk) -> None:
    box, short = mail.box(), mail.box("short", ttl=MINUTE)
    mail.send("x")
    heads = mail.store.heads({box: None, short: None, MailboxId("none"): None})
    assert heads.pop(MailboxId("none")) == Head(0, gone=True)
    assert set(heads) == {box, short}
    assert (heads[box].last_seq, heads[box].gone, heads[box].expires_in) == (1, False, None)
    left = heads[short].expires_in
    assert left is not None
    assert timedelta(0) < left <= MINUTE
    assert mail.store.heads({}) == {}
    assert mail.store.heads(heads) == {}, "all is as it was"
    figures = mail.store.mail_figures()
    assert (figures.mailboxes, figures.messages) == (2, 1)
    mail.send("y", to="short")
    assert {name: head.last_seq for name, head in mail.store.heads(heads).items()} == {short: 1}
    mail.pass_time(2 * MINUTE)
    assert {name: head.gone for name, head in mail.store.heads(heads).items()} == {short: True}


def test_a_reader_looks_behind_what_is_deleted_while_it_reads(mail: MailClerk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps when it is told that there is nothing: what is there must not wait for the next send."""
    box = mail.box()
    for text in ("1", "2", "3"):
        mail.send(text)
    fetch = mail_reads.fetch

    def late(connection: Connection, ids: Sequence[str]) -> dict[str, Message]:
        monkeypatch.setattr(mail_reads, "fetch", fetch)
        assert mail.store.delete_message(box, 1) and mail.store.delete_message(box, 2)
        return fetch(connection, ids)

    monkeypatch.setattr(mail_reads, "fetch", late)
    assert mail.ready(box, limit=2), "a snapshot that still has them, or the third"
    assert mail.texts(box) == ["3"]
