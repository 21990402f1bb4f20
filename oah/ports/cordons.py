"""Cordons that outlive a worker: rows by host and name, written with the commands that tell who is alive now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from oah.core.model.cordon import Cordon
from oah.core.model.worker import WorkerReport


class CordonStore(Protocol):
    """What an operator has cordoned. What drains, rollouts and who scales tell an incarnation ends with it, and is no
    row here."""

    def cordon_workers(self, workers: Sequence[WorkerReport], *, lasting: timedelta | None, by: str) -> None:
        """Keep a cordon of each, and tell each, in one transaction. `lasting`: from now on; None: until it is taken
        back. A later one takes the place of an earlier one."""
        ...

    def uncordon_workers(self, workers: Sequence[WorkerReport], gone: Sequence[Cordon] = (), *, by: str) -> None:
        """Take back the cordons of these and tell each; likewise those of workers that are gone, who cannot be told."""
        ...

    def cordon_of(self, host: str, name: str) -> Cordon | None:
        """The one that stands; None: there is none, or its time is over."""
        ...

    def cordons(self, pool: str | None = None) -> list[Cordon]:
        """All that stand, by name and host."""
        ...
