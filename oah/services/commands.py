"""Speak to one worker: a row in SQL that it takes, and a hint that tells it to look."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport
from oah.errors import Conflict, NotFound, Unavailable
from oah.ports.broker import Broker
from oah.ports.commands import CommandKind
from oah.ports.store import Store

AS_SET = Drain()
"""As the worker's own settings have it."""


def find(broker: Broker, named: str) -> WorkerReport:
    """A live worker by id or by name: of a name the latest incarnation, for one that was killed is still in the
    registry for a while. Raises NotFound, Conflict (a name that workers of several hosts have), Unavailable."""
    found = [report for report in broker.workers() if named in (report.id, report.name)]
    hosts = sorted({report.host for report in found})
    if len(hosts) > 1:
        raise Conflict(
            f"workers of {len(hosts)} hosts are named '{named[:80]}': {', '.join(hosts[:5])}",
            code="ambiguous_worker",
            hint="say its id: `oah worker list`",
        )
    if not found:
        raise NotFound(f"no worker '{named[:80]}' is alive", hint="`oah worker list` shows who is")
    return max(found, key=lambda report: report.started_at)


def of_pool(broker: Broker, pool: str) -> list[WorkerReport]:
    """Those of a pool that are alive now. Raises NotFound, Unavailable."""
    reports = sorted((each for each in broker.workers() if each.pool == pool), key=lambda each: each.id)
    if not reports:
        raise NotFound(f"no worker of pool '{pool[:80]}' is alive", hint="`oah worker list` shows who is")
    return reports


def command(
    store: Store, broker: Broker, named: str, kind: CommandKind, *, by: str, drain: Drain = AS_SET
) -> WorkerReport:
    """The row is committed before this returns. Raises NotFound, Unavailable."""
    report = find(broker, named)
    order(store, broker, [report.id], kind, by=by, drain=drain)
    return report


def command_pool(
    store: Store, broker: Broker, pool: str, kind: CommandKind, *, by: str, drain: Drain = AS_SET
) -> list[WorkerReport]:
    """The same to every worker of a pool that is alive now. Raises NotFound, Unavailable."""
    reports = of_pool(broker, pool)
    order(store, broker, [each.id for each in reports], kind, by=by, drain=drain)
    return reports


def order(
    store: Store, broker: Broker, workers: Sequence[WorkerId], kind: CommandKind, *, by: str, drain: Drain = AS_SET
) -> None:
    """A row each, then one hint to all: they read their rows within a second wherever they run, or at their next
    heartbeat should the hint be lost. ``drain``: of a drain, how long and what then. Raises Unavailable."""
    data = drain.data() if kind is CommandKind.DRAIN else None
    for worker_id in workers:
        store.command_worker(worker_id, kind, by=by, data=data)
    hint(broker, workers)


def hint(broker: Broker, workers: Sequence[WorkerId]) -> None:
    """There are commands for these. They find them without it, later."""
    with contextlib.suppress(Unavailable):
        broker.look(list(workers), quick=True)
