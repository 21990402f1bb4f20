"""Speak to one worker: a row in SQL that it takes, and a hint that tells it to look."""

from __future__ import annotations

from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport
from oah.errors import NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.commands import CommandKind
from oah.ports.store import Store


def find(broker: Broker, named: str) -> WorkerReport:
    """A live worker by id or by name. Raises NotFound, Unavailable."""
    for report in broker.workers():
        if named in (report.id, report.name):
            return report
    raise NotFound(f"no worker '{named[:80]}' is alive", hint="`oah worker list` shows who is")


def command(store: Store, broker: Broker, named: str, kind: CommandKind, *, by: str) -> WorkerReport:
    """Cordon, uncordon or drain. The row is committed before this returns. Raises NotFound, Unavailable."""
    report = find(broker, named)
    store.command_worker(WorkerId(report.id), kind, by=by)
    try:
        broker.look([report.id], quick=True)
    except Unavailable:
        return report  # the worker reads its commands at its next look
    return report
