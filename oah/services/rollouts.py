"""Rolling restarts: asked for, driven one step at a time by whoever leads, aborted.

A row says all, so a leader that dies in the middle costs nothing: the next one reads it and goes on. A step and its
commands are one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from oah.core.model.rollout import Rollout, RolloutRules, RolloutState, Stage
from oah.core.model.worker import WorkerReport
from oah.core.policy import rollout as policy
from oah.errors import Conflict, NotFound
from oah.ports.broker import Broker
from oah.ports.clock import Ids
from oah.ports.commands import CommandKind
from oah.ports.rollouts import Order, RolloutStore
from oah.ports.telemetry import Telemetry
from oah.services.commands import hint
from oah.services.decisions import Decisions

log = logging.getLogger(__name__)

TRIES = 5
"""How often an abort is tried against a leader that moves the row at the same time."""


class RolloutClock(RolloutStore, Protocol):
    """Its moments are the database's."""

    def now(self) -> float: ...


def restart(
    store: RolloutStore, broker: Broker, ids: Ids, pool: str, rules: RolloutRules, *, by: str, reason: str | None
) -> Rollout:
    """A new rollout of the workers of a pool that are alive now; the leader begins with it within seconds.

    Raises NotFound (no worker), Conflict (``rollout_open``; ``workers_embedded``: none of them can be restarted),
    Unavailable."""
    members = policy.members_of(report for report in broker.workers() if report.pool == pool)
    if not members:
        raise NotFound(f"no worker of pool '{pool[:80]}' is alive", hint="`oah worker list` shows who is")
    if all(member.stage is Stage.SKIPPED for member in members):
        raise Conflict(f"nothing to restart: {members[0].reason}", code="workers_embedded")
    return store.create_rollout(ids.new("ro"), pool, members, rules, by=by, reason=reason)


def abort(store: RolloutClock, broker: Broker, rollout_id: str, *, by: str) -> Rollout:
    """No more of it: who drains serves again, who has not been restarted never is. Raises NotFound, Conflict
    (``rollout_ended``), Unavailable."""
    for _ in range(TRIES):
        found = store.rollout(rollout_id)
        if not found.state.open:
            raise Conflict(f"rollout {rollout_id} has ended: {found.state}", code="rollout_ended")
        moment = datetime.fromtimestamp(store.now(), UTC)
        step = policy.end(found, RolloutState.ABORTED, f"by {by}", broker.workers(), moment)
        if _save(store, broker, step, by=by):
            return store.rollout(rollout_id)
    raise Conflict(f"rollout {rollout_id} moves too fast", code="rollout_moves", hint="once more")


@dataclass(frozen=True, slots=True)
class DriveRollouts:
    """Leader: one step of each that goes on."""

    store: RolloutClock
    broker: Broker
    telemetry: Telemetry
    decisions: Decisions

    def __call__(self) -> None:
        """One look. Raises Unavailable; nothing is half done then."""
        found = self.store.open_rollouts()
        self.telemetry.gauge("oah_rollouts_open", len(found))
        if not found:
            return
        alive = self.broker.workers()
        moment = datetime.fromtimestamp(self.store.now(), UTC)
        for rollout in found:
            self._drive(rollout, alive, moment)

    def clear(self) -> None:
        """Another leads now."""
        self.telemetry.forget("oah_rollouts_open")

    def _drive(self, rollout: Rollout, alive: Sequence[WorkerReport], moment: datetime) -> None:
        step = policy.advance(rollout, alive, moment)
        if step.rollout == rollout or not _save(self.store, self.broker, step, by=f"rollout:{rollout.id}"):
            return
        for before, after in zip(rollout.members, step.rollout.members, strict=True):
            if before.stage is not after.stage:
                log.info("rollout %s: %s on %s is %s", rollout.id, after.name, after.host, after.stage)
                self.decisions.note("rollout", rollout.pool, after.stage.value, after.reason or after.name)
        if not step.rollout.state.open:
            log.info("rollout %s of %s %s %s", rollout.id, rollout.pool, step.rollout.state, step.rollout.error or "")
            self.telemetry.count("oah_rollouts_total", state=step.rollout.state.value)


def _save(store: RolloutStore, broker: Broker, step: policy.Step, *, by: str) -> bool:
    """False: somebody else has moved it. What is taken back comes before what is asked for."""
    drain = step.rollout.rules.drain
    orders = [
        *(Order(worker_id, CommandKind.UNCORDON) for worker_id in step.uncordon),
        *(Order(worker_id, CommandKind.CORDON) for worker_id in step.cordon),
        *(Order(worker_id, CommandKind.DRAIN, drain) for worker_id in step.drain),
    ]
    if not store.save_rollout(step.rollout, orders, by=by):
        return False
    hint(broker, [order.worker_id for order in orders])
    return True
