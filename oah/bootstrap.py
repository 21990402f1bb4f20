"""The composition root: settings → adapters → services → components. The only module that knows all.

Each ``…_process`` runs one program of the Procfile in the main thread until a signal or a failure, and returns its
exit code. Nothing here decides anything but what is plugged into what.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.embedded.open import open_server
from oah.adapters.inprocess.noop import AgentsByProfile, NoopAgents
from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.pty.agents import Surroundings
from oah.adapters.pty.factory import PtyAgents
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.recording import RecordingWriter
from oah.adapters.redis.connect import open_broker as connect_broker
from oah.adapters.sql.history import HistoryFile
from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.figures import ProcessGauge
from oah.adapters.system.ids import SystemIds
from oah.api.app import create_app
from oah.api.context import ApiContext
from oah.api.firstkey import ensure_admin_key
from oah.api.server import Server
from oah.controller.process import ControllerContext, Endpoint, create_controller
from oah.controller.rules import controller_rules, recovery_rules
from oah.core.model.ids import EpochId, WorkerId
from oah.core.model.lane import Lane
from oah.core.policy import admission, claim_order
from oah.errors import InvalidRequest, OahError
from oah.ports.broker import Broker, BrokerOptions
from oah.ports.clock import Ids
from oah.ports.store import Store, SubmitLimits
from oah.runtime.component import Component
from oah.runtime.group import Group
from oah.runtime.logging import configure
from oah.runtime.prelude import Prelude
from oah.runtime.probe import Probe
from oah.runtime.process import serve
from oah.services.decisions import Decisions
from oah.services.epoch import EpochKeeper
from oah.services.place import Places
from oah.services.promote import PromoteRuns
from oah.services.recover import RecoverOwners
from oah.settings import Settings
from oah.worker.context import WorkerContext, WorkerRules
from oah.worker.identity import Identity, take_name
from oah.worker.worker import Worker

log = logging.getLogger(__name__)

PROFILES_DIR = "agents.d"
"""Below the data directory: further profiles as TOML."""


def oah_version() -> str:
    """The installed version."""
    try:
        return version("oah")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The opened adapters of one process, and what everything else is made of."""

    settings: Settings
    telemetry: PrometheusTelemetry
    clock: SystemClock
    ids: SystemIds
    store: Store
    broker: Broker
    witness_broker: Broker
    epochs: EpochKeeper
    decisions: Decisions
    holder: str

    @property
    def places(self) -> Places:
        """Where sessions belong in the broker."""
        return Places(self.store, self.broker)

    def recover(self) -> RecoverOwners:
        """Recovery under the deployment's policy."""
        rules = recovery_rules(self.settings)
        return RecoverOwners(self.store, self.places, self.epochs, self.telemetry, rules, self.decisions)

    def promote(self) -> None:
        """What an ear does when nobody ticks: promotion, and the wake tokens with it."""
        PromoteRuns(self.store, self.places)(self.epochs.current())

    def close(self) -> None:
        """Close the stores."""
        for each in (self.witness_broker, self.broker, self.store):
            each.close()


def system_ids() -> Ids:
    """Where new names come from."""
    return SystemIds()


def open_database(settings: Settings) -> Store:
    """The store alone (``--direct``)."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return open_store(settings.database)


def open_broker(settings: Settings) -> Broker:
    """The broker alone (``--direct``)."""
    return _brokers(settings, None)[0]


def open_kit(settings: Settings, *, process: str) -> Kit:
    """Open the adapters. Nothing is contacted yet that may be away: that is retried by who needs it."""
    configure(process=process, level=settings.log_level, form=settings.log_format)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    telemetry = PrometheusTelemetry(process=process, version=oah_version())
    clock, ids = SystemClock(), SystemIds()
    store = open_store(settings.database, telemetry=telemetry)
    broker, witness = _brokers(settings, telemetry)
    return Kit(
        settings=settings,
        telemetry=telemetry,
        clock=clock,
        ids=ids,
        store=store,
        broker=broker,
        witness_broker=witness,
        epochs=EpochKeeper(store, broker, ids, telemetry),
        decisions=Decisions(clock),
        holder=f"{socket.gethostname()}.{os.getpid()}.{ids.nonce()[:8]}",
    )


def _brokers(settings: Settings, telemetry: PrometheusTelemetry | None) -> tuple[Broker, Broker]:
    """The broker, and one with the witness's own connection and time-out: at most half a period."""
    section = settings.redis
    server = open_server(settings.broker, data_dir=settings.data_dir, binary=section.server)
    options = BrokerOptions(
        connect_timeout=timedelta(seconds=section.connect_timeout_seconds),
        answer_timeout=timedelta(seconds=section.answer_timeout_seconds),
        submit_timeout=timedelta(seconds=section.submit_timeout_seconds),
    )
    half = settings.period / 2
    hasty = BrokerOptions(connect_timeout=half, answer_timeout=half, submit_timeout=options.submit_timeout)
    return (
        connect_broker(settings.broker, options=options, telemetry=telemetry, server=server),
        connect_broker(settings.broker, options=hasty, telemetry=telemetry, server=server),
    )


