"""``oah doctor``: is this deployment as it should be? Exit 1 when something is wrong.

Without ``--direct`` it asks the API: does it answer, is it ready, does anybody lead and work. With it, database and
Redis themselves: versions, eviction, durability, clocks, and the audit of SQL against Redis; and the cluster, where a
controller needs one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from oah import __version__
from oah.cli.audit import audit, epoch_findings
from oah.cli.cluster import judge_cluster, judge_election
from oah.cli.configuration import unknown_names
from oah.cli.connection import Connection, pass_connection
from oah.cli.direct import direct_broker, direct_option, direct_store
from oah.cli.failures import Exit
from oah.cli.findings import (
    ClockReading,
    Finding,
    Level,
    bad,
    judge_broker,
    judge_clocks,
    judge_platform,
    judge_settings,
    judge_store,
    ok,
    warn,
)
from oah.cli.output import STATUS_COLOURS, emit_json, json_option
from oah.cli.sizing import judge_scaling
from oah.cli.stuck import judge_diagnosis
from oah.errors import InvalidRequest, OahError
from oah.services import explain

if TYPE_CHECKING:
    from oah.ports.broker import Broker
    from oah.ports.store import Store
    from oah.settings import Settings


@click.command()
@direct_option
@json_option
@pass_connection
@click.pass_context
def doctor(ctx: click.Context, connection: Connection, /, *, direct: bool, as_json: bool) -> None:
    """Is this deployment as it should be? Exit 1 when something is wrong."""
    settings = connection.settings
    findings = [*judge_settings(settings, unknown_names(settings, os.environ)), *judge_platform(settings)]
    findings += judge_election(settings)
    findings += examine_stores(settings) + examine_cluster(settings) if direct else examine_api(connection)
    worst = Level.ERROR if any(finding.level is Level.ERROR for finding in findings) else Level.OK
    if as_json:
        emit_json({"ok": worst is Level.OK, "findings": [finding.document() for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    ctx.exit(Exit.FAILED if worst is Level.ERROR else Exit.DONE)


def _print(finding: Finding) -> None:
    mark = click.style(finding.level.ljust(7), fg=STATUS_COLOURS[finding.level])
    hint = f" (hint: {finding.hint})" if finding.hint and finding.level is not Level.OK else ""
    click.echo(f"{mark}  {finding.check:<16} {finding.message}{hint}")


def guarded(check: str, look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """The findings of one look; an error of ours becomes a finding, so that the others are still made."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except OahError as error:
        found.append(bad(check, error.message, error.hint))
    return found


# --- through the API ------------------------------------------------------------------------------------------------


def examine_api(connection: Connection) -> list[Finding]:
    """What an API can say of the deployment."""
    client = connection.client

    def alive() -> Iterator[Finding]:
        client.health()
        yield ok("api", connection.url)

    def ready() -> Iterator[Finding]:
        client.ready()
        yield ok("ready", "database and broker answer")

    def fleet() -> Iterator[Finding]:
        yield from judge_fleet(client.workers())
        yield from judge_cordons(client.cordons())
        yield from judge_leader(client.controller())

    def queue() -> Iterator[Finding]:
        yield from judge_queue(client.queue())

    def stuck() -> Iterator[Finding]:
        yield from judge_diagnosis(client.diagnosis())

    def scaling() -> Iterator[Finding]:
        yield from judge_scaling(client.pools(), client.scale_decisions(limit=100))

    found = guarded("api", alive)
    if found[-1].level is Level.ERROR:
        return found
    looks = {"ready": ready, "fleet": fleet, "queue": queue, "scaling": scaling, "stuck": stuck}
    return [*found, *(finding for check, look in looks.items() for finding in guarded(check, look))]


