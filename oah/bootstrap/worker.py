"""``oah-worker``, and the workers inside an API."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.homes.directory import DirectoryHomes
from oah.adapters.hooks.caller import HookCalls
from oah.adapters.inprocess.noop import AgentsByProfile, NoopAgents
from oah.adapters.pty.agents import DEFAULT_PATH, Surroundings
from oah.adapters.pty.factory import PtyAgents
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.live import Lives
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.pty.programs import Programs
from oah.adapters.pty.recording import RecordingWriter
from oah.adapters.sql.history import HistoryFile
from oah.adapters.system.figures import ProcessGauge
from oah.adapters.system.machine import MachineGauge
from oah.bootstrap.answers import WorkspaceRules, profile_rules, wait_timeouts
from oah.bootstrap.endpoint import PrivateEndpoint
from oah.bootstrap.hardening import shield_worker
from oah.bootstrap.homes import home_directories, tidy_here
from oah.bootstrap.kit import PROFILES_DIR, Kit, needs_a_server, oah_version, open_kit, run
from oah.bootstrap.webhooks import http_sender
from oah.core.dialogue.hooks import hooks_from
from oah.core.dialogue.housing import home_rules
from oah.core.dialogue.profile import Kind, Profile
from oah.core.model.home import HomeMode, HomeRules
from oah.core.model.hook import Hook
from oah.core.model.lane import Lane
from oah.core.policy import claim_order, pressure, retry
from oah.runtime.group import Group
from oah.runtime.prelude import Prelude
from oah.settings import PressureSettings, Settings
from oah.worker.context import WorkerContext, WorkerRules
from oah.worker.draining import grace_of
from oah.worker.identity import Identity, take_name
from oah.worker.worker import Worker

CHECKING = timedelta(seconds=5)
"""Longest that looking for the programs of profiles may hold up a worker's start."""

_log = logging.getLogger(__name__)


