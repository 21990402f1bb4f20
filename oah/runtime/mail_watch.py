"""Watch mailboxes for their readers: hints are quick, and what a lost hint would have said is found two seconds later.

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
class _Watched:
    """A mailbox and who reads it. ``head``: what they were told last; None: nothing yet."""

    calls: dict[int, Call] = field(default_factory=dict)
    head: Head | None = None


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

    def watch(self, mailbox_id: MailboxId, call: Call) -> Callable[[], None]:
        """Be told of the mailbox until what is returned is called. Some calls tell nothing new; the last one that
        comes says ``gone``."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            watched = self._watched.setdefault(mailbox_id, _Watched())
            watched.calls[number] = call
            watched.head = None  # the next look tells everybody: this one may have read before the others

        def unwatch() -> None:
            with self._lock:
                found = self._watched.get(mailbox_id)
                if found is not None and found.calls.pop(number, None) is not None and not found.calls:
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
            with self._lock:
                watched = self._watched.get(mailbox_id)
                if watched is None:
                    continue
                head = _after(watched.head, number)
                if head is None:
                    continue
                watched.head = head if watched.head is not None or head.gone else None
                calls = list(watched.calls.values())
            for call in calls:
                call(mailbox_id, head)

    def look(self) -> None:
        """Ask the store what has become of all of them, in one statement. Raises Unavailable."""
        with self._lock:
            names = [name for name, watched in self._watched.items() if watched.head is None or not watched.head.gone]
        if not names:
            return
        heads = self._store.heads(names)
        for name in names:
            self._tell(name, heads.get(name, Head(0, gone=True)))

    def _tell(self, mailbox_id: MailboxId, head: Head) -> None:
        with self._lock:
            watched = self._watched.get(mailbox_id)
            if watched is None:
                return
            known, watched.head = watched.head, _joined(watched.head, head)
            if head.expires_in is not None and not head.gone:
                soon = self._clock.monotonic() + max(head.expires_in, SOONEST).total_seconds()
                self._look_at = min(self._look_at, soon)
            calls = list(watched.calls.values()) if _news(known, head) else []
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
    if known is None or head.gone or known.last_seq <= head.last_seq:
        return head
    return Head(known.last_seq, gone=False, expires_in=head.expires_in, turn=head.turn)


def _news(known: Head | None, head: Head) -> bool:
    return known is None or head.gone != known.gone or head.last_seq > known.last_seq or head.turn != known.turn
