"""Group commit of independent callers, by leader and followers, without timers.

The first caller leads: it commits what is there. Who comes meanwhile waits; when the commit is done the first of those
leads the next batch. A lone caller never waits for others, and nobody commits more than one batch for the rest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from oah.errors import Broken

Member = TypeVar("Member")
Answer = TypeVar("Answer")


class _Ticket(Generic[Member, Answer]):
    """One caller's members and what became of them."""

    __slots__ = ("answers", "failure", "members", "turn")

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.turn = threading.Event()
        self.answers: list[Answer] | None = None
        self.failure: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.answers is not None or self.failure is not None


class Batches(Generic[Member, Answer]):
    """Shared by all threads. ``commit`` answers per member, in order; ``most``: members of one transaction (a single
    caller may bring more)."""

    def __init__(self, commit: Callable[[Sequence[Member]], list[Answer]], *, most: int = 256) -> None:
        self._commit = commit
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket[Member, Answer]] = deque()
        self._led = False

    @property
    def waiting(self) -> int:
        """Callers whose batch has not begun."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether somebody commits now."""
        return self._led

    def __call__(self, members: Sequence[Member]) -> list[Answer]:
        """Answers in the order given, after COMMIT. Raises what ``commit`` raises: nothing is known to be done."""
        if not members:
            return []
        ticket: _Ticket[Member, Answer] = _Ticket(members)
        with self._lock:
            self._waiting.append(ticket)
            leads = not self._led
            self._led = True
        if not leads:
            ticket.turn.wait()
        if not ticket.done:
            self._lead()
        if ticket.failure is not None:
            raise ticket.failure
        if ticket.answers is None:
            raise Broken("a caller was left out of its own batch")
        return ticket.answers

    def _lead(self) -> None:
        """Commit one batch, whose first member is the caller's own, and hand the lead on."""
        batch = self._take()
        try:
            self._settle(batch)
        except BaseException as error:  # noqa: BLE001 - raised again by every member
            for ticket in batch:
                ticket.failure = error
        finally:
            self._hand_on(batch)

    def _take(self) -> list[_Ticket[Member, Answer]]:
        with self._lock:
            batch = [self._waiting.popleft()]
            size = len(batch[0].members)
            while self._waiting and size + len(self._waiting[0].members) <= self._most:
                batch.append(self._waiting.popleft())
                size += len(batch[-1].members)
            return batch

    def _settle(self, batch: Sequence[_Ticket[Member, Answer]]) -> None:
        answers = self._commit([member for ticket in batch for member in ticket.members])
        start = 0
        for ticket in batch:
            ticket.answers = list(answers[start : start + len(ticket.members)])
            start += len(ticket.members)

    def _hand_on(self, batch: Sequence[_Ticket[Member, Answer]]) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._led = following is not None
        if following is not None:
            following.turn.set()
        for ticket in batch:
            ticket.turn.set()
