"""Who scales which pool by which rules, as the settings have it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from oah.adapters.processes.roster import Roster
from oah.adapters.processes.target import ProcessTarget
from oah.bootstrap.kit import Kit
from oah.bootstrap.kubernetes import kubernetes_target, of_pool
from oah.core.model.drain import AtDeadline, Drain
from oah.core.policy import scaling, shrinking
from oah.errors import InvalidRequest
from oah.ports.scaling import ScaleTarget
from oah.services.scale import ScaleFleet, ScaleRules
from oah.services.signals import PoolSignals
from oah.settings import PoolScaleSettings, Settings


def scale_fleets(kit: Kit, *, trust: timedelta) -> list[ScaleFleet]:
    """One for each pool. ``trust``: for how long what has vanished is not believed to be gone. Raises
    InvalidRequest."""
    return [
        ScaleFleet(
            store=kit.store,
            broker=kit.broker,
            signals=PoolSignals(kit.store, kit.broker, kit.clock, trust=trust, weigh=_weigh(kit, own)),
            target=scale_target(kit.settings, pool, own),
            rules=scale_rules(kit.settings, pool, own),
            clock=kit.clock,
            ids=kit.ids,
            telemetry=kit.telemetry,
            holder=kit.holder,
        )
        for pool, own in scaled_pools(kit.settings).items()
    ]


def _weigh(kit: Kit, own: PoolScaleSettings) -> Callable[[str], int]:
    """No agent takes more slots than its worker has, also while there is no worker that says so."""
    slots, weigh = own.slots or kit.settings.worker.slots, kit.weigh()
    return lambda profile: min(weigh(profile), slots)


def scaled_pools(settings: Settings) -> dict[str, PoolScaleSettings]:
    """By name. Raises InvalidRequest."""
    section = settings.scale
    pools = section.pools or {section.pool: PoolScaleSettings()}
    named = [pool for pool, own in pools.items() if own.workload or own.selector]
    if section.target == "kubernetes" and len(pools) > max(1, len(named)):
        raise InvalidRequest(
            "several pools, and not each with a workload of its own",
            code="invalid_settings",
            hint="[scale.pools.NAME] workload = …",
        )
    meant = [(own.kind, own.workload, own.selector) for own in pools.values() if own.workload or own.selector]
    if section.target == "kubernetes" and len(set(meant)) < len(meant):
        raise InvalidRequest(
            "two pools have one workload: each would undo the other's size",
            code="invalid_settings",
            hint="[scale.pools.NAME] workload = …",
        )
    return pools


def scale_target(settings: Settings, pool: str, own: PoolScaleSettings) -> ScaleTarget | None:
    """Of a pool; None: nobody acts. Raises InvalidRequest."""
    match settings.scale.target:
        case "processes":
            return ProcessTarget(Roster(settings.data_dir, pool))
        case "kubernetes":
            section = of_pool(settings.kubernetes, own)
            return kubernetes_target(settings.model_copy(update={"kubernetes": section}), threading.Event())
        case "none":
            return None


def scale_rules(settings: Settings, pool: str, own: PoolScaleSettings) -> ScaleRules:
    """The section's, with what is different for the pool."""
    section = settings.scale
    said = {name: value for name, value in own.model_dump().items() if value is not None}
    slots = own.slots or settings.worker.slots

    def either(name: str) -> Any:
        return said.get(name, getattr(section, name))

    target_wait, drain = either("target_wait_seconds"), either("drain_seconds")
    return ScaleRules(
        pool=pool,
        every=timedelta(seconds=section.every_seconds),
        scaling=scaling.Rules(
            minimum=either("minimum"),
            maximum=either("maximum"),
            per_unit=either("per_worker") or slots,
            slots_per_unit=slots,
            subagent_reserve=section.subagent_reserve,
            busy_ratio=section.busy_ratio,
            oldest_wait=timedelta(seconds=section.oldest_wait_seconds),
            target_wait=None if target_wait is None else timedelta(seconds=target_wait),
            up_window=section.up_window,
            down_window=section.down_window,
            up_cooldown=timedelta(seconds=section.up_cooldown_seconds),
            down_cooldown=timedelta(seconds=section.down_cooldown_seconds),
            memory=timedelta(seconds=section.memory_seconds),
        ),
        shrinking=shrinking.Rules(
            missing=timedelta(seconds=section.missing_seconds), patience=timedelta(seconds=section.patience_seconds)
        ),
        drain=Drain(
            deadline=None if drain is None else timedelta(seconds=drain),
            then=AtDeadline.WAIT if drain is None else either("drain_then"),
        ),
    )