def judge_fleet(workers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Whether anybody can take runs, and whether all are of this release."""
    taking = [worker for worker in workers if not (worker.get("cordoned") or worker.get("draining"))]
    if not workers:
        yield bad("workers", "no worker reports: runs wait", "start oah-worker")
    elif not taking:
        yield bad("workers", f"all {len(workers)} workers are cordoned or draining: runs wait", "oah worker uncordon")
    else:
        yield from _judge_room(taking, len(workers))
    versions = Counter(str(worker.get("version")) for worker in workers)
    if set(versions) - {__version__}:
        found = ", ".join(f"{count} of {version}" for version, count in sorted(versions.items()))
        yield warn("versions", f"workers of other releases: {found}; this is {__version__}", "oah rollout restart POOL")


def judge_cordons(cordons: list[dict[str, Any]]) -> Iterator[Finding]:
    """Who was cordoned by name: one that is forgotten is found when a worker of that name comes back."""
    for alive in (True, False):
        names = [f"{each['name']} on {each['host']}" for each in cordons if bool(each.get("alive")) is alive]
        if not names:
            continue
        some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        if alive:
            yield ok("cordons", f"{len(names)} worker(s) cordoned by an operator: {some}")
        else:
            words = f"{len(names)} cordoned worker(s) are gone, whoever follows under their names takes nothing: {some}"
            yield warn("cordons", words, "oah worker cordons, oah worker uncordon NAME")


def _judge_room(taking: list[dict[str, Any]], workers: int) -> Iterator[Finding]:
    """Slots of those that take runs, and whose machines are short of something."""
    short = [worker for worker in taking if worker.get("pressure")]
    calm = [worker for worker in taking if not worker.get("pressure")]
    slots = sum(int(worker.get("slots_max") or worker.get("slots") or 0) for worker in calm)
    if calm:
        yield ok("workers", f"{len(calm)} of {workers} take runs, {slots} slots")
    if short:
        resources = sorted({str(each) for worker in short for each in worker["pressure"]})
        words = f"{len(short)} of {workers} workers take nothing, short of {', '.join(resources)}"
        hint = "see oah worker list; more machines, fewer slots, or other thresholds (OAH_WORKER__PRESSURE__…)"
        yield warn("pressure", words, hint) if calm else bad("pressure", f"{words}: runs wait", hint)


def judge_leader(controller: dict[str, Any]) -> Iterator[Finding]:
    """Whether anybody recovers lost runs."""
    leader = controller.get("leader")
    if leader:
        yield ok("leader", str(leader))
    else:
        yield bad("leader", "nobody leads: runs of lost workers are not recovered", "start oah-controller")


def judge_queue(queue: dict[str, Any]) -> Iterator[Finding]:
    """Whether what waits can be taken."""
    waiting, schedulable = queue.get("uniqueReadySessionCount") or 0, queue.get("readySessionCount") or 0
    if waiting > schedulable:
        yield warn(
            "queue",
            f"{waiting - schedulable} ready session(s) that no live worker can take: wrong pool or agent",
            "oah session list, oah worker list",
        )
    else:
        yield ok("queue", f"{waiting} ready session(s)")
    stale = queue.get("staleReadySessionCount") or 0
    if stale:
        yield warn("stale_ready", f"{stale} session(s) are ready with nothing to start", "normal for a moment")


# --- the stores themselves ------------------------------------------------------------------------------------------


def examine_stores(settings: Settings) -> list[Finding]:
    """Database, broker, clocks, audit."""
    found: list[Finding] = []

    def database() -> Iterator[Finding]:
        with direct_store(settings) as store:
            store.check()
            yield from judge_store(store.facts())
            yield from _migrated(store)
            found.extend(guarded("broker", lambda: _with_broker(settings, store)))

    looked = guarded("database", database)
    return [*looked, *found]


def examine_cluster(settings: Settings) -> list[Finding]:
    """The cluster that controllers are elected or scale in; nothing where none does."""
    from oah.bootstrap.kubernetes import cluster_facts

    if settings.controller.election != "kubernetes" and settings.scale.target != "kubernetes":
        return []
    return guarded("kubernetes", lambda: judge_cluster(cluster_facts(settings), settings))


def _migrated(store: Store) -> Iterator[Finding]:
    facts = store.facts()
    has, wants = facts.get("schema"), facts.get("schema_wanted")
    if has == wants:
        yield ok("schema", str(has))
    else:
        yield bad("schema", f"the database is at {has or 'nothing'}, this release wants {wants}", "oah db upgrade")


def _with_broker(settings: Settings, store: Store) -> Iterator[Finding]:
    try:
        with direct_broker(settings) as broker:
            yield from judge_broker(broker.facts())
            yield from clocks(store, broker, margin=settings.margin.total_seconds())
            yield from epoch_findings(store, broker)
            yield from judge_leader({"leader": broker.leader()})
            yield from poison(broker)
            yield from audit(store, broker, lease=settings.lease, pause=time.sleep).findings()
            yield from judge_diagnosis(explain.told(explain.diagnose(store, broker, None, lease=settings.lease)))
    except InvalidRequest as error:
        yield warn("broker", error.message, error.hint)


def poison(broker: Broker) -> Iterator[Finding]:
    """Values in Redis that were not ours."""
    found = broker.poison()
    if found:
        names = ", ".join(sorted({key for key, _ in found})[:5])
        yield warn(
            "poison", f"{len(found)} unreadable value(s) were set aside, under {names}", "who else writes there?"
        )


def clocks(store: Store, broker: Broker, *, margin: float) -> Iterator[Finding]:
    """Offsets of the servers' clocks from ours, and whether one steps while we look."""
    sources: dict[str, Callable[[], float]] = {"database": store.now, "redis": broker.now}
    first = {name: _offset(read) for name, read in sources.items()}
    readings = [_wall(name, read) for name, read in sources.items()]
    last = {name: _offset(read) for name, read in sources.items()}
    steps = {name: _step(first[name], last[name]) for name in sources}
    yield from judge_clocks(readings, steps=steps, margin=margin)


def _wall(name: str, read: Callable[[], float]) -> ClockReading:
    before = time.time()
    moment = read()
    return ClockReading(name, before, moment, time.time())


def _offset(read: Callable[[], float]) -> tuple[float, float]:
    """Bounds of (server clock - CLOCK_BOOTTIME)."""
    before = _boottime()
    moment = read()
    return moment - _boottime(), moment - before


def _step(first: tuple[float, float], last: tuple[float, float]) -> float:
    """How far the second offset certainly lies beside the first."""
    if last[0] > first[1]:
        return last[0] - first[1]
    return min(last[1] - first[0], 0.0)


def _boottime() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
