"""What a worker is told to do: commands are rows in SQL, taken in the order in which they were given."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oah.core.model.drain import drain_from
from oah.errors import Unavailable
from oah.ports.commands import CommandKind, WorkerCommand
from oah.worker.claimer import Claimer
from oah.worker.context import WorkerContext
from oah.worker.cordons import Cordons
from oah.worker.draining import Draining
from oah.worker.errands import Errands

log = logging.getLogger(__name__)


class Orders:
    """``__call__`` reads and obeys; from the ear and from the heartbeat, one after the other: what was said last holds.

    ``stopping``: its process ends; that cannot be taken back.
    """

    def __init__(
        self,
        context: WorkerContext,
        claimer: Claimer,
        cordons: Cordons,
        drains: Draining,
        errands: Errands,
        *,
        stopping: Callable[[], bool],
    ) -> None:
        self._context = context
        self._claimer = claimer
        self._cordons = cordons
        self._drains = drains
        self._errands = errands
        self._stopping = stopping
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Raises Unavailable, when all that was taken has been obeyed: nobody is told anything twice."""
        failed: Unavailable | None = None
        with self._lock:
            for command in self._context.store.take_commands(self._context.worker_id):
                log.info("%s by %s", command.kind, command.by)
                try:
                    self._obey(command)
                except Unavailable as error:
                    log.warning("%s by %s: %s", command.kind, command.by, error)
                    failed = failed or error
                except Exception:  # of another release, perhaps: no reason for the worker to end
                    log.exception("%s by %s", command.kind, command.by)
        if failed is not None:
            raise failed

    def _obey(self, command: WorkerCommand) -> None:
        match command.kind:
            case CommandKind.CORDON:
                self._cordons.begin(command)
            case CommandKind.UNCORDON:
                # Also the end of a drain that has not ended the process: what is claimed must not be given back.
                self._drains.end()
                if not self._stopping():  # else runs that wait may still go on
                    self._claimer.stopped = False
                self._cordons.end()
            case CommandKind.DRAIN:
                self._drains.begin(drain_from(command.data))
                self._cordons.of_this_life()
            case CommandKind.KILL | CommandKind.CLOSE | CommandKind.STEER | CommandKind.INPUT | CommandKind.LEND:
                self._errands(command)
