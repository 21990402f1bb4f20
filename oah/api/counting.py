"""Counting rows for many who ask: one thread counts, the others wait for what it finds."""

from __future__ import annotations

import threading

from oah.api.context import ApiContext
from oah.services.inspect import Counted, count
from oah.services.sparing import Sparing


class Counting:
    """Any thread."""

    def __init__(self, context: ApiContext) -> None:
        self._lock = threading.Lock()
        self._counts = Sparing(context.clock, lambda: count(context.store, context.broker, lease=context.lease))

    def __call__(self) -> Counted:
        """Of all workspaces; a little old where counting takes long. Raises Unavailable."""
        with self._lock:
            return self._counts()
