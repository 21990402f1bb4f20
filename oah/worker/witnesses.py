"""The two witnesses of ownership: ``Renew`` speaks to Redis, ``Mark`` to SQL, each in a thread of its own.

Neither waits for the other, nor for a writer's queue, nor longer than half a period. Either confirmation moves a
session's deadline, which is told to the PTY host at once. Both stop when the host no longer acknowledges or the main
loop hangs: then the trees are killed from here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from oah.core.model.ids import ClaimToken, EpochId, SessionId
from oah.errors import EpochMismatch, LeaseError, Unavailable
from oah.ports.broker import Held, Renewal, RenewReply, Restore
from oah.ports.store import Stop
from oah.worker.context import WorkerContext
from oah.worker.table import Entry, Table

log = logging.getLogger(__name__)

_IDLE_PASSES = 15
"""With an empty table, no claim in flight and nothing given up since the last renewal, one only finds what nobody can
explain: that need not be looked for in every pass."""


class Vigil:
    """Says whether this process may go on proving that it owns anything."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}
        self._beat = context.clock.boottime()
        self.stopped = False

    def beat(self) -> None:
        """The main loop lives."""
        self._beat = self._context.clock.boottime()

    def passed(self, witness: str) -> bool:
        """Called by each witness before a pass. False: it must stay silent.

        A pass may follow another at once, when somebody wakes its loop: the host has one period to acknowledge what it
        was asked first, however often it was asked since.
        """
        now = self._context.clock.boottime()
        rules, host = self._context.rules, self._context.agent_host
        if now - self._beat > rules.lease.total_seconds() / 2:
            if host.live():
                host.abandon("the main loop of the worker hangs")
            return False
        with self._lock:
            asked = self._asked.get(witness)
            silent = asked is not None and bool(host.live()) and host.acknowledged_at() < asked
            if asked is None or not silent:
                self._asked[witness] = now
        if asked is not None and silent and now - asked >= rules.period.total_seconds():
            host.abandon("no deadline was acknowledged for one period")
        host.extend({})  # asks for the acknowledgement that the next pass looks for
        return True


class Renew:
    """One pass: the worker's own table → extended, expired or lost."""

    def __init__(self, context: WorkerContext, table: Table, vigil: Vigil, *, mark_now: Callable[[], None]) -> None:
        self._context = context
        self._table = table
        self._vigil = vigil
        self._mark_now = mark_now
        self._passes = 0
        self._looked = 0
        """What the table had left when a renewal was last answered."""
        self._back: list[Entry] = []
        self._strangers: tuple[SessionId, ...] = ()
        self._lock = threading.Lock()

    def restore(self, entries: list[Entry]) -> None:
        """Redis said lost, SQL says ours: with the next pass Redis learns it again."""
        with self._lock:
            self._back.extend(entries)

    def __call__(self) -> None:
        """Raises Unavailable: the loop tries again."""
        if not self._vigil.passed("renew"):
            return
        self._restore()
        left = self._table.left
        held, counter, pending = self._table.renew_view()
        self._passes += 1
        something = held or pending or self._strangers or left != self._looked
        if not something and self._passes % _IDLE_PASSES:
            return
        sent_at = self._context.clock.boottime()
        try:
            reply = self._renew(held, counter, pending)
        except EpochMismatch:
            self._count("epoch", 1)
            return
        except Unavailable:
            self._count("error", 1)
            raise
        self._looked = left
        self._apply(held, reply, sent_at)

    def _renew(self, held: list[Held], counter: int, pending: list[ClaimToken]) -> RenewReply:
        try:
            return self._send(self._context.epochs.current(), held, counter, pending)
        except EpochMismatch:
            return self._send(self._context.epochs.for_renewal(self._context.witness_broker), held, counter, pending)

    def _send(self, epoch: EpochId, held: list[Held], counter: int, pending: list[ClaimToken]) -> RenewReply:
        return self._context.witness_broker.renew(
            epoch,
            self._context.worker_id,
            held,
            lease=self._context.rules.lease,
            counter=counter,
            pending=pending,
            agentless=[session for session in self._strangers if not self._table.knows(session)],
        )

    def _apply(self, held: list[Held], reply: RenewReply, sent_at: float) -> None:
        by_state: dict[Renewal, list[Held]] = {state: [] for state in Renewal}
        for each, state in zip(held, reply.states, strict=True):
            by_state[state].append(each)
        self._table.renewed(by_state[Renewal.EXTENDED], sent_at=sent_at)
        for state, members in by_state.items():
            self._count(str(state), len(members))
        self._strangers = reply.strangers
        if by_state[Renewal.LOST]:
            self._table.doubt(by_state[Renewal.LOST])
            self._mark_now()
        self._context.agent_host.extend(self._table.deadlines())
        self._context.telemetry.gauge("oah_witness_age_seconds", 0.0, witness="renew")

    def _restore(self) -> None:
        with self._lock:
            entries, self._back = self._back, []
        restores = [
            Restore(
                session_id=e.session_id,
                worker_id=self._context.worker_id,
                token=e.token,
                parked=e.phase.parked,
                lane=e.lane,
                workspace_id=e.workspace_id,
                ready_class=e.ready_class,
                life=self._context.rules.lease,
            )
            for e in entries
            if e.lane is not None and e.workspace_id is not None
        ]
        if not restores:
            return
        try:
            self._context.witness_broker.restore(self._context.epochs.current(), restores)
        except (LeaseError, Unavailable) as error:
            log.debug("restore again with the next mark: %s", error)

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._context.telemetry.count("oah_renewals_total", number, outcome=outcome)


class Losses(Protocol):
    """What to do with sessions that SQL no longer knows as ours, and with runs to be stopped."""

    def lost(self, entries: list[Entry]) -> None: ...
    def stop_runs(self, stops: tuple[Stop, ...]) -> None: ...


class Mark:
    """One pass: the liveness mark of every owner row, which also brings what is to be stopped."""

    def __init__(self, context: WorkerContext, table: Table, vigil: Vigil, renew: Renew, losses: Losses) -> None:
        self._context = context
        self._table = table
        self._vigil = vigil
        self._renew = renew
        self._losses = losses

    def __call__(self) -> None:
        """Raises Unavailable: the loop tries again."""
        if not self._vigil.passed("mark"):
            return
        view = self._table.mark_view()
        begun_at = self._context.clock.boottime()
        if not view:
            return
        try:
            reply = self._context.store.mark(self._context.worker_id, view, timeout=self._context.rules.period / 2)
        except Unavailable:
            self._context.telemetry.count("oah_marks_total", outcome="error")
            raise
        read = [pair for pair in view if pair[0] not in reply.unread]
        self._table.heard(reply.heard, begun_at=begun_at)
        back, lost = self._table.marked(read, reply.confirmed, begun_at=begun_at)
        self._context.agent_host.extend(self._table.deadlines())
        self._context.agent_host.marked(begun_boottime=begun_at)
        self._context.telemetry.count("oah_marks_total", len(reply.confirmed), outcome="kept")
        self._context.telemetry.gauge("oah_witness_age_seconds", 0.0, witness="mark")
        if back:
            self._renew.restore(back)
        if lost:
            self._context.telemetry.count("oah_marks_total", len(lost), outcome="lost")
            self._losses.lost(lost)
        if reply.stops:
            self._losses.stop_runs(reply.stops)
