"""Before the first claim: known dead needs no waiting. What earlier incarnations of this name left on this host is
killed, their outcomes are delivered and their runs recovered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from oah.core.model.ids import WorkerId
from oah.errors import Broken, OahError
from oah.ports.terminal import HostLost
from oah.worker.context import WorkerContext
from oah.worker.settler import Settler

log = logging.getLogger(__name__)


def prepare(
    context: WorkerContext,
    settler: Settler,
    stopping: threading.Event,
    *,
    host_lost: Callable[[HostLost], None],
    mark_now: Callable[[], None],
    cordons: Callable[[], None],
) -> None:
    """Sweep, deliver, recover, in this order; then see whether an operator wants it to take nothing. Raises Broken
    ``agent_unkillable``."""
    swept = context.agent_host.sweep()
    if not swept.clean:
        raise Broken(f"processes of an earlier incarnation cannot be killed: {swept.left}", code="agent_unkillable")
    if swept.killed:
        context.telemetry.count("oah_agents_killed_total", swept.killed, reason="swept")
    context.agent_host.start(host_lost, on_frozen=mark_now)
    us = context.worker_id
    before = [WorkerId(each) for each in context.outcomes.worker_ids()]
    _persist(lambda: context.store.record_worker(us, context.name, context.host), stopping)
    _persist(settler.deliver_kept, stopping)
    if before:
        _persist(lambda: context.recover.known_dead(before, by=us), stopping)
    context.outcomes.incarnation(us)
    _persist(context.epochs.current, stopping)
    _persist(cordons, stopping)


def _persist(act: Callable[[], object], stopping: threading.Event) -> None:
    """Until it works or the worker is stopped: nothing is claimed before."""
    wait = 0.1
    while not stopping.is_set():
        try:
            act()
            return
        except OahError as error:
            if not error.retryable:
                raise
            log.warning("not ready yet, again in %.1f s: %s", wait, error)
            stopping.wait(wait)
            wait = min(wait * 2, 2.0)