# --- workers --------------------------------------------------------------------------------------------------------


def worker_of(kit: Kit, *, address: str | None = None, on_drain: Callable[[], None] = lambda: None) -> Worker:
    """A worker under the next free name. Raises Conflict when the name asked for is taken."""
    settings = kit.settings
    section = settings.worker
    identity = take_name(settings.data_dir, section.name or socket.gethostname(), exact=section.name is not None)
    worker_id = identity.worker_id(kit.ids.nonce())
    host = PtyHost(
        state_dir=identity.directory / "host",
        worker_id=worker_id,
        margin=settings.margin,
        deadman_enabled=os.environ.get("OAH_TESTING_DEADMAN_OFF") != "1",
    )
    agents = _agents(kit, identity, host)
    profiles = section.profiles or agents.profiles()
    gauge = ProcessGauge()
    slots = section.slots
    context = WorkerContext(
        worker_id=worker_id,
        name=identity.name,
        host=socket.gethostname(),
        version=oah_version(),
        pid=os.getpid(),
        pool=section.pool,
        lanes=tuple(Lane(section.pool, profile) for profile in profiles),
        rules=WorkerRules(
            slots=slots,
            parked=2 * slots if section.parked is None else section.parked,
            lease=settings.lease,
            warm_idle=timedelta(seconds=section.warm_idle_seconds),
            affinity=timedelta(seconds=section.affinity_seconds),
            drain_grace=timedelta(seconds=section.drain_grace_seconds),
            heartbeat=timedelta(seconds=section.heartbeat_seconds),
        ),
        store=kit.store,
        broker=kit.broker,
        witness_broker=kit.witness_broker,
        epochs=kit.epochs,
        clock=kit.clock,
        ids=kit.ids,
        telemetry=kit.telemetry,
        agent_host=host,
        agents=agents,
        outcomes=HistoryFile(identity.directory / "history.db"),
        recover=kit.recover(),
        promote=kit.promote,
        claim_rules=claim_order.Rules(),
        figures=lambda: (gauge.read().cpu_percent, gauge.read().rss_bytes),
        data_dir=settings.data_dir,
        one_engine=settings.database.startswith("sqlite"),
        address=address,
        on_drain=on_drain,
    )
    return Worker(context)


def _agents(kit: Kit, identity: Identity, host: PtyHost) -> AgentsByProfile:
    data_dir = kit.settings.data_dir
    blobs = DirectoryBlobs(data_dir / "blobs")
    writer = RecordingWriter()
    writer.start()
    around = Surroundings(host, blobs, writer, identity.directory / "scratch")
    pty = PtyAgents(load_profiles(data_dir / PROFILES_DIR), around)
    pty.prepare()
    return AgentsByProfile(pty, NoopAgents())


def worker_process(settings: Settings) -> int:
    """``oah-worker``. Returns the exit code."""
    _needs_a_server(settings, "oah-worker")
    kit = open_kit(settings, process="worker")
    section = settings.worker
    worker = worker_of(kit, on_drain=lambda: group.request_stop())  # noqa: PLW0108  group comes later
    prelude = Prelude("worker-prelude", kit.store.migrate, lambda: [worker], clock=kit.clock)
    probe = Probe(
        host=section.host,
        port=_port(section.host, section.port),
        reasons=lambda: [] if worker.ready() else [f"the worker is {worker.state}"],
        metrics=kit.telemetry.exposition,
    )
    group = Group([probe, prelude], clock=kit.clock)
    return _run(kit, group, grace=timedelta(seconds=section.drain_grace_seconds))


# --- controller -----------------------------------------------------------------------------------------------------


