"""Senders, readers and members all at once, each with a store of its own: nothing lost, nothing twice, in order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from oah.adapters.sql.store import open_store
from oah.core.model.message import Priority
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.mailboxes import Sent, Watermarks
from oah.ports.store import Store
from tests.support.mail_clerk import MINUTE, MailClerk
from tests.support.waiting import eventually

SENDERS, MESSAGES = 4, 60


def send_all(
    mail: MailClerk, store: Store, number: int, boxes: list[str]
) -> dict[str, list[tuple[Priority, int, bytes]]]:
    """A sender's messages, in batches over several mailboxes, as the store numbered them."""
    chance, told = random.Random(number), defaultdict(list)
    left = [f"{number}.{n}".encode() for n in range(MESSAGES)]
    while left:
        batch = [
            mail.new(left.pop(0), to=chance.choice(boxes), priority=Priority(chance.randrange(3)))
            for _ in range(min(len(left), chance.randrange(1, 6)))
        ]
        for message, answer in zip(batch, store.send_messages(batch), strict=True):
            assert isinstance(answer, Sent), answer
            assert answer.seq is not None
            told[message.address].append((message.priority, answer.seq, message.payload))
    return told


def test_the_seam_between_what_is_stored_and_what_comes(mail: MailClerk) -> None:
    boxes = {name: mail.box(name) for name in ("a", "b", "c")}
    mail.store.send_messages([mail.new(b"old", to="a", priority=Priority(n % 3)) for n in range(9)])
    stores = [open_store(mail.url) for _ in range(SENDERS + 2)]
    sending = threading.Event()
    sending.set()

    def read(store: Store) -> list[tuple[Priority, int, bytes]]:
        had, seen = Watermarks(), []
        while True:
            last = not sending.is_set()
            found = store.ready_messages(boxes["a"], had, limit=5)
            for message in found:
                assert message.seq > had.had.get(message.priority, 0), "in order, and none twice"
                seen.append((message.priority, message.seq, message.payload))
                had = had.after(message)
            if last and not found:
                return seen

    with ThreadPoolExecutor(SENDERS + 2) as pool:
        readers = [pool.submit(read, store) for store in stores[SENDERS:]]
        senders = [pool.submit(send_all, mail, stores[n], n, list(boxes)) for n in range(SENDERS)]
        told = [each.result() for each in senders]
        sending.clear()
        seen = [each.result() for each in readers]
    for name, box in boxes.items():
        sent = sorted(each for one in told for each in one[name])
        stored = sorted((m.priority, m.seq, m.payload) for m in mail.ready(box, limit=1_000) if m.payload != b"old")
        assert stored == sent, "what a sender was told is what is there"
        numbers = sorted(m.seq for m in mail.ready(box, limit=1_000))
        assert numbers == list(range(1, len(numbers) + 1)), "dense"
    everything = sorted((m.priority, m.seq, m.payload) for m in mail.ready(boxes["a"], limit=1_000))
    for one in seen:
        assert sorted(one) == everything, "each exactly once"
    for each in told:  # a sender's own messages stay in its order
        for messages in each.values():
            assert [seq for _, seq, _ in messages] == sorted(seq for _, seq, _ in messages)
    for store in stores:
        store.close()


def test_everything_at_once_keeps_the_rows_right(mail: MailClerk) -> None:
    """Sends, keys, leases, nacks, deaths, deletes, purges, sweeps: no deadlock, and the audit at the end."""
    names = ["a", "b"]
    for name in names:
        mail.box(name, most=50)
    stores = [open_store(mail.url) for _ in range(5)]

    def play(number: int) -> int:
        store, chance, moves = stores[number], random.Random(number), 0
        for _ in range(40):
            boxes = {name: store.mailbox(DEFAULT_WORKSPACE, name).id for name in names}
            box = boxes[chance.choice(names)]
            move = chance.randrange(10)
            if move < 4:
                batch = [
                    mail.new(
                        to=chance.choice(names),
                        key=chance.choice([None, "k"]),
                        dedup_key=chance.choice([None, f"d{chance.randrange(20)}"]),
                        delay=chance.choice([None, None, MINUTE / 10_000]),
                        ttl=chance.choice([None, MINUTE / 1_000]),
                    )
                    for _ in range(4)
                ]
                store.send_messages(batch)
            elif move < 7:
                for leased in store.lease_messages(
                    box, f"g{chance.randrange(2)}", holder=f"h{number}", limit=5, lease=MINUTE / 600, most_attempts=2
                ):
                    store.settle_lease(box, leased.lease_id, ack=chance.random() < 0.5)
            elif move == 7:
                store.sweep_mail()
            elif move == 8:
                store.extend_leases(f"h{chance.randrange(5)}", lease=MINUTE / 600)
                store.release_holder(f"h{chance.randrange(5)}")
            elif chance.random() < 0.2:
                store.purge_messages(box)
            else:
                for message in store.ready_messages(box, Watermarks(), limit=2):
                    store.delete_message(box, message.seq)
            moves += 1
        return moves

    with ThreadPoolExecutor(len(stores)) as pool:
        assert list(pool.map(play, range(len(stores)))) == [40] * 5
    mail.audit()
    for store in stores:
        store.close()

    def settled() -> bool:
        mail.store.sweep_mail()
        expired = mail.behind.query("SELECT count(*) FROM messages WHERE expires_at IS NOT NULL")[0][0]
        delayed = mail.behind.query("SELECT count(*) FROM messages WHERE seq IS NULL")[0][0]
        held = mail.behind.query("SELECT count(*) FROM group_leases WHERE until IS NOT NULL")[0][0]
        return expired == delayed == held == 0

    eventually(settled, within=10)
