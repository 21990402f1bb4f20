"""The settler: one thread that records what has ended, in batches without timers.

It takes what is there, commits, frees, and takes what has come meanwhile. Nothing is dropped: while SQL is away the
outcomes are on this machine's disk and the leases are kept; while Redis is away the freed sessions wait here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason
from oah.core.policy import retry
from oah.errors import LeaseError, OahError, Unavailable
from oah.ports.agent import Agent
from oah.ports.store import AfterRun, OutputChunk, OwnerRow, RunFence
from oah.services.settle import Ended, SettleRuns
from oah.worker.asking import Asking
from oah.worker.context import WorkerContext
from oah.worker.parked import Parked
from oah.worker.table import Table
from oah.worker.waiting import Waiting
from oah.worker.work import Answered, Asks, Ending, Finished, Orphaned, Returned, Unparked

log = logging.getLogger(__name__)

BATCH = 64
"""Members of one transaction: beyond it the gain is small and the locks are many (measured)."""

STUCK = 2.0
"""Seconds without a success, while there is something to record, after which a drain no longer waits for it."""


VOIDED_GRACE = timedelta(seconds=2)
"""How politely the idle agent of a run that was rolled back is ended."""


class Settler:
    """A duty of an engine: ``pending`` says whether ``step`` has something to do."""

    def __init__(
        self,
        context: WorkerContext,
        table: Table,
        parked: Parked,
        *,
        wake: Callable[[], None],
        waiting: Waiting | None = None,
    ) -> None:
        self._context = context
        self._table = table
        self._parked = parked
        self._wake = wake
        self._service = SettleRuns(context.store, context.broker, context.epochs, context.telemetry)
        self._asking = Asking(context, table, Waiting(context, table) if waiting is None else waiting, self._service)
        self._lock = threading.Lock()
        self._endings: deque[Ending] = deque()
        self._chunks: deque[OutputChunk] = deque()
        self._unplaced: list[Ended] = []
        self._kept: set[RunFence] = set()
        """Outcomes on this machine's disk."""
        self._store_away = False
        self._batch: Sequence[Ending] = ()
        """What is being recorded."""
        self._trying_since: float | None = None
        self._stepping = False
        self._retry_at = 0.0
        self._backoff = 0.0
        self.called: Callable[[], None] = lambda: None
        """Told when a parked session of ours is called already."""
        self.happened: Callable[[Sequence[tuple[SessionId, int]]], None] = lambda hints: None
        """Told of committed events: (session, last number)."""
        self.over: Callable[[Finished, AfterRun], None] = lambda item, after: None
        """Told of each attempt that is settled."""
        self.parked: Callable[[SessionId, AfterRun], None] = lambda session_id, after: None
        """Told of each agent that stays warm."""
        self.settled: Callable[[], None] = lambda: None
        """Told after each batch: outcomes that bounded the claims are gone."""

    # --- from other threads ---

    def ended(self, *endings: Ending) -> None:
        """Hand over what has ended. While SQL is known to be away it is on the disk when this returns."""
        if self._store_away:
            self._keep(endings)
        with self._lock:
            self._endings.extend(endings)
        self._wake()

    def said(self, chunk: OutputChunk) -> None:
        """Hand over text of a running attempt."""
        with self._lock:
            self._chunks.append(chunk)
        self._wake()

    def answered(self, answered: Answered) -> None:
        """Hand over what a policy has answered."""
        self._asking.answered(answered)
        self._wake()

    @property
    def unsettled(self) -> int:
        """Endings that are not committed and freed yet."""
        with self._lock:
            return len(self._endings) + len(self._unplaced)

    @property
    def idle(self) -> bool:
        """Whether no ending waits or is being recorded."""
        return not self._stepping and self.unsettled == 0

    @property
    def stuck(self) -> bool:
        """Whether a store has not taken anything for a while, by refusing or by silence."""
        since = self._trying_since
        return since is not None and self._context.clock.monotonic() - since > STUCK

    def secure(self) -> None:
        """Put on the disk whatever is not recorded yet, also what a hanging store may be recording now."""
        with self._lock:
            left = [*self._batch, *self._endings]
        self._keep(left)

    # --- the duty ---

    def pending(self) -> float | None:
        """Seconds until ``step`` has something to do; None: nothing."""
        with self._lock:
            if not (self._endings or self._chunks or self._unplaced or self._asking.pending):
                return None
        return max(self._retry_at - self._context.clock.monotonic(), 0.0)

    def step(self) -> None:
        """One batch."""
        self._stepping = True
        try:
            self._step()
        finally:
            self._stepping = False

    def _step(self) -> None:
        with self._lock:
            chunks = [self._chunks.popleft() for _ in range(min(len(self._chunks), BATCH))]
            batch = [self._endings.popleft() for _ in range(min(len(self._endings), BATCH))]
            self._batch = batch
        if self._trying_since is None:
            self._trying_since = self._context.clock.monotonic()
        self._context.telemetry.gauge("oah_outcomes_unsettled", len(batch) + self.unsettled)
        try:
            self._record(chunks, batch)
            self._place()
        except Unavailable as error:
            self._later(error)
        else:
            self._backoff, self._trying_since = 0.0, None
            self.settled()
        finally:
            self._batch = ()

    def deliver_kept(self) -> list[SessionId]:
        """Deliver what an earlier incarnation could not. Raises Unavailable."""
        kept = self._context.outcomes.kept()
        if kept:
            self._service.commit(kept, repeated=True)
            self._context.outcomes.delivered([s.fence for s in kept])
        return [s.fence.session_id for s in kept]

    def _record(self, chunks: Sequence[OutputChunk], batch: Sequence[Ending]) -> None:
        """What was said comes before the end, which shuts the fence; what cannot be written stays here, all of it."""
        try:
            self._say(chunks)
            self._asking.tell(self.happened)
        except Unavailable:
            self._put_back(batch)
            raise
        self._commit(batch)
        if chunks or batch:
            self._store_away = False

    def _put_back(self, batch: Sequence[Ending]) -> None:
        with self._lock:
            self._endings.extendleft(reversed(batch))
            waiting = list(self._endings)
        self._store_away = True
        self._keep(waiting)

    def _keep(self, endings: Sequence[Ending]) -> None:
        """Each once."""
        items = [item.settlement for item in endings if isinstance(item, Finished)]
        new = [settlement for settlement in items if settlement.fence not in self._kept]
        if not new:
            return
        try:
            self._context.outcomes.keep(new)
        except Unavailable as error:
            log.error("%d outcomes are in memory only: %s", len(new), error)
        else:
            self._kept.update(settlement.fence for settlement in new)

    def _say(self, chunks: Sequence[OutputChunk]) -> None:
        if not chunks:
            return
        try:
            numbers = self._service.output(chunks)
        except Unavailable:
            with self._lock:
                self._chunks.extendleft(reversed(chunks))
            raise
        self.happened([(c.fence.session_id, n) for c, n in zip(chunks, numbers, strict=True) if n is not None])

    def _commit(self, batch: Sequence[Ending]) -> None:
        finished = [item for item in batch if isinstance(item, Finished)]
        returned = [item for item in batch if isinstance(item, Returned)]
        orphaned = [item for item in batch if isinstance(item, Orphaned)]
        unparked = [item for item in batch if isinstance(item, Unparked)]
        asks = [item for item in batch if isinstance(item, Asks)]
        groups: list[tuple[Sequence[Ending], Callable[[], None]]] = [
            (finished, lambda: self._finish(finished)),
            (returned, lambda: self._return(returned)),
            (orphaned, lambda: self._orphan(orphaned)),
            (unparked, lambda: self._unpark(unparked)),
            (asks, lambda: self._ask(asks)),
        ]
        try:
            while groups:
                items, act = groups[0]
                if items:
                    act()
                groups.pop(0)
        except Unavailable:
            self._put_back([item for items, _ in groups for item in items])
            raise

    def _finish(self, items: Sequence[Finished]) -> None:
        replies = self._service.commit([item.settlement for item in items], repeated=bool(self._backoff))
        kept = [item.settlement.fence for item in items if item.settlement.fence in self._kept]
        if kept:
            self._context.outcomes.delivered(kept)
            self._kept.difference_update(kept)
        for item, after in zip(items, replies, strict=True):
            fence = item.settlement.fence
            if not after.applied:
                self._refused(item)
                continue
            self._count(item, after)
            self.over(item, after)
            if item.agent is not None and after.voided:
                self._end_voided(item, item.agent, after)
                continue
            if item.agent is not None:
                self._parked.put(fence.session_id, fence.token, item.agent)
                self._table.parked(fence.session_id, fence.token)
                self.parked(fence.session_id, after)
            self._unplaced.append(Ended(fence.session_id, fence.token, after, parked=item.agent is not None))

    def _end_voided(self, item: Finished, agent: Agent, after: AfterRun) -> None:
        """Rolled back after its turn: what the agent remembers is void. It ends first, then the session is freed."""
        fence = item.settlement.fence
        self.happened([(fence.session_id, after.event_number)])

        def end() -> None:
            empty = agent.close(VOIDED_GRACE)
            self._table.agent(fence.session_id, fence.token, None)
            self._context.telemetry.count("oah_agents_killed_total", reason="close" if empty else "unkillable")
            self.ended(Unparked(fence.session_id, fence.token, empty))

        threading.Thread(target=end, name="end-voided", daemon=True).start()

    def _count(self, item: Finished, after: AfterRun) -> None:
        outcome = item.settlement.outcome
        if outcome.status is RunStatus.TIMED_OUT and outcome.error is not None:
            self._context.telemetry.count("oah_timeouts_total", code=outcome.error.code)
        if item.settlement.retry is not None and after.status is RunStatus.QUEUED:
            code = None if outcome.error is None else outcome.error.code
            self._context.telemetry.count("oah_retries_total", reason=retry.label(code))
            self._context.telemetry.observe("oah_run_duration_seconds", item.seconds, status=str(outcome.status))
            return
        status = str(after.status or outcome.status)
        self._context.telemetry.count("oah_runs_settled_total", status=status, class_=str(item.ready_class))
        self._context.telemetry.observe("oah_run_duration_seconds", item.seconds, status=status)

    def _return(self, items: Sequence[Returned]) -> None:
        replies = self._service.release([item.fence for item in items])
        for item, after in zip(items, replies, strict=True):
            if after.applied:
                self._unplaced.append(Ended(item.fence.session_id, item.fence.token, after))
            else:
                self._table.drop(item.fence.session_id, item.fence.token)

    def _orphan(self, items: Sequence[Orphaned]) -> None:
        """Our own rows, trees verified empty: the policy decides at once, nobody has to wait for the witnesses.

        A mark of ours between the look and the compare-and-set refuses it, as it refuses any recoverer: look again.
        """
        tokens = {item.fence.session_id: item.fence.token for item in items}
        rows = self._own_rows(tokens)
        refused: set[SessionId] = set()
        for reason in sorted({item.reason for item in items}):
            sessions = {item.fence.session_id for item in items if item.reason == reason}
            chosen = [row for row in rows if row.session_id in sessions]
            done = self._context.recover(chosen, cause=reason, by=self._context.worker_id)
            refused |= {each.owner.session_id for each in done if not each.applied and each.error is None}
        again = {row.session_id for row in self._own_rows({s: tokens[s] for s in refused})} if refused else set()
        for item in items:
            if item.fence.session_id in again:
                self.ended(item)
            else:
                self._table.drop(item.fence.session_id, item.fence.token)

    def _own_rows(self, tokens: Mapping[SessionId, ClaimToken]) -> list[OwnerRow]:
        """Owner rows that still carry these tokens."""
        return [row for row in self._context.store.owners_of(list(tokens)) if row.token == tokens[row.session_id]]

    def _ask(self, items: Sequence[Asks]) -> None:
        self._unplaced += self._asking.ask(items, self._refused_agent)

    def _unpark(self, items: Sequence[Unparked]) -> None:
        for item in items:
            if not item.empty:  # held before it is free: nobody starts a second tree beside the one that stays
                self._context.store.hold_session(item.session_id, None, HoldReason.UNKILLABLE, until_in=None)
        pairs = [(item.session_id, item.token) for item in items]
        for (session_id, token), after in zip(
            pairs, self._context.store.drop_owner(self._context.worker_id, pairs), strict=True
        ):
            self._move(session_id, token, after)

    def _move(self, session_id: SessionId, token: ClaimToken, after: AfterRun) -> None:
        if after.applied:
            self._unplaced.append(Ended(session_id, token, after))
        else:
            self._table.drop(session_id, token)

    def _place(self) -> None:
        if not self._unplaced:
            return
        items, self._unplaced = self._unplaced, []
        try:
            called = self._service.place(items)
        except Unavailable:
            self._unplaced = items + self._unplaced
            raise
        except LeaseError as error:
            self._unplaced = items + self._unplaced
            self._read_epoch()
            raise Unavailable(f"free again: {error.message}") from error
        self.happened([(i.session_id, i.after.event_number) for i in items if i.after.event_number])
        for item in items:
            if not item.parked:
                self._table.drop(item.session_id, item.token)
        if called:
            self.called()

    def _read_epoch(self) -> None:
        with contextlib.suppress(OahError):
            self._context.epochs.refresh()

    def _refused(self, item: Finished) -> None:
        fence = item.settlement.fence
        log.warning("the fence refused the outcome of run %s, attempt %s", fence.run_id, fence.attempt)
        self._refused_agent(fence, item.agent)

    def _refused_agent(self, fence: RunFence, agent: Agent | None) -> None:
        self._table.drop(fence.session_id, fence.token)
        if agent is not None:
            threading.Thread(target=agent.close, args=(self._context.rules.ladder.key,), daemon=True).start()

    def _later(self, error: Unavailable) -> None:
        self._backoff = min(max(self._backoff * 2, 0.1), 2.0)
        self._retry_at = self._context.clock.monotonic() + self._backoff
        log.warning("settle again in %.1f s: %s", self._backoff, error)
