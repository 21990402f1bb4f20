"""Group commit of concurrent submits, by leader and followers, without timers.

The first caller leads: it commits what is there. Who comes meanwhile waits; when the commit is done the first of those
leads the next batch. A lone caller never waits for others, and nobody commits more than one batch for the rest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from oah.errors import Broken, RequestError
from oah.ports.store import Accepted, NewRun
from oah.ports.telemetry import Telemetry

Commit = Callable[[Sequence[NewRun]], list[Accepted | RequestError]]


class _Ticket:
    """One caller's runs and what became of them."""

    __slots__ = ("answers", "failure", "runs", "turn")

    def __init__(self, runs: Sequence[NewRun]) -> None:
        self.runs = runs
        self.turn = threading.Event()
        self.answers: list[Accepted | RequestError] | None = None
        self.failure: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.answers is not None or self.failure is not None


class SubmitBatches:
    """Shared by all request threads. `most`: runs of one transaction (a single caller may bring more)."""

    def __init__(
        self,
        commit: Commit,
        *,
        committed: Callable[[Sequence[Accepted]], None],
        telemetry: Telemetry,
        most: int = 256,
    ) -> None:
        self._commit = commit
        self._committed = committed
        self._telemetry = telemetry
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._led = False

    def submit(self, runs: Sequence[NewRun]) -> list[Accepted | RequestError]:
        """Answers in the order given, after COMMIT. Raises Unavailable, InDoubt: nothing is known to be accepted."""
        if not runs:
            return []
        ticket = _Ticket(runs)
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
            raise Broken("a submit was left out of its own batch")
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

    def _take(self) -> list[_Ticket]:
        with self._lock:
            batch = [self._waiting.popleft()]
            size = len(batch[0].runs)
            while self._waiting and size + len(self._waiting[0].runs) <= self._most:
                batch.append(self._waiting.popleft())
                size += len(batch[-1].runs)
            return batch

    def _settle(self, batch: Sequence[_Ticket]) -> None:
        runs = [run for ticket in batch for run in ticket.runs]
        answers = self._commit(runs)
        self._telemetry.observe("oah_batch_size", len(runs), work="submit")
        self._committed([answer for answer in answers if isinstance(answer, Accepted)])
        start = 0
        for ticket in batch:
            ticket.answers = list(answers[start : start + len(ticket.runs)])
            start += len(ticket.runs)

    def _hand_on(self, batch: Sequence[_Ticket]) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._led = following is not None
        if following is not None:
            following.turn.set()
        for ticket in batch:
            ticket.turn.set()
