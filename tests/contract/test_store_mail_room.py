"""A workspace has so many mailboxes and no more: what has gone takes no room, whoever is at it at the same time."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.ids import WorkspaceId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import LimitReached
from oah.ports.store import Store
from tests.support.mail_clerk import MINUTE, SECOND, MailClerk
from tests.support.store_clerk import Clerk


def fits(mail: MailClerk, address: str, *, most: int, store: Store | None = None, **more: object) -> bool:
    """Whether there was room for a new one."""
    try:
        return (store or mail.store).create_mailbox(mail.new_box(address, **more), most=most).new  # type: ignore[arg-type]
    except LimitReached:
        return False


def counted(mail: MailClerk) -> int:
    return int(mail.behind.query("SELECT mailboxes FROM mailbox_counters WHERE workspace_id = 'default'")[0][0])


def test_what_has_expired_takes_no_room_before_and_after_the_sweep(mail: MailClerk) -> None:
    assert all(fits(mail, name, most=3, ttl=ttl) for name, ttl in (("a", MINUTE), ("b", MINUTE), ("c", None)))
    assert not fits(mail, "d", most=3)
    mail.pass_time(2 * MINUTE)
    assert fits(mail, "d", most=3), "nobody has swept"
    mail.audit()
    mail.store.sweep_mail()
    mail.audit()
    assert fits(mail, "e", most=3)
    assert not fits(mail, "f", most=3)
    assert (counted(mail), mail.rows("mailboxes")) == (3, 3)


def test_a_name_that_is_taken_again_counts_once(mail: MailClerk) -> None:
    assert all(fits(mail, name, most=2, ttl=MINUTE) for name in ("a", "b"))
    for _ in range(3):
        mail.pass_time(2 * MINUTE)
        assert fits(mail, "a", most=2, ttl=MINUTE)
        assert fits(mail, "b", most=2, ttl=MINUTE)
        assert not fits(mail, "c", most=2)
    assert not mail.store.create_mailbox(mail.new_box("a"), most=2).new, "what is there is there"
    assert counted(mail) == 2


def test_a_mailbox_that_is_deleted_leaves_its_room_at_once(mail: MailClerk) -> None:
    for name in "abcdefgh":
        assert fits(mail, name, most=1)
        assert not fits(mail, "x", most=1)
        assert mail.store.delete_mailbox(DEFAULT_WORKSPACE, name)
        assert not mail.store.delete_mailbox(DEFAULT_WORKSPACE, name)
    assert counted(mail) == 0
    mail.pass_time(SECOND)
    mail.store.sweep_mail()
    assert (counted(mail), mail.rows("mailboxes")) == (0, 0)


def test_a_limit_that_is_lowered_holds_until_there_is_room(mail: MailClerk) -> None:
    assert all(fits(mail, f"m{n}", most=9, ttl=MINUTE if n < 6 else None) for n in range(9))
    assert not fits(mail, "x", most=4)
    mail.pass_time(2 * MINUTE)
    assert fits(mail, "x", most=4), "three live"
    assert not fits(mail, "y", most=4)


def test_sessions_and_other_workspaces_take_no_room(mail: MailClerk) -> None:
    session = Clerk(mail.store, mail.url).session("ses_1")
    mail.send("to an agent", to=session)
    other = WorkspaceId("ws_other")
    mail.store.create_workspace(other, "other", weight=1, max_active_runs=None, max_queued_runs=None)
    assert mail.store.create_mailbox(mail.new_box("theirs", workspace=other), most=1).new
    assert fits(mail, "a", most=1)
    assert not fits(mail, "b", most=1)


@pytest.mark.parametrize("most", [1, 5])
def test_of_many_that_create_at_once_as_many_find_room_as_there_is(mail: MailClerk, most: int) -> None:
    """In part there is room only where something has expired, and nobody has swept."""
    for n in range(most - 1):
        assert fits(mail, f"old{n}", most=most, ttl=MINUTE)
    mail.pass_time(2 * MINUTE)
    stores = [open_store(mail.url) for _ in range(5)]
    with ThreadPoolExecutor(len(stores)) as pool:
        answers = list(
            pool.map(lambda n: fits(mail, f"new{n}", most=most, store=stores[n % 5], ttl=MINUTE), range(4 * most))
        )
    assert answers.count(True) == most
    for store in stores:
        store.close()


def test_creates_deletes_ends_and_sweeps_at_once(mail: MailClerk) -> None:
    """Few names, so that they meet on the same rows: nobody waits for ever, none too many, and the count is right."""
    most, names = 4, "abcdefg"
    stores = [open_store(mail.url) for _ in range(4)]

    def work(number: int) -> int:
        chance, made = random.Random(number), 0
        for _ in range(20):
            name = chance.choice(names)
            match chance.randrange(5):
                case 0:
                    stores[number].delete_mailbox(DEFAULT_WORKSPACE, name)
                case 1:
                    stores[number].sweep_mail(limit=3)
                case 2:
                    mail.behind.query(f"UPDATE mailboxes SET expires_at = created_at WHERE address = '{name}'")
                case _:
                    made += fits(mail, name, most=most, store=stores[number], ttl=MINUTE)
        return made

    with ThreadPoolExecutor(len(stores)) as pool:
        assert sum(pool.map(work, range(len(stores)))) > most, "room was made, and taken again"
    mail.audit()
    assert len(mail.store.mailboxes(DEFAULT_WORKSPACE).items) <= most
    mail.behind.query("UPDATE mailboxes SET expires_at = created_at")
    while mail.store.sweep_mail().mailboxes:
        pass
    assert (counted(mail), mail.rows("mailboxes")) == (0, 0)
    for store in stores:
        store.close()
