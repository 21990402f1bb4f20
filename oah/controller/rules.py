"""What the controller was told: how long things live and how often it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from oah.core.policy import clocks, orphan, placement, recovery, wake
from oah.core.policy.recovery import Override
from oah.core.policy.retention import Rules as RetentionRules
from oah.settings import Settings


@dataclass(frozen=True, slots=True)
class ControllerRules:
    """Intervals and lives. Defaults are those of the settings."""

    recovery: recovery.Rules
    lease: timedelta = timedelta(seconds=30)
    margin: timedelta = timedelta(seconds=5)
    leader_lease: timedelta = timedelta(seconds=15)
    leader_renew: timedelta = timedelta(seconds=5)
    sweep_every: timedelta = timedelta(seconds=1)
    audit_every: timedelta = timedelta(seconds=15)
    reconcile_every: timedelta = timedelta(seconds=10)
    look_again_every: timedelta = timedelta(seconds=2)
    tick_every: timedelta = timedelta(seconds=1)
    relay_every: timedelta = timedelta(seconds=1)
    relay_older_than: timedelta = timedelta(seconds=2)
    home_wait: timedelta = timedelta(minutes=1)
    measure_every: timedelta = timedelta(seconds=5)
    jobs_every: timedelta = timedelta(seconds=2)
    mail_every: timedelta = timedelta(seconds=1)
    schedules_every: timedelta = timedelta(seconds=1)
    overdue: timedelta = timedelta(seconds=60)
    wake: wake.Rules = field(default_factory=wake.Rules)
    dead_letters: int = 500
    retention: RetentionRules = field(default_factory=RetentionRules)
    prune_every: timedelta = timedelta(minutes=1)
    prune_rows: int = 500
    prune_batches: int = 8
    profiles: Mapping[str, Override] = field(default_factory=dict)
    """What the profiles that this process knows say about recovery, by name."""

    @property
    def orphan(self) -> orphan.Rules:
        """For `core/policy/orphan.py`."""
        return orphan.Rules(self.lease)

    @property
    def clocks(self) -> clocks.Rules:
        """For `core/policy/clocks.py`."""
        return clocks.Rules(self.lease, self.margin)

    @property
    def pruning(self) -> tuple[RetentionRules, int, int]:
        """For `services/prune.py`: what ages out, rows of a window, windows of a pass."""
        return self.retention, self.prune_rows, self.prune_batches

    @property
    def placement(self) -> placement.Rules:
        """For `core/policy/placement.py`."""
        return placement.Rules(self.lease)


def recovery_rules(settings: Settings) -> recovery.Rules:
    """What an operator wants done with runs whose owner is gone; a starting worker needs it too."""
    strategy = recovery.Strategy(settings.recovery_strategy.value)
    return recovery.Rules(strategy, settings.stale_run_recovery_max_attempts)


def retention_rules(settings: Settings) -> RetentionRules:
    """What ages out, and when; `oah db prune` needs it too."""
    section = settings.retention

    def days(value: float) -> timedelta | None:
        return timedelta(days=value) if value else None

    return RetentionRules(
        events=days(section.events_days),
        recordings=days(section.recordings_days),
        homes=days(section.homes_days),
        runs=days(section.runs_days),
        dead_letters=days(section.dead_letters_days),
        audit=days(section.audit_days),
        jobs=days(section.jobs_days),
        webhook_deliveries=days(section.webhook_deliveries_days),
        idempotency_keys=timedelta(hours=section.idempotency_hours),
        workers=days(section.workers_days),
        scale_decisions=days(section.scale_decisions_days),
    )


def controller_rules(settings: Settings, profiles: Mapping[str, Override] | None = None) -> ControllerRules:
    """The rules of a deployment, and of the profiles known here."""
    section = settings.controller
    return ControllerRules(
        recovery=recovery_rules(settings),
        lease=settings.lease,
        margin=settings.margin,
        leader_lease=timedelta(seconds=section.leader_lease_seconds),
        leader_renew=timedelta(seconds=section.leader_renew_seconds),
        sweep_every=timedelta(seconds=section.sweep_seconds),
        audit_every=timedelta(seconds=section.audit_seconds),
        reconcile_every=timedelta(seconds=section.reconcile_seconds),
        tick_every=timedelta(seconds=section.tick_seconds),
        relay_every=timedelta(seconds=section.relay_seconds),
        relay_older_than=timedelta(seconds=section.relay_older_than_seconds),
        mail_every=timedelta(seconds=settings.mail.sweep_seconds),
        schedules_every=timedelta(seconds=settings.schedules.look_seconds),
        overdue=timedelta(seconds=settings.mail.overdue_seconds),
        wake=wake.Rules(timedelta(seconds=settings.mail.wake_pause_seconds), settings.mail.wake_failures),
        home_wait=timedelta(seconds=settings.home_wait_seconds),
        dead_letters=settings.limits.dead_letters,
        retention=retention_rules(settings),
        prune_every=timedelta(seconds=settings.retention.every_seconds),
        prune_rows=settings.retention.batch_rows,
        prune_batches=settings.retention.batches,
        profiles=profiles or {},
    )
