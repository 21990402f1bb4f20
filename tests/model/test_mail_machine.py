"""A small model of mailboxes beside the real ones: sends, readers, groups, deaths, time, in any order.

The model is a list of messages, a set of what each group is done with, and a clock; it is written from the words of the
port, not from the statements. Readers go on where they were, so what they have had is compared message by message.
Its clock counts minutes: the real one goes on meanwhile, by what a case takes.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oah.adapters.sql.store import open_store
from oah.core.model.message import Priority
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import NotFound
from oah.ports.dead_letters import LetterFilter
from oah.ports.mailboxes import Sent, Watermarks
from tests.support.mail_clerk import MINUTE, MailClerk

NAMES = ["a", "b"]
GROUPS = ["g", "h"]
HOLDERS = ["h1", "h2"]
LIMIT = 6
LEASE, MOST_ATTEMPTS = 10, 2
"""Minutes, and hand-outs before a dead letter."""
LIFE = 25
"""Minutes that mailbox ``b`` lives."""
A_NAME = st.sampled_from(NAMES)
DELAYS = st.sampled_from([0, 5])
SENDS = st.tuples(
    st.sampled_from(list(Priority)),
    st.sampled_from([None, None, None, "k1", "k2"]),
    st.sampled_from([None, None, None, "d1", "d2"]),
    st.sampled_from([None, None, 5, 15]),
    st.sampled_from([None, None, None, 10]),
)


@dataclass
class ModelMessage:
    """A message as the model knows it; ``seq`` None: delayed."""

    id: str
    priority: Priority
    key: str | None
    expires: int | None
    due: int | None = None
    seq: int | None = None


@dataclass
class ModelLease:
    """What a group has below its cursor."""

    attempts: int
    until: int | None
    lease_id: str | None = None
    holder: str | None = None


@dataclass
class ModelGroup:
    """How far it is in each priority."""

    cursors: dict[Priority, int] = field(default_factory=lambda: dict.fromkeys(Priority, 0))
    leases: dict[int, ModelLease] = field(default_factory=dict)


@dataclass
class ModelBox:
    """One life of a mailbox."""

    id: str
    ends: int | None
    messages: list[ModelMessage] = field(default_factory=list)
    last: int = 0
    dedup: dict[str, tuple[str, int | None, int]] = field(default_factory=dict)
    groups: dict[str, ModelGroup] = field(default_factory=dict)

    def find(self, seq: int) -> ModelMessage | None:
        return next((each for each in self.messages if each.seq == seq), None)


class MailMachine(RuleBasedStateMachine):
    """Random lives of two mailboxes, one of which expires again and again."""

    template: Path

    @initialize()
    def open(self) -> None:
        shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="oah-mail-", dir=shared))
        shutil.copy(self.template, self.directory / "oah.db")
        url = f"sqlite:///{self.directory / 'oah.db'}"
        self.mail = MailClerk(open_store(url), url)
        self.now = 0
        self.boxes: dict[str, ModelBox] = {}
        self.dead: list[str] = []
        self.old_leases: list[tuple[str, str]] = []
        self.had: dict[str, tuple[Watermarks, list[str]]] = {}
        for name in NAMES:
            self.create(name)

    def teardown(self) -> None:
        if hasattr(self, "mail"):
            self.mail.store.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- what the model thinks ---

    def alive(self, name: str) -> ModelBox | None:
        box = self.boxes.get(name)
        return None if box is None or (box.ends is not None and box.ends <= self.now) else box

    def live(self, box: ModelBox) -> list[ModelMessage]:
        """In the order in which they are read."""
        there = [each for each in box.messages if each.seq and not self.expired(each)]
        return sorted(there, key=lambda each: (-each.priority, each.seq))

    def expired(self, message: ModelMessage) -> bool:
        return message.expires is not None and message.expires <= self.now

    def drop(self, box: ModelBox, message: ModelMessage) -> None:
        box.messages.remove(message)
        for group in box.groups.values():
            group.leases.pop(message.seq or 0, None)

    def number(self, box: ModelBox, message: ModelMessage) -> None:
        box.last += 1
        message.seq = box.last
        if message.key is not None:
            for each in list(box.messages):
                if each is not message and each.key == message.key and each.seq is not None:
                    self.drop(box, each)

    def done(self, box: ModelBox, message: ModelMessage) -> None:
        """Delete it if every group is through with it."""
        seq = message.seq or 0
        if all(g.cursors[message.priority] >= seq and seq not in g.leases for g in box.groups.values()):
            self.drop(box, message)

    def over(self, box: ModelBox, group: ModelGroup, message: ModelMessage, until: int | None) -> None:
        """A lease of it has ended without an ack."""
        lease = group.leases[message.seq or 0]
        if lease.attempts >= MOST_ATTEMPTS:
            if not self.expired(message):
                self.dead.append(message.id)
            del group.leases[message.seq or 0]
            self.done(box, message)
        else:
            lease.until, lease.lease_id, lease.holder = until, None, None

    # --- what happens ---

    @rule(name=st.sampled_from(NAMES))
    def create(self, name: str) -> None:
        made = self.mail.store.create_mailbox(
            self.mail.new_box(name, ttl=LIFE * MINUTE if name == "b" else None, most=LIMIT)
        )
        there = self.alive(name)
        assert made.new == (there is None)
        if there is None:
            self.boxes[name] = ModelBox(made.mailbox.id, self.now + LIFE if name == "b" else None)
        assert made.mailbox.id == self.boxes[name].id

    @rule(name=st.sampled_from(NAMES))
    @precondition(lambda self: self.now > 40)
    def delete_mailbox(self, name: str) -> None:
        there = self.alive(name) is not None
        assert self.mail.store.delete_mailbox(DEFAULT_WORKSPACE, name) == there
        if there:
            del self.boxes[name]

    @rule(name=A_NAME, count=st.integers(3, 8))
    def fill(self, name: str, count: int) -> None:
        """Plain ones, until it is full."""
        self.send(name, [(Priority(n % 3), None, None, None, None) for n in range(count)])

    @rule(name=A_NAME, sends=st.lists(SENDS, min_size=1, max_size=4))
    def send(self, name: str, sends: list[tuple[Priority, str | None, str | None, int | None, int | None]]) -> None:
        news = [
            self.mail.new(
                to=name,
                priority=priority,
                key=key,
                dedup_key=dedup,
                dedup_window=20 * MINUTE,
                ttl=None if ttl is None else ttl * MINUTE,
                delay=None if delay is None else delay * MINUTE,
            )
            for priority, key, dedup, ttl, delay in sends
        ]
        answers = self.mail.store.send_messages(news)
        box, begun = self.alive(name), {}
        room = None if box is None else len(box.messages)
        for new, (priority, key, dedup, ttl, delay), answer in zip(news, sends, answers, strict=True):
            if box is None or room is None:
                assert isinstance(answer, NotFound)
                continue
            known = box.dedup.get(dedup or "")
            if dedup is not None and known is not None and known[2] > self.now:
                assert isinstance(answer, Sent)
                assert (answer.message_id, answer.duplicate) == (known[0], True)
                continue
            if room >= LIMIT:
                for each in [each for each in box.messages if self.expired(each)]:
                    self.drop(box, each)
                    room -= 1
            if room >= LIMIT:
                assert not isinstance(answer, Sent)
                assert answer.code == "mailbox_full"
                continue
            room += 1
            expires = None if ttl is None else self.now + ttl
            message = ModelMessage(new.id, priority, key, expires, None if delay is None else self.now + delay)
            box.messages.append(message)
            if delay is None:
                box.last += 1
                message.seq = box.last
                if key is not None:
                    begun[key] = message
            assert isinstance(answer, Sent), answer
            assert (answer.seq, answer.duplicate) == (message.seq, False)
            if dedup is not None:
                box.dedup[dedup] = (new.id, message.seq, self.now + 20)
        if box is not None:  # of a batch the newest of a key stays
            for key, newest in begun.items():
                for each in list(box.messages):
                    if each.key == key and each.seq is not None and each.seq < (newest.seq or 0):
                        self.drop(box, each)

    @rule(name=A_NAME, key=st.sampled_from(["k1", "k2"]))
    def replace(self, name: str, key: str) -> None:
        """The second of a key takes the place of the first."""
        for priority in (Priority.URGENT, Priority.NORMAL):
            self.send(name, [(priority, key, None, None, None)])

    @rule()
    @precondition(lambda self: self.alive("b") is not None)
    def outlive(self) -> None:
        """What is sent to a mailbox after its end."""
        self.time_passes(LIFE)
        self.send("b", [(Priority.NORMAL, None, None, None, None)])

    @rule(minutes=st.sampled_from([1, 4, 11]))
    def time_passes(self, minutes: int) -> None:
        self.mail.pass_time(minutes * MINUTE)
        self.now += minutes

    @rule()
    def sweep(self) -> None:
        self.mail.store.sweep_mail()
        for box in self.boxes.values():
            if box.ends is not None and box.ends <= self.now:
                continue
            due = [each for each in box.messages if each.seq is None and each.due is not None and each.due <= self.now]
            batch = [each for each in sorted(due, key=lambda each: (each.due, each.id)) if not self.expired(each)]
            newest = {}
            for message in batch:
                box.last += 1
                message.seq = box.last
                if message.key is not None:
                    newest[message.key] = message
            for key, last in newest.items():
                for each in list(box.messages):
                    if each.key == key and each.seq is not None and each.seq < (last.seq or 0):
                        self.drop(box, each)
            for message in [each for each in box.messages if self.expired(each)]:
                self.drop(box, message)
            for group in box.groups.values():
                for seq, lease in list(group.leases.items()):
                    message = box.find(seq)
                    if message is not None and lease.until is not None and lease.until <= self.now:
                        self.over(box, group, message, None)

    @rule(
        name=st.sampled_from(NAMES), group=st.sampled_from(GROUPS), holder=st.sampled_from(HOLDERS), n=st.integers(1, 3)
    )
    def lease(self, name: str, group: str, holder: str, n: int) -> None:
        box = self.alive(name)
        if box is None:
            return
        words = {"holder": holder, "limit": n, "lease": LEASE * MINUTE, "most_attempts": MOST_ATTEMPTS}
        found = self.mail.lease(box.id, group, **words)
        model = box.groups.setdefault(group, ModelGroup())
        expected: list[ModelMessage] = []
        for message in self.live(box):
            seq = message.seq or 0
            lease = model.leases.get(seq)
            if lease is None and model.cursors[message.priority] >= seq:
                continue
            if lease is not None and lease.until is not None and lease.until > self.now:
                continue
            if len(expected) == n:
                break
            if lease is not None and lease.attempts >= MOST_ATTEMPTS:
                self.over(box, model, message, None)
                continue
            expected.append(message)
        assert [each.message.id for each in found] == [each.id for each in expected]
        for leased, message in zip(found, expected, strict=True):
            seq = message.seq or 0
            before = model.leases.get(seq)
            attempts = 1 if before is None else before.attempts + 1
            assert leased.attempt == attempts
            model.leases[seq] = ModelLease(attempts, self.now + LEASE, leased.lease_id, holder)
            model.cursors[message.priority] = max(model.cursors[message.priority], seq)
            self.old_leases.append((name, leased.lease_id))

    @rule(data=st.data(), ack=st.booleans(), delay=DELAYS)
    @precondition(lambda self: self.old_leases)
    def settle(self, data: st.DataObject, ack: bool, delay: int) -> None:
        recent = self.old_leases[-3:]
        name, lease_id = data.draw(st.sampled_from([*recent * 4, *self.old_leases]))
        self.settle_one(name, lease_id, ack=ack, delay=delay)

    @rule(
        name=A_NAME, group=st.sampled_from(GROUPS), acks=st.lists(st.booleans(), min_size=2, max_size=2), delay=DELAYS
    )
    def work(self, name: str, group: str, acks: list[bool], delay: int) -> None:
        """A member as it should be: takes some and settles them."""
        taken = len(self.old_leases)
        self.lease(name, group, "h1", len(acks))
        for (box, lease_id), ack in zip(self.old_leases[taken:], acks, strict=False):
            self.settle_one(box, lease_id, ack=ack, delay=delay)

    @rule(name=A_NAME, group=st.sampled_from(GROUPS))
    def give_back_for_later(self, name: str, group: str) -> None:
        """And ask again before it is later."""
        taken = len(self.old_leases)
        self.lease(name, group, "h1", 2)
        for box, lease_id in self.old_leases[taken:]:
            self.settle_one(box, lease_id, ack=False, delay=5)
        self.lease(name, group, "h2", 2)

    @rule(name=A_NAME)
    def both_groups_are_done(self, name: str) -> None:
        """Everything that can be handed out is acknowledged by all groups."""
        for group in GROUPS:
            self.work(name, group, [True, True, True], 0)

    def settle_one(self, name: str, lease_id: str, *, ack: bool, delay: int) -> None:
        box = self.alive(name)
        if box is None:
            return
        held = [
            (group, seq, lease)
            for group in box.groups.values()
            for seq, lease in group.leases.items()
            if lease.lease_id == lease_id and lease.until is not None and lease.until > self.now
        ]
        assert self.mail.store.settle_lease(box.id, lease_id, ack=ack, delay=delay * MINUTE) == bool(held)
        for group, seq, _ in held:
            message = box.find(seq)
            assert message is not None
            if ack:
                del group.leases[seq]
                self.done(box, message)
            else:
                self.over(box, group, message, self.now + delay if delay else None)

    @rule(holder=st.sampled_from(HOLDERS))
    def member_dies(self, holder: str) -> None:
        self.mail.store.release_holder(holder)
        for name in NAMES:
            # Of a mailbox that has just expired nobody sees what becomes of it.
            box = self.boxes.get(name)
            for group in [] if box is None else box.groups.values():
                for seq, lease in list(group.leases.items()):
                    message = box.find(seq) if box is not None else None
                    if box is not None and message is not None and lease.holder == holder:
                        self.over(box, group, message, None)

    @rule(holder=st.sampled_from(HOLDERS))
    def member_lives(self, holder: str) -> None:
        self.mail.store.extend_leases(holder, lease=LEASE * MINUTE)
        for box in self.boxes.values():
            for group in box.groups.values():
                for lease in group.leases.values():
                    if lease.holder == holder and lease.until is not None and lease.until > self.now:
                        lease.until = self.now + LEASE

    @rule(name=st.sampled_from(NAMES), seq=st.integers(1, 12))
    def delete(self, name: str, seq: int) -> None:
        box = self.alive(name)
        message = None if box is None else box.find(seq)
        there = box is not None and message is not None and not self.expired(message)
        known = self.boxes.get(name)
        if known is None:
            return
        assert self.mail.store.delete_message(known.id, seq) == there
        if there and box is not None and message is not None:
            self.drop(box, message)

    @rule(name=st.sampled_from(NAMES))
    @precondition(lambda self: self.now > 30)
    def purge(self, name: str) -> None:
        box = self.alive(name)
        if box is not None:
            assert self.mail.store.purge_messages(box.id) == len([m for m in box.messages if not self.expired(m)])
            box.messages.clear()
            for group in box.groups.values():
                group.leases.clear()

    @rule(name=st.sampled_from(NAMES), limit=st.integers(1, 5))
    def read_on(self, name: str, limit: int) -> None:
        box = self.alive(name)
        if box is None:
            return
        had, seen = self.had.get(box.id, (Watermarks(), []))
        found = self.mail.ready(box.id, had, limit=limit)
        wanted = [m for m in self.live(box) if (m.seq or 0) > had.had.get(m.priority, 0)][:limit]
        assert [each.id for each in found] == [each.id for each in wanted]
        for each in found:
            assert each.id not in seen, "nothing twice"
            seen.append(each.id)
            had = had.after(each)
        self.had[box.id] = (had, seen)

    # --- what is always so ---

    @invariant()
    def the_same_is_seen_everywhere(self) -> None:
        if not hasattr(self, "mail"):
            return
        for name, known in self.boxes.items():
            box = self.alive(name)
            if box is None:
                try:
                    self.mail.ready(known.id)
                except NotFound:
                    continue
                raise AssertionError(f"{name} is gone and is read")
            wanted = [each.id for each in self.live(box)]
            assert [each.id for each in self.mail.ready(box.id)] == wanted
            assert [each.id for each in self.mail.store.list_messages(box.id).items] == wanted
        letters = self.mail.store.dead_letters(LetterFilter(limit=500)).items
        assert sorted(each.subject for each in letters) == sorted(set(self.dead))
        self.mail.audit()


def test_any_order_of_things_in_mailboxes(sqlite_template: Path) -> None:
    machine = type("OneMail", (MailMachine,), {"template": sqlite_template})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
        ),
    )
