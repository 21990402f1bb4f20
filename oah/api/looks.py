"""Looks at the broker for those who ask why runs wait: no request thread waits for one that is known to be away."""

from __future__ import annotations

import threading

from oah.ports.broker import Broker
from oah.services.explain import Dispatch, dispatch


class Looks:
    """``dispatch`` for many threads: while the broker is away one of them tries whether it is back, and the others do
    not wait for that. Each would wait as long as a connection may take, until no thread were left for anything else."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        self._away = self._trying = False

    def __call__(self) -> Dispatch:
        """One look."""
        with self._lock:
            if self._away and self._trying:
                return Dispatch(away=True)
            self._trying = True
        found = Dispatch(away=True)
        try:
            found = dispatch(self._broker)
        finally:
            with self._lock:
                self._away, self._trying = found.away, False
        return found
