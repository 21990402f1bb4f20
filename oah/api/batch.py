"""Group commit of concurrent submits (``runtime/batches.py``): whoever is let in tells the broker's ear afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oah.errors import RequestError
from oah.ports.store import Accepted, NewRun
from oah.ports.telemetry import Telemetry
from oah.runtime.batches import Batches

Commit = Callable[[Sequence[NewRun]], list[Accepted | RequestError]]


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
        self._batches: Batches[NewRun, Accepted | RequestError] = Batches(self._together, most=most)

    @property
    def waiting(self) -> int:
        """Callers whose batch has not begun."""
        return self._batches.waiting

    @property
    def busy(self) -> bool:
        """Whether somebody commits now."""
        return self._batches.busy

    def submit(self, runs: Sequence[NewRun]) -> list[Accepted | RequestError]:
        """Answers in the order given, after COMMIT. Raises Unavailable, InDoubt: nothing is known to be accepted."""
        return self._batches(runs)

    def _together(self, runs: Sequence[NewRun]) -> list[Accepted | RequestError]:
        answers = self._commit(runs)
        self._telemetry.observe("oah_batch_size", len(runs), work="submit")
        self._committed([answer for answer in answers if isinstance(answer, Accepted)])
        return answers
