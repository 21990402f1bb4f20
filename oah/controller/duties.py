"""The duties of a leader: which service is called how often, and in which order.

One thread does what only a leader may: clocks and epoch first, because nothing else can be judged without them, then
passed leases, then what has time. A duty that a store's absence ends waits for its next turn; those after it have
theirs in the next pass, so that one that always fails starves no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import EpochId
from oah.core.policy.epochs import Suspect, Trusted, Unfinished
from oah.errors import EpochMismatch
from oah.ports.clock import Clock
from oah.ports.telemetry import Telemetry
from oah.runtime.leadership import Leadership
from oah.services.decisions import Decisions
from oah.services.epoch import Checked, EpochKeeper
from oah.services.rehydrate import Rehydrate


@dataclass(frozen=True, slots=True)
class Duty:
    """A name, how often, and what to call."""

    name: str
    every: timedelta
    do: Callable[[], object]


class Rota:
    """Calls the duties that are due, in order. ``floor``: how often the loop that calls it passes."""

    def __init__(
        self, duties: Sequence[Duty], clock: Clock, epochs: EpochKeeper, *, going_on: Callable[[], bool]
    ) -> None:
        self._duties = tuple(duties)
        self._clock = clock
        self._epochs = epochs
        self._going_on = going_on
        self._next = [0.0] * len(self._duties)

    def restart(self) -> None:
        """A new leadership: everything is due."""
        self._next = [0.0] * len(self._duties)

    def __call__(self) -> timedelta | None:
        """One pass. Raises what a duty raises; on ``EpochMismatch`` the epoch has been read again."""
        for index, duty in enumerate(self._duties):
            now = self._clock.monotonic()
            if now < self._next[index]:
                continue
            if not self._going_on():
                return None
            self._next[index] = now + duty.every.total_seconds()
            try:
                duty.do()
            except EpochMismatch:
                self._epochs.refresh()
                raise
        return None


class Acting:
    """One thread's work under the leader lease.

    What may not take longer than the lease is a step, not a pass: rebuilding a large shard takes many steps, and giving
    up leadership in the middle would only make another begin again. A step that hangs is still seen.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._step = ExitStack()

    def only(self, work: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        """``work`` for a loop, done only while this process leads."""

        def pass_of_the_leader() -> timedelta | None:
            if not self._leadership.leads():
                return None
            with self._step:
                self._begin()
                return work()

        return pass_of_the_leader

    def going_on(self) -> bool:
        """Asked between two steps: whether this process still leads; a new step begins."""
        self._step.close()
        self._begin()
        return self._leadership.leads()

    def _begin(self) -> None:
        self._step.enter_context(self._leadership.acting())


class KeepEpoch:
    """Check the epoch; rebuild the shard under a new one when it is suspect, or finish what another began."""

    def __init__(
        self,
        epochs: EpochKeeper,
        rehydrate: Rehydrate,
        telemetry: Telemetry,
        decisions: Decisions,
        *,
        going_on: Callable[[], bool],
    ) -> None:
        self._epochs = epochs
        self._rehydrate = rehydrate
        self._telemetry = telemetry
        self._decisions = decisions
        self._going_on = going_on
        self.settled = False
        """Whether the shard was found open and filled: before that the relay would disturb the order of age."""

    def __call__(self) -> None:
        """One check, and what follows from it. Raises Unavailable and EpochMismatch."""
        checked = self._epochs.check()
        self.settled = isinstance(checked.decision, Trusted)
        if self.settled:
            self._show("open")
            return
        epoch = self._to_rebuild(checked)
        if epoch is not None:
            self._show("rebuilding")
            self._rehydrate(epoch, self._going_on)
            self.settled = isinstance(self._epochs.check().decision, Trusted)
        if self.settled:
            self._show("open")

    def _to_rebuild(self, checked: Checked) -> EpochId | None:
        match checked.decision:
            case Unfinished():
                return checked.newest
            case Suspect():
                self._show("suspect")
                return self._epochs.mint(checked, self._decisions)
            case Trusted():
                return None

    def _show(self, now: str) -> None:
        for state in ("open", "rebuilding", "suspect"):
            self._telemetry.gauge("oah_epoch_state", int(state == now), state=state)
