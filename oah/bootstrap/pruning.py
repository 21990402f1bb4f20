"""Pruning by hand, without a leader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.bootstrap.kit import open_broker, open_database
from oah.controller.rules import retention_rules
from oah.ports.telemetry import NullTelemetry
from oah.services.prune import Prune
from oah.settings import Settings


@contextmanager
def open_prune(settings: Settings) -> Iterator[Prune]:
    """Whole laps under the deployment's rules. With ``memory://`` nobody says which workers live: their rows stay."""
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_database(settings)))
        broker = None if settings.in_process else stack.enter_context(closing(open_broker(settings)))
        blobs = DirectoryBlobs(settings.blobs)
        rules = retention_rules(settings)
        rows = settings.retention.batch_rows
        yield Prune(store, blobs, broker, NullTelemetry(), rules, window=rows, windows=None)
