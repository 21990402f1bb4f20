"""Everything of a process, in one object."""

from __future__ import annotations

import os
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from oah.settings.fleet import KubernetesSettings, ScaleSettings
from oah.settings.policies import (
    ChildSettings,
    HookSettings,
    LimitSettings,
    MailSettings,
    RedisSettings,
    RetentionSettings,
    RetrySettings,
    ScheduleSettings,
    WebhookSettings,
)
from oah.settings.processes import ControllerSettings, GatewaySettings, JobsSettings, WorkerSettings

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
    kubernetes: KubernetesSettings = KubernetesSettings()
    scale: ScaleSettings = ScaleSettings()
    limits: LimitSettings = LimitSettings()
    children: ChildSettings = ChildSettings()
    retention: RetentionSettings = RetentionSettings()
    redis: RedisSettings = RedisSettings()
    retry: RetrySettings = RetrySettings()
    hooks: tuple[HookSettings, ...] = ()
    """Hooks of the deployment; those of a profile are called after them."""
    jobs: JobsSettings = JobsSettings()
    webhooks: WebhookSettings = WebhookSettings()
    mail: MailSettings = MailSettings()
    schedules: ScheduleSettings = ScheduleSettings()
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
