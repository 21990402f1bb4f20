"""Cordon and uncordon workers by their names: kept in SQL for those who come after them, and told to who is alive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.cordon import Cordon
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport
from oah.errors import Conflict, NotFound
from oah.ports.broker import Broker
from oah.ports.store import Store
from oah.services.commands import find, hint, of_pool


@dataclass(frozen=True, slots=True)
class Told:
    """A worker whose cordon was made or taken back. `alive`: it has a command; else nobody was there to be told."""

    worker_id: WorkerId
    name: str
    alive: bool = True


def cordon(store: Store, broker: Broker, named: str, *, lasting: timedelta | None, by: str) -> Told:
    """`lasting`: from now on; None: until it is uncordoned. Raises NotFound, Conflict ``ambiguous_worker``,
    Unavailable."""
    return _cordon(store, broker, [find(broker, named)], lasting=lasting, by=by)[0]


def cordon_pool(store: Store, broker: Broker, pool: str, *, lasting: timedelta | None, by: str) -> list[Told]:
    """Those that are alive now. Raises NotFound, Unavailable."""
    return _cordon(store, broker, of_pool(broker, pool), lasting=lasting, by=by)


def uncordon(store: Store, broker: Broker, named: str, *, by: str) -> Told:
    """Also the end of a drain that has not ended the worker. Of one that is gone, what was kept for the next one.
    Raises as `cordon`."""
    try:
        return _uncordon(store, broker, [find(broker, named)], [], by=by)[0]
    except NotFound:
        gone = [each for each in store.cordons() if named in (each.name, each.worker_id)]
        if not gone:
            raise
    if len(gone) > 1:
        hosts = ", ".join(each.host for each in gone[:5])
        raise Conflict(
            f"workers of {len(gone)} hosts that are named '{named[:80]}' are cordoned: {hosts}",
            code="ambiguous_worker",
            hint="say its id: `oah worker cordons`",
        )
    alive = [each for each in broker.workers() if (each.host, each.name) == (gone[0].host, gone[0].name)]
    if alive:  # it was named by the id of an earlier life
        return _uncordon(store, broker, [max(alive, key=lambda each: each.started_at)], [], by=by)[0]
    return _uncordon(store, broker, [], gone, by=by)[0]


def uncordon_pool(store: Store, broker: Broker, pool: str, *, by: str) -> list[Told]:
    """Its workers, and what is kept for those that will come. Raises NotFound, Unavailable."""
    kept = store.cordons(pool)
    try:
        alive = of_pool(broker, pool)
    except NotFound:
        if not kept:
            raise
        alive = []
    there = {(each.host, each.name) for each in alive}
    return _uncordon(store, broker, alive, [each for each in kept if (each.host, each.name) not in there], by=by)


def listed(store: Store, broker: Broker) -> list[tuple[Cordon, bool]]:
    """All that stand, and whether a worker of that name is alive. Raises Unavailable."""
    there = {(each.host, each.name) for each in broker.workers()}
    return [(each, (each.host, each.name) in there) for each in store.cordons()]


def _cordon(
    store: Store, broker: Broker, workers: list[WorkerReport], *, lasting: timedelta | None, by: str
) -> list[Told]:
    store.cordon_workers(workers, lasting=lasting, by=by)
    hint(broker, [each.id for each in workers])
    return [Told(each.id, each.name) for each in workers]


def _uncordon(store: Store, broker: Broker, workers: list[WorkerReport], gone: list[Cordon], *, by: str) -> list[Told]:
    store.uncordon_workers(workers, gone, by=by)
    hint(broker, [each.id for each in workers])
    told = [Told(each.id, each.name) for each in workers]
    return [*told, *(Told(each.worker_id, each.name, alive=False) for each in gone)]
