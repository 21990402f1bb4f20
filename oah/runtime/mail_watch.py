"""Watch mailboxes for their readers: hints are quick, and what a lost hint would have said is found two seconds later.

Between hints one thread is blocked. The look is one statement for all mailboxes, which answers with those alone that
are not as they were: a thousand that nobody sends to are a thousand probes of an index, and no row.

Who wants all of a mailbox watches first and reads second: what is committed after the read is told. A hint is a
mailbox with the number of its newest message, with ``AGAIN`` (something that was stored before can be read again), or
with ``GONE``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.model.ids import MailboxId
from oah.errors import Unavailable
from oah.ports.broker import Signals
from oah.ports.clock import Clock
from oah.ports.mailboxes import AGAIN, GONE, Head, Hint, MailboxStore

LOOK_EVERY = timedelta(seconds=2)
SOONEST = timedelta(milliseconds=50)
"""A mailbox that is about to go is looked at when it goes, not more often than so."""

Call = Callable[[MailboxId, Head], None]


@dataclass(slots=True)
class _Reader:
    """Who is told, and what it knows; None: nothing, so that it is told by the next look."""

    call: Call
    knows: Head | None


@dataclass(slots=True)
class _Watched:
    """A mailbox and who reads it. ``head``: what the store said last; None: it is to be asked for all of it."""

    readers: dict[int, _Reader] = field(default_factory=dict)
    head: Head | None = None
    ends_at: float | None = None
    """When it expires, by our clock; if it has not by the database's, it is asked for again."""


class MailWatch:
    """Of one process; thread safe. The calls come from whatever thread there is and must be quick."""

    def __init__(
        self, store: MailboxStore, signals: Signals, clock: Clock, *, look_every: timedelta = LOOK_EVERY
    ) -> None:
        self._store = store
        self._signals = signals
        self._clock = clock
        self._look_every = look_every
        self._lock = threading.Lock()
        self._watched: dict[MailboxId, _Watched] = {}
        self._next = 0
        self._look_at = 0.0

    def watch(self, mailbox_id: MailboxId, call: Call, *, seen: Head | None = None) -> Callable[[], None]:
        """Be told of the mailbox until what is returned is called. Some calls tell nothing new; the last one that
        comes says ``gone``. ``seen``: what the reader has found it to be before this call, and reads after it: a
        mailbox that has stayed so needs no second read."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            watched = self._watched.setdefault(mailbox_id, _Watched())
            watched.readers[number] = _Reader(call, seen)
            if seen is None or (watched.head is not None and watched.head.gone):
                watched.head = None

        def unwatch() -> None:
            with self._lock:
                found = self._watched.get(mailbox_id)
                if found is not None and found.readers.pop(number, None) is not None and not found.readers:
                    del self._watched[mailbox_id]

        return unwatch

    def step(self, timeout: timedelta) -> None:
        """Wait for hints of other processes, at most so long; look at all watched mailboxes when it is time. For one
        thread, again and again. Raises Unavailable after having done what could be done."""
        left = timedelta(seconds=max(0.0, self._look_at - self._clock.monotonic()))
        failure: Unavailable | None = None
        try:
            self.told(self._signals.mail_hints(timeout=min(timeout, left)))
        except Unavailable as error:
            failure = error
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + self._look_every.total_seconds()
            self.look()
        if failure is not None:
            raise failure

    def told(self, hints: Iterable[Hint]) -> None:
        """What this process has done itself, or heard of."""
        for mailbox_id, number in hints:
            calls: list[tuple[Call, Head]] = []
            with self._lock:
                watched = self._watched.get(mailbox_id)
                for reader in watched.readers.values() if watched is not None else ():
                    head = _after(reader.knows, number)
                    if head is not None:
                        reader.knows = head if reader.knows is not None or head.gone else None
                        calls.append((reader.call, head))
            for call, head in calls:
                call(mailbox_id, head)

    def look(self) -> None:
        """Ask the store for what is not as it was, in one statement for all of them. Raises Unavailable."""
        now = self._clock.monotonic()
        with self._lock:
            known = {
                name: each.head if each.ends_at is None or each.ends_at > now else None
                for name, each in self._watched.items()
                if each.head is None or not each.head.gone
            }
        if known:
            for name, head in self._store.heads(known).items():
                self._tell(name, head)
        with self._lock:
            ends = [each.ends_at for each in self._watched.values() if each.ends_at is not None]
        if ends:
            self._look_at = min(self._look_at, max(min(ends), self._clock.monotonic() + SOONEST.total_seconds()))

    def _tell(self, mailbox_id: MailboxId, head: Head) -> None:
        calls: list[Call] = []
        with self._lock:
            watched = self._watched.get(mailbox_id)
            if watched is None:
                return
            watched.head, watched.ends_at = head, None
            if head.expires_in is not None and not head.gone:
                watched.ends_at = self._clock.monotonic() + head.expires_in.total_seconds()
            for reader in watched.readers.values():
                if _news(reader.knows, head):
                    calls.append(reader.call)
                reader.knows = _joined(reader.knows, head)
        for call in calls:
            call(mailbox_id, head)


def _after(known: Head | None, number: int) -> Head | None:
    """What a hint makes of it; None: nothing new."""
    last = 0 if known is None else known.last_seq
    turn = 0 if known is None else known.turn
    if known is not None and known.gone:
        return None
    if number == GONE:
        return Head(last, gone=True, turn=turn)
    if number == AGAIN:
        return Head(last, gone=False, turn=turn)
    return Head(number, gone=False, turn=turn) if number > last else None


def _joined(known: Head | None, head: Head) -> Head:
    """A hint may have been quicker than the look."""
    if known is None or (not known.gone and (head.gone or known.last_seq <= head.last_seq)):
        return head
    return Head(known.last_seq, gone=known.gone, expires_in=head.expires_in, turn=head.turn)


def _news(known: Head | None, head: Head) -> bool:
    if known is None or known.gone:
        return known is None  # what is gone does not come back
    return head.gone or head.last_seq > known.last_seq or head.turn != known.turn