def worker_of(
    kit: Kit,
    *,
    endpoint: PrivateEndpoint | None = None,
    api_url: Callable[[], str | None] | None = None,
    on_drain: Callable[[], None] | None = None,
) -> Worker:
    """A worker under the next free name. ``on_drain`` None: it lives inside a process that does not end by its drain.

    Raises Conflict when the name asked for is taken."""
    settings = kit.settings
    section = settings.worker
    identity = take_name(settings.data_dir, section.name or socket.gethostname(), exact=section.name is not None)
    shield_worker(settings, identity.directory)
    worker_id = identity.worker_id(kit.ids.nonce())
    host = PtyHost(
        state_dir=identity.directory / "host",
        worker_id=worker_id,
        margin=settings.margin,
        deadman_enabled=os.environ.get("OAH_TESTING_DEADMAN_OFF") != "1",
    )
    catalogue = load_profiles(settings.data_dir / PROFILES_DIR)
    agents = _agents(kit, identity, host, catalogue, endpoint.lives if endpoint is not None else Lives())
    profiles = section.profiles or agents.profiles()
    withdrawn = withdrawn_profiles(settings, catalogue, profiles)
    gauge = ProcessGauge()
    homes = DirectoryHomes(home_directories(settings), DirectoryBlobs(settings.blobs))
    slots = section.slots
    context = WorkerContext(
        worker_id=worker_id,
        name=identity.name,
        host=socket.gethostname(),
        version=oah_version(),
        pid=os.getpid(),
        pool=section.pool,
        lanes=tuple(Lane(section.pool, profile) for profile in profiles if profile not in withdrawn),
        withdrawn=withdrawn,
        rules=WorkerRules(
            slots=slots,
            slots_min=section.slots_min,
            slot_idle=timedelta(seconds=section.slot_idle_seconds),
            stuck=timedelta(seconds=section.stuck_seconds),
            parked=2 * slots if section.parked is None else section.parked,
            waiting=8 * slots if section.waiting is None else section.waiting,
            lease=settings.lease,
            warm_idle=timedelta(seconds=section.warm_idle_seconds),
            affinity=timedelta(seconds=section.affinity_seconds),
            drain_grace=timedelta(seconds=section.drain_grace_seconds),
            drain_then=section.drain_then,
            heartbeat=timedelta(seconds=section.heartbeat_seconds),
            home_wait=timedelta(seconds=settings.home_wait_seconds),
            tidy=timedelta(seconds=settings.retention.every_seconds),
            agent_uid=section.agent_uid,
            agent_gid=section.agent_gid,
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
        claim_rules=claim_order.Rules(
            **section.class_weights.model_dump(), subagent_reserve=min(section.subagent_reserve, slots - 1)
        ),
        retry_rules=retry_rules(settings, catalogue),
        figures=gauge.read,
        machine=MachineGauge(settings.data_dir).read,
        pressure=pressure_rules(section.pressure),
        slot_weight=kit.weigh(),
        data_dir=settings.data_dir,
        homes=homes,
        place=homes.mark(),
        tidy=tidy_here(kit),
        home_rules=_home_rules(settings, catalogue),
        secrets=kit.secrets,
        one_engine=settings.database.startswith("sqlite"),
        hooks=_hooks(settings, catalogue),
        hook_caller=HookCalls(http_sender(settings)),
        address=(lambda: None) if endpoint is None else endpoint.address,
        token=None if endpoint is None else endpoint.token,
        api_url=api_url or (lambda: settings.api_url),
        nats_url=settings.gateway.url,
        answers=profile_rules(catalogue),
        workspace_answers=WorkspaceRules(kit.store, kit.clock),
        takes_messages=_takes_messages(catalogue),
        message_attempts=settings.mail.max_attempts,
        wait_timeout=wait_timeouts(settings, catalogue),
        on_drain=on_drain or _stay,
        embedded=on_drain is None,
    )
    return Worker(context)


def withdrawn_profiles(
    settings: Settings, catalogue: Mapping[str, Profile], profiles: Sequence[str]
) -> Mapping[str, str]:
    """Which of these are not served, and why: better here than in the runs of users. Logged; takes seconds at most."""
    wish = settings.worker.check_profiles
    if wish == "off":
        return {}
    programs = Programs(settings.worker.path or DEFAULT_PATH, memory=settings.data_dir / "programs.json")
    chosen = [catalogue[name] for name in profiles if name in catalogue]
    withdrawn = _homeless(settings, chosen)
    for name, found in programs.look_all(chosen, within=CHECKING).items():
        if found.fault is not None:
            withdrawn[name] = found.fault
        elif found.mismatch is not None:
            _log.warning("agent %s: %s", name, found.mismatch)
            if wish == "version":
                withdrawn[name] = found.mismatch
    if withdrawn:
        _log.info("not served: %s", "; ".join(f"{name} ({why})" for name, why in sorted(withdrawn.items())))
    return withdrawn


def retry_rules(settings: Settings, catalogue: Mapping[str, Profile]) -> Callable[[str], retry.Rules]:
    """The deployment's rules with what each profile wishes on top."""
    section = settings.retry
    deployment = retry.Rules(
        max_retries=section.max_retries,
        initial=timedelta(seconds=section.initial_seconds),
        factor=section.factor,
        maximum=timedelta(seconds=section.max_seconds),
        jitter=section.jitter,
    )
    rules = {name: retry.merged(deployment, profile.retry) for name, profile in catalogue.items()}
    return lambda profile: rules.get(profile, deployment)


def pressure_rules(section: PressureSettings) -> pressure.Rules:
    """The thresholds of a deployment."""
    return pressure.Rules(
        memory=section.memory,
        load=section.load,
        disk=section.disk,
        hysteresis=section.hysteresis,
        hold=timedelta(seconds=section.hold_seconds),
    )


def _takes_messages(catalogue: Mapping[str, Profile]) -> Callable[[str], bool]:
    refused = {name for name, profile in catalogue.items() if not profile.takes_messages}
    return lambda profile: profile not in refused


def _hooks(settings: Settings, catalogue: Mapping[str, Profile]) -> Callable[[str], tuple[Hook, ...]]:
    """Those of the deployment, then those of the profile. Raises InvalidRequest `invalid_hook`."""
    tables = [hook.model_dump(exclude_none=True) for hook in settings.hooks]
    everywhere = hooks_from(tables, source="settings")
    own = {name: profile.hooks for name, profile in catalogue.items()}
    return lambda profile: (*everywhere, *own.get(profile, ()))


def _homeless(settings: Settings, profiles: Sequence[Profile]) -> dict[str, str]:
    """Those whose homes are shared, where no directory is."""
    if settings.homes_dir is not None:
        return {}
    default = HomeMode(settings.homes_mode)
    housed = [each for each in profiles if each.kind is not Kind.NOOP]
    wanting = [each for each in housed if home_rules(each.tables, default).mode is HomeMode.SHARED]
    return {each.name: "its homes are shared, and OAH_HOMES_DIR is not set" for each in wanting}


def _home_rules(settings: Settings, catalogue: Mapping[str, Profile]) -> Callable[[str], HomeRules | None]:
    default = HomeMode(settings.homes_mode)
    rules = {name: home_rules(p.tables, default) for name, p in catalogue.items() if p.kind is not Kind.NOOP}
    return rules.get


def _agents(
    kit: Kit, identity: Identity, host: PtyHost, catalogue: Mapping[str, Profile], lives: Lives
) -> AgentsByProfile:
    blobs = DirectoryBlobs(kit.settings.blobs)
    writer = RecordingWriter()
    writer.start()
    limits = kit.settings.limits
    around = Surroundings(
        host,
        blobs,
        writer,
        identity.directory / "scratch",
        path=kit.settings.worker.path or DEFAULT_PATH,
        head_bytes=limits.recording_head_bytes,
        tail_bytes=limits.recording_tail_bytes,
        lives=lives,
    )
    pty = PtyAgents(catalogue, around)
    pty.prepare()
    return AgentsByProfile(pty, NoopAgents())


def worker_process(settings: Settings) -> int:
    """``oah-worker``. Returns the exit code."""
    needs_a_server(settings, "oah-worker")
    kit = open_kit(settings, process="worker")
    section = settings.worker
    endpoint = PrivateEndpoint(
        kit,
        host=section.host,
        port=section.port,
        reasons=lambda: [] if worker.ready() else [f"the worker is {worker.state}"],
        stuck=lambda: worker.alive.stuck(),
        pages={"/pool": lambda: worker.elastic.view()},
    )
    worker = worker_of(kit, endpoint=endpoint, on_drain=lambda: _end(group))
    prelude = Prelude("worker-prelude", kit.store.migrate, lambda: [worker], clock=kit.clock)
    group = Group([endpoint.component, prelude], clock=kit.clock)
    grace = timedelta(seconds=section.drain_grace_seconds)
    return run(kit, group, grace=grace_of(section.drain_then, grace))


def _stay() -> None:
    """Drained, it takes nothing any more."""


def _end(group: Group) -> None:
    group.request_stop()
