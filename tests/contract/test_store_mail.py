"""What mailboxes promise on both databases."""

from __future__ import annotations

from datetime import timedelta

from oah.core.model.ids import MailboxId, MessageId, WorkspaceId
from oah.core.model.message import Priority
from oah.ports.mailboxes import NewMailbox, NewMessage, Watermarks
from tests.support.store_clerk import Clerk

WS = WorkspaceId("default")


def test_smoke(clerk: Clerk) -> None:
    store = clerk.store
    made = store.create_mailbox(
        NewMailbox(
            id=MailboxId("b1"), workspace_id=WS, address="a.b", public=True, ttl=timedelta(hours=1), max_messages=10
        ),
        most=5,
    )
    assert made.new
    box = made.mailbox.id
    sent = store.send_messages(
        [
            NewMessage(
                id=MessageId(f"m{n}"),
                workspace_id=WS,
                address="a.b",
                payload=b"x\0" * n,
                priority=Priority(n % 3),
                tags=("t",),
                dedup_key=f"k{n}",
                key="one" if n > 7 else None,
            )
            for n in range(10)
        ]
    )
    assert [s.seq for s in sent] == list(range(1, 11))
    print(store.ready_messages(box, Watermarks(), limit=20))
    assert [m.seq for m in store.ready_messages(box, Watermarks(), limit=20)] == [3, 6, 2, 5, 8, 1, 4, 7, 10]
    assert len(store.list_messages(box, tag="t").items) == 9
    leased = store.lease_messages(box, "g", holder="h", limit=3, lease=timedelta(seconds=5), most_attempts=2)
    assert [l.message.seq for l in leased] == [3, 6, 2]
    assert store.settle_lease(box, leased[0].lease_id, ack=True)
    assert not store.settle_lease(box, leased[0].lease_id, ack=True)
    assert store.settle_lease(box, leased[1].lease_id, ack=False)
    assert store.extend_leases("h", lease=timedelta(seconds=9)) == 1
    assert store.release_holder("h") == [(box, 10)]
    assert store.delete_message(box, 5)
    assert not store.delete_message(box, 5)
    assert store.sweep_mail().messages == 0
    print(store.heads([box]), store.mail_figures())
    assert store.purge_messages(box) == 7
    assert store.delete_mailbox(WS, "a.b")
    assert store.sweep_mail().mailboxes == 1
