"""Whether people and the fleet want this worker to take new runs.

Two things cordon it. What this life was told or found out itself (a drain, a rollout, an agent that cannot be killed)
ends with it, or when it is uncordoned. What an operator has cordoned stands in SQL, is applied before the first claim,
and ends when it is taken back or when its time is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oah.core.model.cordon import Cordon
from oah.ports.commands import KEPT, WorkerCommand
from oah.worker.context import WorkerContext

log = logging.getLogger(__name__)

AGAIN = 60.0
"""Seconds between two looks when nothing was said: somebody may have cordoned the name while this life was not in the
registry yet."""


class Cordons:
    """``__call__`` comes with every heartbeat and looks when there is something to see. From any thread.

    ``turned``: it takes new runs, or takes them no more.
    """

    def __init__(self, context: WorkerContext, *, turned: Callable[..., None]) -> None:
        self._context = context
        self._turned = turned
        self._lock = threading.Lock()
        self._own = False
        self._kept: Cordon | None = None
        self._asked = False
        """An operator has said so, and the row has not been read since."""
        self._said = 0
        """How often somebody has said something: what was read before that is old."""
        self._looking = threading.Lock()
        self._look_at = 0.0
        self._prepared = False
        self._applied = False

    @property
    def kept(self) -> Cordon | None:
        """The operator's."""
        return self._kept

    def of_this_life(self) -> None:
        """Until it ends, or somebody uncordons it."""
        with self._lock:
            self._own = True
            self._apply()

    def begin(self, command: WorkerCommand) -> None:
        """Raises Unavailable: it takes nothing all the same."""
        with self._lock:
            if not command.data.get(KEPT):
                self._own = True
            else:
                self._asked, self._look_at = True, 0.0
                self._said += 1
            self._apply()
        self()

    def end(self) -> None:
        """What an operator wants kept is taken back with its row: this may have been said by somebody else. Raises
        Unavailable: it stays cordoned meanwhile, if it was kept."""
        with self._lock:
            self._own, self._look_at = False, 0.0
            self._said += 1
            self._apply()
        self()

    def __call__(self) -> None:
        """Raises Unavailable: everything stays as it is."""
        with self._looking:
            now, said = self._context.clock.monotonic(), self._said
            if not self._prepared or now >= self._look_at:
                self._found(self._context.store.cordon_of(self._context.host, self._context.name), now, said)

    def _found(self, kept: Cordon | None, now: float, said: int) -> None:
        with self._lock:
            if said != self._said:
                return  # who has said something meanwhile looks next
            turns = (kept is None) is not (self._kept is None)
            if turns:
                log.info("%s", "an operator's cordon is over" if kept is None else f"cordoned by {kept.by}")
            self._kept, self._asked = kept, False
            left = AGAIN if kept is None or kept.left is None else min(kept.left.total_seconds(), AGAIN)
            # Who cordoned the name before it was in the registry has told its predecessor: the first heartbeat looks.
            self._look_at = now + left if self._prepared else 0.0
            self._prepared = True
            if turns or self._stands is not self._applied:  # the registry also shows whose it is
                self._apply()

    @property
    def _stands(self) -> bool:
        return self._own or self._asked or self._kept is not None

    def _apply(self) -> None:
        self._applied = self._stands
        self._turned(cordoned=self._applied)
