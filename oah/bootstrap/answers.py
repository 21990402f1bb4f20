"""Who answers for people, as profiles, workspaces and settings say it: handed to workers and to the API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from oah.adapters.pty.matching import compiled
from oah.core.dialogue.profile import Profile
from oah.core.model.ids import WorkspaceId
from oah.core.policy.answers import Rule, rules_from
from oah.errors import InvalidRequest, OahError
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.settings import Settings

log = logging.getLogger(__name__)

KNOWN_FOR = 5.0
"""Seconds for which the rules of the workspaces are believed; then they are read again."""


def workspace_rules(tables: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Rules of a workspace, compiled. Raises InvalidRequest ``invalid_answers``."""
    try:
        return rules_from(tables, compiled, source="workspace")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, code="invalid_answers", hint=error.hint) from None


def profile_rules(catalogue: Mapping[str, Profile]) -> Callable[[str], tuple[Rule, ...]]:
    """Those of each profile. Raises InvalidRequest: a profile that cannot be read is a fault at the start."""
    rules = {name: rules_from(profile.answers, compiled, source=name) for name, profile in catalogue.items()}
    return lambda profile: rules.get(profile, ())


def wait_timeouts(settings: Settings, catalogue: Mapping[str, Profile]) -> Callable[[str], timedelta]:
    """How long a question stands: as its profile says, else the deployment."""
    deployment = timedelta(seconds=settings.worker.wait_timeout_seconds)
    own = {name: profile.wait for name, profile in catalogue.items() if profile.wait is not None}
    return lambda profile: own.get(profile, deployment)


class WorkspaceRules:
    """The rules of all workspaces, read again when they are older than ``KNOWN_FOR``.

    Slots ask and never wait for SQL longer than one read in so many seconds. While SQL is away nothing is answered by
    a rule that was not read lately: a person is asked.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at: float | None = None
        self._rules: dict[WorkspaceId, tuple[Rule, ...]] = {}

    def __call__(self, workspace_id: WorkspaceId) -> tuple[Rule, ...]:
        """Of one workspace."""
        with self._lock:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at > KNOWN_FOR:
                self._rules, self._read_at = self._read(), now
            return self._rules.get(workspace_id, ())

    def _read(self) -> dict[WorkspaceId, tuple[Rule, ...]]:
        found: dict[WorkspaceId, tuple[Rule, ...]] = {}
        try:
            for workspace in self._store.workspaces():
                if workspace.answers:
                    found[workspace.id] = workspace_rules(workspace.answers)
        except OahError as error:
            log.warning("no workspace answers for people now: %s", error.message)
            return {}
        return found
