"""How a worker ends: no more claims; what runs may finish within the grace; the rest is released with nothing counted
against it; nothing is left behind. Also what a drain by command needs of it, while the worker serves on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.core.model.drain import AtDeadline
from oah.errors import OahError
from oah.runtime.component import Component
from oah.worker.claimer import Claimer
from oah.worker.context import WorkerContext
from oah.worker.draining import Draining, give_back
from oah.worker.hooks import Hooks
from oah.worker.keeper import Keeper
from oah.worker.parked import Parked
from oah.worker.settler import Settler
from oah.worker.slots import Slots
from oah.worker.waiting import Waiting
from oah.worker.witnesses import Vigil

log = logging.getLogger(__name__)

BEAT = 0.25
"""Seconds between two answers of the main loop to the watchdog."""

CLAIMS_END = 5.0
"""Seconds that a drain waits for a claim or a start that is under way; later ones are left to their lease."""

FLUSH_ENDS = 10.0
"""Seconds that a drain waits for outcomes to be recorded."""

HOOKS_END = 5.0
"""Seconds that a drain waits for hooks of runs that have ended."""

PARTS_END = 3.0
"""Seconds that a drain waits for its threads: one that hangs in a store is left behind, it starts nothing any more."""

KILLS_END = 30.0
"""Seconds that a drain waits for slots whose agents were ended."""


class Stopping:
    """``__call__`` is the last thing that the main loop does; it answers the watchdog meanwhile. ``crashed``: nothing
    more is waited for. ``grace``: how long what runs may go on, which a second signal makes shorter."""

    def __init__(
        self,
        context: WorkerContext,
        vigil: Vigil,
        claimer: Claimer,
        settler: Settler,
        slots: Slots,
        waiting: Waiting,
        parked: Parked,
        keeper: Keeper,
        hooks: Hooks,
        *,
        crashed: Callable[[], bool],
        grace: Callable[[], timedelta],
    ) -> None:
        self._context = context
        self._vigil = vigil
        self._claimer = claimer
        self._settler = settler
        self._slots = slots
        self._waiting = waiting
        self._parked = parked
        self._keeper = keeper
        self._hooks = hooks
        self._crashed = crashed
        self._grace = grace
        self.drains = Draining(
            context,
            working=lambda: slots.working,
            empty=lambda: self._is_empty,
            stop_claims=self.stop_claims,
            end_parked=self._end_parked,
            end_waiting=self._end_waiting,
        )

    def __call__(self, parts: Sequence[Component]) -> None:
        """``parts``: in the order in which they are told to stop, once everything is recorded."""
        self._claimer.draining = True
        log.info("worker %s drains", self._context.worker_id)
        # A start under way may still bring an assignment.
        self._wait_until(lambda: not self._claimer.busy, CLAIMS_END)
        self._end_parked()
        self.wait_idle(None)
        self.stop_claims()
        self._wait_until(lambda: not self._claimer.busy, CLAIMS_END)
        said = self.drains.said
        give_back(self._slots.working, said)
        self._end_waiting(said)
        self.wait_idle(KILLS_END)
        self._flush()
        self._end_waiting(said)  # also of those whose last turn was recorded just now
        self._end_parked()
        self.wait_idle(KILLS_END)
        self._flush()
        self._wait_until(lambda: self._hooks.idle, HOOKS_END)
        self._end_parts(parts)
        self._context.agent_host.stop()
        with contextlib.suppress(OahError):
            self._context.witness_broker.forget(self._context.worker_id)

    @property
    def _is_empty(self) -> bool:
        """Nothing runs, waits or is kept, and what has ended is recorded, or a store is away."""
        done = self._settler.idle or self._settler.stuck
        claims = self._claimer.busy and not self._claimer.away
        return not (claims or self._slots.working or len(self._waiting) or len(self._parked)) and done

    def wait_idle(self, limit: float | None) -> bool:
        """Wait for the slots so many seconds; None: the grace, which a second signal or a drain makes shorter."""
        begun = self._context.clock.monotonic()
        while not self._slots.wait_idle(BEAT) or len(self._waiting):
            self._vigil.beat()
            if not self._slots.working:  # people may answer until the grace is over
                threading.Event().wait(BEAT)
            longest = limit if limit is not None else 0.0 if self.drains.over else self._grace().total_seconds()
            if self._context.clock.monotonic() - begun >= longest or self._crashed():
                return False
        return True

    def stop_claims(self) -> None:
        """Nothing that was claimed is started any more."""
        self._claimer.stopped = True

    def _end_waiting(self, said: AtDeadline | None) -> None:
        """A conversation cannot move in the middle of a turn: unless somebody has said what becomes of the run, it is
        the recovery policy's."""
        for assignment in self._waiting.all():
            assignment.drained = said
            assignment.give_back = True
            self._waiting.end(assignment)

    def _end_parked(self) -> None:
        """All at once, and without keeping the main loop from answering: an agent that ends slowly takes its grace."""
        ends = [threading.Thread(target=self._keeper.end, args=([s],), daemon=True) for s in self._parked.sessions()]
        for end in ends:
            end.start()
        for end in ends:
            while end.is_alive():
                self._vigil.beat()
                end.join(BEAT)

    def _flush(self) -> None:
        """What has ended is recorded: in SQL, or on this machine's disk for the next incarnation. A store that is away
        is not waited for: SQL hears of it then, and a lease in Redis ends by itself."""
        self._wait_until(lambda: self._settler.idle or self._settler.stuck, FLUSH_ENDS)
        if not self._settler.idle:
            log.warning("a store is away: what has ended is kept here")
            self._settler.secure()

    def _end_parts(self, parts: Sequence[Component]) -> None:
        for part in parts:
            part.stop(timedelta(0))
        begun = self._context.clock.monotonic()
        for part in parts:
            left = PARTS_END - (self._context.clock.monotonic() - begun)
            part.join(timedelta(seconds=max(left, 0.0)))

    def _wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        """At most so long, answering the watchdog."""
        begun = self._context.clock.monotonic()
        while not done() and self._context.clock.monotonic() - begun < seconds:
            self._vigil.beat()
            threading.Event().wait(0.02)