def controller_of(kit: Kit, *, endpoint: Endpoint | None) -> Sequence[Component]:
    """The components of a controller."""
    context = ControllerContext(
        store=kit.store,
        broker=kit.broker,
        clock=kit.clock,
        ids=kit.ids,
        telemetry=kit.telemetry,
        epochs=kit.epochs,
        rules=controller_rules(kit.settings),
        holder=kit.holder,
        decisions=kit.decisions,
        endpoint=endpoint,
    )
    return create_controller(context)


def controller_process(settings: Settings) -> int:
    """``oah-controller``. Returns the exit code."""
    _needs_a_server(settings, "oah-controller")
    kit = open_kit(settings, process="controller")
    section = settings.controller
    *duties, probe = controller_of(kit, endpoint=Endpoint(section.host, section.port, kit.telemetry.exposition))
    prelude = Prelude("controller-prelude", kit.store.migrate, lambda: duties, clock=kit.clock)
    return _run(kit, Group([probe, prelude], clock=kit.clock), grace=timedelta(seconds=5))


# --- API ------------------------------------------------------------------------------------------------------------


def api_process(settings: Settings, *, api_only: bool) -> int:
    """``oah-api``: with workers and the leader's duties inside unless ``api_only``. Returns the exit code."""
    if api_only:
        _needs_a_server(settings, "oah-api --api-only")
    kit = open_kit(settings, process="api")
    workers = [] if api_only else [worker_of(kit) for _ in range(settings.embedded_workers)]
    app = create_app(_api_context(kit, workers))
    server = Server(app, host=settings.api_host, port=settings.api_port)
    server.bind()

    def behind() -> Sequence[Component]:
        return [] if api_only else [*controller_of(kit, endpoint=None), *workers]

    prelude = Prelude("api-prelude", lambda: _prepare_api(kit), behind, clock=kit.clock)
    group = Group([server, prelude], clock=kit.clock)
    grace = timedelta(seconds=5 if api_only else settings.worker.drain_grace_seconds)
    return _run(kit, group, grace=grace, on_serving=lambda: log.info("listening", extra={"url": server.url}))


def _prepare_api(kit: Kit) -> None:
    kit.store.migrate()
    ensure_admin_key(kit.store, kit.clock, kit.ids, kit.settings.data_dir)


def _api_context(kit: Kit, workers: Sequence[Worker]) -> ApiContext:
    settings = kit.settings
    limits = settings.limits
    profiles = tuple(load_profiles(settings.data_dir / PROFILES_DIR))
    return ApiContext(
        store=kit.store,
        broker=kit.broker,
        clock=kit.clock,
        ids=kit.ids,
        telemetry=kit.telemetry,
        blobs=DirectoryBlobs(settings.data_dir / "blobs"),
        epoch=lambda: _epoch_or_none(kit),
        profiles=lambda: profiles,
        exposition=kit.telemetry.exposition,
        lease=settings.lease,
        auth=settings.auth,
        rules=admission.Rules(input_bytes=limits.input_bytes),
        limits=SubmitLimits(limits.queued_per_session, limits.queued_per_workspace),
        body_bytes=limits.body_bytes,
        batch_runs=limits.batch_runs,
        ready={"database": kit.store.check, "redis": lambda: _ask(kit.broker)},
        local_workers=lambda: frozenset(WorkerId(worker.id) for worker in workers),
        version=oah_version(),
    )


def _epoch_or_none(kit: Kit) -> EpochId | None:
    try:
        return kit.epochs.current()
    except OahError:
        return None


def _ask(broker: Broker) -> None:
    broker.leader()


# --- shared ---------------------------------------------------------------------------------------------------------


def _run(kit: Kit, group: Group, *, grace: timedelta, on_serving: Callable[[], None] = lambda: None) -> int:
    try:
        return serve(group, grace=grace, on_serving=on_serving)
    finally:
        kit.close()


def _needs_a_server(settings: Settings, program: str) -> None:
    if settings.in_process:
        raise InvalidRequest(
            f"{program} cannot use memory://: that broker lives inside one process",
            code="invalid_settings",
            hint="set OAH_REDIS_URL to redis://… or embedded://, or run oah-api alone",
        )


def _port(host: str, wanted: int) -> int:
    """The port wanted, or any free one when it is taken: further workers of a host are found by the registry."""
    with socket.socket() as trial:
        try:
            trial.bind((host, wanted))
        except OSError:
            return 0
    return wanted
