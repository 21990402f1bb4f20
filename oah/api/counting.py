"""Counting rows for many who ask: one thread counts, the others wait for what it finds."""

from __future__ import annotations

import threading

from oah.api.context import ApiContext
from oah.ports.store import StoreCounts
from oah.services.sparing import Sparing


class Counting:
    """Any thread."""

    def __init__(self, context: ApiContext) -> None:
        self._lock = threading.Lock()
        self._counts = Sparing(context.clock, lambda: context.store.counts(None, lease=context.lease))

    def __call__(self) -> StoreCounts:
        """Of all workspaces; a little old where counting takes long. Raises Unavailable."""
        with self._lock:
            return self._counts()
