"""Settle: record outcomes under the fence, then tell Redis where the sessions go. SQL first, always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oah.core.model.ids import ClaimToken, SessionId
from oah.errors import InDoubt
from oah.ports.broker import Broker, Free, Target
from oah.ports.epochs import EpochSource
from oah.ports.store import AfterRun, OutputChunk, RunFence, Settlement, Store
from oah.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Ended:
    """A session whose run is over: what SQL said, and whether its agent stays warm."""

    session_id: SessionId
    token: ClaimToken
    after: AfterRun
    parked: bool = False


@dataclass(frozen=True, slots=True)
class SettleRuns:
    """``commit`` writes a batch in one transaction, ``place`` frees the sessions in one round trip."""

    store: Store
    broker: Broker
    epochs: EpochSource
    telemetry: Telemetry

    def commit(self, batch: Sequence[Settlement], *, repeated: bool = False) -> list[AfterRun]:
        """Raises Unavailable: nothing is known to be written, call again with ``repeated``.

        An outcome in doubt is looked up under the lock; in doubt it stays until that look succeeds. What the fence
        refuses in a repeated call may be what the first one wrote, so it is looked up as well.
        """
        try:
            replies = self.store.settle(batch)
        except InDoubt:
            replies = self.store.settle_outcome(batch)
            self._merge(batch, replies, self._open(replies), self.store.settle)
        if repeated:
            refused = [i for i, reply in enumerate(replies) if not reply.applied]
            self._merge(batch, replies, refused, self.store.settle_outcome)
        for reply in replies:
            if not reply.applied:
                self.telemetry.count("oah_writes_refused_total", write="settle")
        return replies

    @staticmethod
    def _open(replies: Sequence[AfterRun]) -> list[int]:
        """Which attempts are still active under our token."""
        return [i for i, reply in enumerate(replies) if not reply.applied and reply.status and reply.status.active]

    @staticmethod
    def _merge(
        batch: Sequence[Settlement],
        replies: list[AfterRun],
        chosen: Sequence[int],
        ask: Callable[[Sequence[Settlement]], list[AfterRun]],
    ) -> None:
        if chosen:
            for index, reply in zip(chosen, ask([batch[i] for i in chosen]), strict=True):
                replies[index] = reply

    def release(self, fences: Sequence[RunFence]) -> list[AfterRun]:
        """Back to queued, nothing counted. The caller has verified that the trees are empty."""
        try:
            replies = self.store.release(fences)
        except InDoubt:
            # A repeated release of a released run is refused by the fence and changes nothing.
            replies = self.store.release(fences)
        for reply in replies:
            if not reply.applied:
                self.telemetry.count("oah_writes_refused_total", write="release")
        return replies

    def output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        """Append ``run.output`` events; what the fence refuses is counted."""
        numbers = self.store.output(chunks)
        for number in numbers:
            if number is None:
                self.telemetry.count("oah_writes_refused_total", write="event")
        return numbers

    def place(self, ended: Sequence[Ended]) -> bool:
        """Free the sessions. Raises Unavailable or LeaseError: repeat it; the lease ends otherwise.

        True when a parked session of this worker is called already (a run waits in it).
        """
        freed = self.broker.free(self.epochs.current(), [self._free(item) for item in ended])
        return any(item.parked and answer.owner is not None for item, answer in zip(ended, freed, strict=True))

    @staticmethod
    def _free(item: Ended) -> Free:
        after = item.after
        if item.parked and not after.held:
            return Free(item.session_id, item.token, Target.PARKED, after.waiting)
        if after.held:
            return Free(item.session_id, item.token, Target.HELD, None, after.until_in, after.held)
        if after.waiting is not None:
            return Free(item.session_id, item.token, Target.READY, after.waiting)
        return Free(item.session_id, item.token, Target.IDLE)
