"""What bootstrap hands to the HTTP process, and what the process itself keeps beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oah.core.model.ids import EpochId, WorkerId
from oah.core.policy.admission import Rules
from oah.ports.blobs import Blobs
from oah.ports.broker import Broker
from oah.ports.clock import Clock, Ids
from oah.ports.jobs import JobQueue, UntoldQueue
from oah.ports.schedules import CronTimes
from oah.ports.store import Store, SubmitLimits
from oah.ports.telemetry import Telemetry
from oah.ports.viewing import NoWorkerLines, WorkerLines
from oah.runtime.mail_watch import MailWatch
from oah.services import webhooks
from oah.services.children import Rules as Kin
from oah.services.post import Post
from oah.settings import AuthMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """Ports, facts of the settings, and questions that other parts of the process answer.

    `epoch`: the epoch the process believes in; None, or a LeaseError, before the first. `profiles`: agents that this
    installation knows. `exposition`: `/metrics` as bytes and content type. `ready`: name → check of a dependency that
    raises Unavailable (or any OahError) while it is away. `local_workers`: ids of workers inside this process.
    `keep_alive`: pause between comments on idle streams. `lines`: how workers' terminals are reached. `written`: a
    recording as plain text. `post` and `watch`: mailboxes, and what happens in those that are read here.
    """

    store: Store
    broker: Broker
    clock: Clock
    ids: Ids
    telemetry: Telemetry
    blobs: Blobs
    epoch: Callable[[], EpochId | None]
    profiles: Callable[[], tuple[str, ...]]
    exposition: Callable[[], tuple[bytes, str]]
    post: Post
    watch: MailWatch
    times: CronTimes
    lease: timedelta
    auth: AuthMode = AuthMode.KEYS
    rules: Rules = field(default_factory=Rules)
    limits: SubmitLimits = field(default_factory=SubmitLimits)
    body_bytes: int = 8 * 1024 * 1024
    batch_runs: int = 1_000
    ready: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    local_workers: Callable[[], frozenset[WorkerId]] = frozenset
    jobs: JobQueue = field(default_factory=UntoldQueue)
    webhooks: webhooks.Limits = field(default_factory=webhooks.Limits)
    keep_alive: timedelta = timedelta(seconds=15)
    lines: WorkerLines = field(default_factory=NoWorkerLines)
    written: Callable[[Iterable[bytes]], Iterator[bytes]] = iter
    answer_rules: Callable[[Sequence[Mapping[str, Any]]], object] = lambda tables: None
    """Raises InvalidRequest for rules about questions that a worker could not read."""
    stuck: Callable[[], Sequence[str]] = list
    """Why this process is better started again: the claim loop of a worker inside it does not move."""
    weigh: Callable[[str], int] = lambda profile: 1
    """Slots that a run of a profile takes."""
    children: Kin = field(default_factory=Kin)
    """What agents may start by themselves."""
    subagent_reserve: int = 1
    """Slots that are wanted free while runs of subagents wait."""
    version: str = "0"
