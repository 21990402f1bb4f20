"""Schedules: who fires them."""

from __future__ import annotations

from datetime import timedelta

from oah.adapters.cron.times import CronSimTimes
from oah.bootstrap.kit import Kit
from oah.core.policy import admission, schedules
from oah.ports.store import SubmitLimits
from oah.services.fire import FireSchedules
from oah.services.schedules import Clerk


def fire_schedules(kit: Kit) -> FireSchedules:
    """The leader's duty."""
    limits = kit.settings.limits
    clerk = Clerk(
        store=kit.store,
        broker=kit.broker,
        clock=kit.clock,
        ids=kit.ids,
        times=CronSimTimes(),
        epoch=kit.epoch_or_none,
        rules=admission.Rules(input_bytes=limits.input_bytes),
        limits=SubmitLimits(limits.queued_per_session, limits.queued_per_workspace),
    )
    rules = schedules.Rules(timedelta(seconds=kit.settings.schedules.catch_up_seconds))
    return FireSchedules(clerk, kit.telemetry, rules)
