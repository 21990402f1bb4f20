"""Sections of the programs: worker, controller, maintenance jobs, gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from oah.core.model.drain import AtDeadline
from oah.settings.section import PoolName, Section


class PressureSettings(Section):
    """When a worker takes no new runs and opens no slots. A threshold of 0: not looked at."""

    memory: float = Field(default=0.92, ge=0, le=1)
    """In use, of what the machine or the worker's control group may, whichever is fuller."""
    load: float = Field(default=8, ge=0)
    """Load average of one minute per core of the machine."""
    disk: float = Field(default=0.95, ge=0, le=1)
    """In use, of the disk of the data directory: blocks or names."""
    hysteresis: float = Field(default=0.05, ge=0, lt=1)
    """The part of its threshold that a figure has to fall below it before the pressure ends."""
    hold_seconds: float = Field(default=10, ge=0)
    """No pressure is shorter."""


class ClassWeights(Section):
    """How often each class is looked at first (details: docs/explanation/fairness.md)."""

    interactive: int = Field(default=8, ge=1, le=100)
    subagent: int = Field(default=4, ge=1, le=100)
    background: int = Field(default=1, ge=1, le=100)


class WorkerSettings(Section):
    """A worker process (or an embedded worker)."""

    name: str | None = None
    """Default: the host name, ``-N`` for further ones on a host."""
    pool: PoolName = "default"
    slots: int = Field(default=8, ge=1, le=512)
    """Open at most."""
    slots_min: int | None = Field(default=None, ge=1, le=512)
    """Open at least; between this and ``slots`` they open when they are needed. None: always all of them."""
    slot_idle_seconds: float = Field(default=60, ge=0)
    """A slot that has not been used for so long is closed."""
    stuck_seconds: float = Field(default=60, gt=0)
    """A worker whose claim loop has not moved for so long says that it is no longer alive."""
    pressure: PressureSettings = PressureSettings()
    parked: int | None = Field(default=None, ge=0)
    """Parked sessions; None means twice the slots."""
    waiting: int | None = Field(default=None, ge=0)
    """Runs that wait for an answer without a slot; beyond it each takes the place of a new run. None means eight times
    the slots."""
    wait_timeout_seconds: float = Field(default=86_400, gt=0)
    """How long a question of an agent stands; a profile may say otherwise (``wait_timeout_seconds``)."""
    warm_idle_seconds: float = Field(default=600, gt=0)
    affinity_seconds: float = Field(default=2, ge=0)
    class_weights: ClassWeights = ClassWeights()
    subagent_reserve: int = Field(default=0, ge=0)
    """So many slots (never all) take runs of subagents alone, and what goes on after an answer."""
    drain_grace_seconds: float = Field(default=60, ge=0)
    drain_then: AtDeadline = AtDeadline.REQUEUE
    """What becomes of runs that still run when the grace of a drain, or of a stop by signal, is over."""
    heartbeat_seconds: float = Field(default=5, gt=0)
    host: str = "127.0.0.1"
    port: int = Field(default=8789, ge=0, le=65535)
    advertise: str | None = None
    """Name or address under which API processes reach this worker's endpoint; None: ``host``, or the machine's own
    address where that means all of them."""
    profiles: tuple[str, ...] | None = None
    """None: every profile that the package and ``agents.d`` know."""
    check_profiles: Literal["version", "program", "off"] = "version"
    """At the start, profiles are not served whose program is not on the PATH (``program``), or also whose program is of
    a version that their rules were not made for (``version``)."""
    path: str | None = None
    """PATH of agents; None: the usual directories of a system. A session's environment may say otherwise."""
    repositories: tuple[Path, ...] = ()
    """Directories of which the git repositories may be given to sessions as worktrees; none: no worktrees."""
    git_seconds: float = Field(default=120, gt=0)
    """Longest that one call of git may take."""
    agent_uid: int | None = None
    agent_gid: int | None = None


class ControllerSettings(Section):
    """The controller, and the controller part of an API with embedded workers."""

    host: str = "127.0.0.1"
    port: int = Field(default=8788, ge=0, le=65535)
    election: Literal["redis", "kubernetes"] = "redis"
    """Where the leader is elected: by a lease in the broker, or by a Lease of the cluster."""
    leader_lease_seconds: float = Field(default=15, gt=0)
    leader_renew_seconds: float = Field(default=5, gt=0)
    sweep_seconds: float = Field(default=1, gt=0)
    audit_seconds: float = Field(default=15, gt=0)
    reconcile_seconds: float = Field(default=10, gt=0)
    tick_seconds: float = Field(default=1, gt=0)
    relay_seconds: float = Field(default=1, gt=0)
    relay_older_than_seconds: float = Field(default=2, ge=0)


class JobsSettings(Section):
    """Maintenance jobs, beside a controller or an API with embedded workers."""

    processes: int = Field(default=1, ge=0, le=16)
    """Child processes that perform them; 0: somebody else runs ``oah job run``. With ``memory://`` it is a thread."""


class GatewaySettings(Section):
    """The NATS protocol's front of the mailboxes."""

    host: str = "127.0.0.1"
    port: int = Field(default=4222, ge=0, le=65_535)
    """0: any free one."""
    url: str | None = None
    """Where the agents of a worker reach it, told to them in ``OAH_NATS_URL``; None: they are not told."""
    tls_certificate: str | None = None
    """A PEM file; with it every client has to use TLS."""
    tls_key: str | None = None
    token: SecretStr | None = None
    """Asked of every client; API keys are taken as tokens, too, and say which workspace."""
    user: str | None = None
    password: SecretStr | None = None
    workspace: str = "default"
    """Of clients that show no API key. Without a token and a user such clients are let in on a loopback address only;
    they reach mailboxes, but none of a session."""
    probe_port: int = Field(default=8222, ge=0, le=65_535)
    """Of its health and metrics: where NATS servers have theirs. 0: any free one."""
    max_connections: int = Field(default=10_000, ge=1)
    max_subscriptions: int = Field(default=1_000, ge=1)
    """Of one connection."""
    max_pending_bytes: int = Field(default=67_108_864, ge=65_536)
    """Waiting to be written to one client; beyond it the client is too slow and is let go."""
    write_deadline_seconds: float = Field(default=10, gt=0)
    ping_seconds: float = Field(default=120, gt=0)
    """A client that has been silent so long is asked; after two questions without an answer it is let go."""
