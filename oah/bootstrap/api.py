"""``oah-api``: with workers and the leader's duties inside, or alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.cron.times import CronSimTimes
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.written import written
from oah.adapters.websocket.lines import SocketLines
from oah.api.app import create_app
from oah.api.context import ApiContext
from oah.api.firstkey import ensure_admin_key
from oah.api.server import Server
from oah.bootstrap.answers import workspace_rules
from oah.bootstrap.controller import controller_of
from oah.bootstrap.endpoint import PrivateEndpoint
from oah.bootstrap.jobs import job_queue
from oah.bootstrap.kit import PROFILES_DIR, Kit, needs_a_server, oah_version, open_kit, run
from oah.bootstrap.mail import post_of
from oah.bootstrap.webhooks import webhook_limits
from oah.bootstrap.worker import worker_of
from oah.core.model.ids import WorkerId
from oah.core.policy import admission
from oah.core.policy.children import Bounds, Reach
from oah.errors import Unavailable
from oah.ports.broker import Broker
from oah.ports.jobs import JobQueue, UntoldQueue
from oah.ports.store import SubmitLimits
from oah.runtime.component import Component
from oah.runtime.group import Group
from oah.runtime.prelude import Prelude
from oah.services import children
from oah.settings import ChildSettings, Settings
from oah.worker.worker import Worker

log = logging.getLogger(__name__)


def api_process(settings: Settings, *, api_only: bool) -> int:
    """``oah-api``: with workers and the leader's duties inside unless ``api_only``. Returns the exit code."""
    if api_only:
        needs_a_server(settings, "oah-api --api-only")
    kit = open_kit(settings, process="api")
    endpoints = [] if api_only else [_endpoint(kit) for _ in range(settings.embedded_workers)]
    workers = [worker_of(kit, endpoint=endpoint, api_url=lambda: server.url) for endpoint in endpoints]
    jobs: JobQueue = UntoldQueue() if api_only and settings.jobs_inline else job_queue(kit)
    app = create_app(_api_context(kit, workers, jobs, prepared=lambda: _prepared(prelude)))
    server = Server(app, host=settings.api_host, port=settings.api_port)
    server.bind()

    def behind() -> Sequence[Component]:
        shown = [endpoint.component for endpoint in endpoints]
        return [] if api_only else [*controller_of(kit, endpoint=None, jobs=jobs), *shown, *workers]

    prelude = Prelude("api-prelude", lambda: _prepare_api(kit), behind, clock=kit.clock)
    group = Group([server, prelude], clock=kit.clock)
    grace = timedelta(seconds=5 if api_only else settings.worker.drain_grace_seconds)
    return run(kit, group, grace=grace, on_serving=lambda: log.info("listening", extra={"url": server.url}))


def _endpoint(kit: Kit) -> PrivateEndpoint:
    """Of a worker inside this process: the API reaches it like any other."""
    return PrivateEndpoint(kit, host="127.0.0.1", port=0, reasons=list)


def _children(settings: ChildSettings) -> children.Rules:
    bounds = Bounds(settings.depth, settings.live, settings.in_all)
    return children.Rules(bounds, Reach(frozenset(settings.agents), frozenset(settings.pools)))


def _prepare_api(kit: Kit) -> None:
    kit.store.migrate()
    ensure_admin_key(kit.store, kit.clock, kit.ids, kit.settings.data_dir)


def _api_context(kit: Kit, workers: Sequence[Worker], jobs: JobQueue, *, prepared: Callable[[], None]) -> ApiContext:
    settings = kit.settings
    limits = settings.limits
    profiles = tuple(load_profiles(settings.data_dir / PROFILES_DIR))
    post, watch = post_of(kit)
    return ApiContext(
        store=kit.store,
        broker=kit.broker,
        clock=kit.clock,
        ids=kit.ids,
        telemetry=kit.telemetry,
        blobs=DirectoryBlobs(settings.blobs),
        epoch=kit.epoch_or_none,
        profiles=lambda: profiles,
        exposition=kit.telemetry.exposition,
        post=post,
        watch=watch,
        times=CronSimTimes(),
        lease=settings.lease,
        auth=settings.auth,
        rules=admission.Rules(input_bytes=limits.input_bytes),
        limits=SubmitLimits(limits.queued_per_session, limits.queued_per_workspace),
        body_bytes=limits.body_bytes,
        batch_runs=limits.batch_runs,
        ready={"database": kit.store.check, "redis": lambda: _ask(kit.broker), "start": prepared},
        stuck=lambda: [reason for worker in workers for reason in worker.alive.stuck()],
        local_workers=lambda: frozenset(WorkerId(worker.id) for worker in workers),
        jobs=jobs,
        webhooks=webhook_limits(settings),
        lines=SocketLines(),
        written=written,
        answer_rules=workspace_rules,
        weigh=kit.weigh(),
        children=_children(settings.children),
        subagent_reserve=settings.scale.subagent_reserve,
        version=oah_version(),
    )


def _prepared(prelude: Prelude) -> None:
    """The schema is there, the first key is written, what runs beside the API has been started."""
    if not prelude.prepared:
        raise Unavailable("still starting")


def _ask(broker: Broker) -> None:
    broker.leader()
