"""A process: start a group, serve until a signal or a failure, stop with grace.

The first SIGTERM or SIGINT stops with grace (a worker drains), the second without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from oah.errors import OahError
from oah.runtime.group import Group
from oah.runtime.signals import Signals

log = logging.getLogger(__name__)


def serve(group: Group, *, grace: timedelta, on_serving: Callable[[], None] = lambda: None) -> int:
    """Run `group` from the main thread. Returns the exit code: 0 after an orderly stop, 1 after a failure or when
    something would not stop. `on_serving` is called once everything works."""
    with Signals(drain=group.request_stop, now=group.hurry):
        try:
            group.start()
            on_serving()
            group.wait()
        except OahError as error:
            log.critical("cannot start: %s", error, extra={"code": error.code, "hint": error.hint or ""})
            return 1
        late = group.stop(grace)
    if group.failed is not None:
        log.critical("stopped by a failure", extra={"component": group.failed})
        return 1
    return 1 if late else 0
