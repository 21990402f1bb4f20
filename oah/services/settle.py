"""Settle: record outcomes under the fence, then tell Redis where the sessions go. SQL first, always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oah.core.model.ids import ClaimToken, EpochId, SessionId
from oah.core.model.session import HoldReason
from oah.errors import Backpressure, InDoubt, Unavailable
from oah.ports.broker import Broker, Free, Hear, Target
from oah.ports.epochs import EpochSource
from oah.ports.questions import Asked, AskReply
from oah.ports.store import AfterRun, DeferredRun, OutputChunk, RunFence, Settlement, Store
from oah.ports.telemetry import Telemetry
from oah.services.place import Places, awake


@dataclass(frozen=True, slots=True)
class Ended:
    """A session whose run is over: what SQL said, and whether its agent stays warm."""

    session_id: SessionId
    token: ClaimToken
    after: AfterRun
    parked: bool = False
    waits: bool = False
    """Its run asks somebody: nothing but an answer calls it, holds neither."""


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

    def ask(self, asked: Sequence[Asked]) -> list[AskReply]:
        """The runs wait for somebody's answer. Raises Unavailable: call again, it is found by its key."""
        try:
            return self.store.ask(asked)
        except InDoubt:
            return self.store.ask(asked)

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
        epoch = self.epochs.current()
        freed = self.broker.free(epoch, [self._free(item) for item in ended])
        self._delay(epoch, [item.after.due for item in ended if item.after.due is not None])
        self._look_again(epoch, [item.session_id for item in ended if HoldReason.BACKOFF in item.after.held])
        return any(item.parked and answer.owner is not None for item, answer in zip(ended, freed, strict=True))

    def _delay(self, epoch: EpochId, due: Sequence[DeferredRun]) -> None:
        """Retries that nobody waits for are heard of as delayed runs. What the broker does not take the relay says."""
        if not due:
            return
        hears = [Hear(d.hear_session, d.run_id, d.lane, d.workspace_id, d.ready_class, due_in=d.due_in) for d in due]
        try:
            self.broker.enqueue(epoch, hears)
        except (Unavailable, Backpressure):
            self.telemetry.count("oah_redis_errors_total", kind="other")

    def _look_again(self, epoch: EpochId, sessions: Sequence[SessionId]) -> None:
        """Whoever ended the hold of a backoff between our commit and our free has told the broker too early."""
        if sessions:
            places = Places(self.store, self.broker)
            places.put(epoch, [awake(each) for each in self.store.queued_sessions_of(sessions, epoch)])

    @staticmethod
    def _free(item: Ended) -> Free:
        """A warm agent stays its owner's also while its session is held: for its retry, for one."""
        after = item.after
        if item.waits:
            return Free(item.session_id, item.token, Target.PARKED)
        if item.parked:
            waiting = None if after.held else after.waiting
            return Free(item.session_id, item.token, Target.PARKED, waiting, after.until_in, after.held)
        if after.held:
            return Free(item.session_id, item.token, Target.HELD, None, after.until_in, after.held)
        if after.waiting is not None:
            return Free(item.session_id, item.token, Target.READY, after.waiting, priority=after.priority)
        return Free(item.session_id, item.token, Target.IDLE)
