"""What ``oah doctor`` judges: pure functions from what was read to findings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypedDict

from oah.core.model.drain import AtDeadline

if TYPE_CHECKING:
    from oah.settings import Settings

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MEMORY_WARNS_AT = 0.8
_CLOCKS_WARN_AT_SECONDS = 1.0


class Level(StrEnum):
    """How bad it is. Only an error makes doctor exit 1."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class FindingDocument(TypedDict):
    """A finding under ``--json``."""

    check: str
    level: str
    message: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``check`` is a stable name."""

    check: str
    level: Level
    message: str
    hint: str | None = None

    def document(self) -> FindingDocument:
        """As ``--json`` shows it."""
        return {"check": self.check, "level": str(self.level), "message": self.message, "hint": self.hint}


def ok(check: str, message: str) -> Finding:
    """Nothing to complain about."""
    return Finding(check, Level.OK, message)


def warn(check: str, message: str, hint: str | None = None) -> Finding:
    """It works, but not as somebody may expect."""
    return Finding(check, Level.WARNING, message, hint)


def bad(check: str, message: str, hint: str | None = None) -> Finding:
    """It does not work, or a guarantee is gone."""
    return Finding(check, Level.ERROR, message, hint)


# --- settings -------------------------------------------------------------------------------------------------------


def judge_settings(settings: Settings, unknown: Sequence[str]) -> Iterator[Finding]:
    """Settings that contradict each other, each by itself legal."""
    found = [*_stores(settings), *_policies(settings), *_times(settings)]
    found += [
        warn("settings", f"{name} means nothing", "a typing error? oah config show lists the names") for name in unknown
    ]
    yield from found or [ok("settings", "no contradictions")]


def _stores(settings: Settings) -> Iterator[Finding]:
    sqlite = settings.database.startswith("sqlite")
    local = settings.in_process or settings.broker.startswith("embedded://")
    if settings.in_process and settings.embedded_workers == 0:
        yield bad(
            "settings",
            "memory:// lives in the API's process, which has no workers (OAH_EMBEDDED_WORKERS=0): runs wait for ever",
            "OAH_REDIS_URL=embedded:// or redis://…",
        )
    if settings.in_process and not sqlite:
        yield warn(
            "settings",
            "memory:// beside a shared database: a second API would dispatch the same runs from a queue of its own",
            "OAH_REDIS_URL=redis://…",
        )
    if sqlite and not local:
        yield warn(
            "settings",
            "SQLite is for one host; this Redis can be reached from others",
            "OAH_DATABASE_URL=postgresql://…",
        )


def _policies(settings: Settings) -> Iterator[Finding]:
    strategy = str(settings.recovery_strategy)
    if settings.auth == "off" and settings.api_host not in _LOOPBACK:
        yield bad("settings", f"OAH_AUTH=off on {settings.api_host}: everybody may do everything", "OAH_AUTH=keys")
    if strategy.startswith("requeue") and settings.stale_run_recovery_max_attempts == 0:
        yield warn(
            "settings",
            f"recovery is {strategy}, but with 0 attempts no lost run is ever queued again",
            "OAH_STALE_RUN_RECOVERY_MAX_ATTEMPTS=3",
        )
    if settings.worker.drain_then is AtDeadline.WAIT:
        yield warn(
            "settings",
            "a worker that is told to stop waits for its runs as long as they take: its supervisor kills it first",
            "OAH_WORKER__DRAIN_THEN=requeue, or a supervisor that waits as long",
        )
    if settings.limits.queued_per_session > settings.limits.queued_per_workspace:
        yield warn("settings", "a session may queue more than its workspace", "OAH_LIMITS__QUEUED_PER_WORKSPACE")
    if settings.limits.input_bytes >= settings.limits.body_bytes:
        yield warn("settings", "an input of the allowed size does not fit into a request", "OAH_LIMITS__BODY_BYTES")


def _times(settings: Settings) -> Iterator[Finding]:
    controller, lease = settings.controller, settings.lease_seconds
    if controller.leader_renew_seconds * 2 > controller.leader_lease_seconds:
        yield bad(
            "settings",
            f"the leader renews every {controller.leader_renew_seconds:g} s a lease of "
            f"{controller.leader_lease_seconds:g} s: one late renewal ends its leadership",
            "OAH_CONTROLLER__LEADER_RENEW_SECONDS: a third of the lease",
        )
    if controller.sweep_seconds > settings.period.total_seconds():
        yield warn(
            "settings",
            f"leases of {lease:g} s are looked at every {controller.sweep_seconds:g} s only: recovery is late",
            "OAH_CONTROLLER__SWEEP_SECONDS=1",
        )
    if settings.redis.answer_timeout_seconds > lease:
        yield warn(
            "settings",
            f"an answer of Redis may take {settings.redis.answer_timeout_seconds:g} s, a lease lasts {lease:g} s",
            "OAH_REDIS__ANSWER_TIMEOUT_SECONDS",
        )
    if settings.worker.heartbeat_seconds > lease:
        yield warn("settings", "workers report more rarely than their leases end", "OAH_WORKER__HEARTBEAT_SECONDS=5")


def judge_platform(settings: Settings) -> Iterator[Finding]:
    """This machine: what the platform lacks, who may read the data directory."""
    if sys.platform != "linux":
        yield warn(
            "platform",
            "the deadman's last rung (finding strays by /proc) is Linux only",
            "develop here, deploy on Linux",
        )
    directory = settings.data_dir
    if not directory.exists():
        yield ok("data_dir", f"{directory} does not exist yet")
        return
    mode = directory.stat().st_mode & 0o777
    allowed = 0o011 if settings.worker.agent_uid is not None else 0
    if mode & 0o077 & ~allowed:
        yield warn("data_dir", f"{directory} is open to other users ({mode:o})", f"chmod 700 {directory}")
    elif not os.access(directory, os.W_OK):
        yield bad("data_dir", f"{directory} cannot be written")
    else:
        yield ok("data_dir", str(directory))


# --- broker ---------------------------------------------------------------------------------------------------------


def judge_broker(facts: Mapping[str, str]) -> Iterator[Finding]:
    """What the Redis or Valkey server says of itself (names as INFO has them)."""
    version = facts.get("valkey_version") or facts.get("redis_version") or "unknown"
    yield ok(
        "broker_version", f"{'valkey' if 'valkey_version' in facts else 'redis'} {version} at {facts.get('address')}"
    )
    policy = facts.get("maxmemory_policy")
    if policy is None:
        yield warn("eviction", "the server does not tell its eviction policy", "it must be noeviction")
    elif policy == "noeviction":
        yield ok("eviction", policy)
    else:
        yield bad("eviction", f"{policy}: the server may drop queues", "CONFIG SET maxmemory-policy noeviction")
    if _number(facts.get("evicted_keys")):
        yield bad("evicted", f"{facts['evicted_keys']} keys were evicted", "queues are rebuilt, but set noeviction")
    yield _memory(facts)
    if facts.get("aof_enabled") == "1":
        yield ok("persistence", "append-only file")
    elif facts.get("rdb_last_bgsave_status") not in (None, "ok"):
        yield warn("persistence", "the last snapshot failed", "disk full? queues are rebuilt from SQL after a restart")
    else:
        yield ok("persistence", "snapshots or none: after a restart queues are rebuilt from SQL")


def judge_store(facts: Mapping[str, str]) -> Iterator[Finding]:
    """What the database says of itself."""
    yield ok("database", f"{facts.get('dialect')} {facts.get('server_version', '')}".strip())
    if facts.get("dialect") == "postgresql":
        off = [f"{name}=off" for name in ("fsync", "synchronous_commit") if facts.get(name) == "off"]
        if off:
            yield bad("durability", f"{', '.join(off)}: an accepted run may be lost with the machine", "switch it on")
        else:
            yield ok("durability", f"synchronous_commit={facts.get('synchronous_commit')}")
    elif facts.get("synchronous") not in ("FULL", "EXTRA"):
        yield bad("durability", f"synchronous={facts.get('synchronous')}: an accepted run may be lost with the machine")
    else:
        yield ok("durability", f"synchronous={facts['synchronous']}, journal {facts.get('journal_mode')}")


def _memory(facts: Mapping[str, str]) -> Finding:
    used, most = _number(facts.get("used_memory")), _number(facts.get("maxmemory"))
    if not most:
        return ok("broker_memory", f"{used / 2**20:.1f} MiB, no limit")
    text = f"{used / 2**20:.1f} of {most / 2**20:.0f} MiB"
    if used >= most:
        return bad("broker_memory", f"{text}: full, submits are accepted but not dispatched", "raise maxmemory")
    return (
        warn("broker_memory", text, "raise maxmemory") if used > most * _MEMORY_WARNS_AT else ok("broker_memory", text)
    )


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


# --- clocks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A server's clock read between two readings of our own wall clock (seconds)."""

    name: str
    before: float
    clock: float
    after: float

    @property
    def offset(self) -> float:
        """Seconds that the server is certainly ahead (negative: behind); 0 while nothing is proven."""
        if self.clock > self.after:
            return self.clock - self.after
        return min(self.clock - self.before, 0.0)


def judge_clocks(readings: Sequence[ClockReading], *, steps: Mapping[str, float], margin: float) -> Iterator[Finding]:
    """Offsets do no harm (times cross as durations) but confuse people; a step against CLOCK_BOOTTIME does.

    ``steps``: how far each server's clock has certainly moved against ours while doctor looked.
    """
    for reading in readings:
        step = steps.get(reading.name, 0.0)
        if abs(step) > margin:
            yield bad(
                f"clock_{reading.name}",
                f"it has just stepped by {step:+.3f} s; recovery is on hold for a lease after each step",
                "let the clock be slewed, not stepped",
            )
        elif abs(reading.offset) > _CLOCKS_WARN_AT_SECONDS:
            yield warn(f"clock_{reading.name}", f"{reading.offset:+.3f} s from this machine", "run a time service")
        else:
            yield ok(f"clock_{reading.name}", f"{reading.offset:+.3f} s from this machine")
