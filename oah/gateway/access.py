"""Who a client is: by an API key shown as token or password, by the gateway's own token or user, or a stranger.

A stranger is let in only where the deployment allows it (its own machine, no token and no user configured). It reaches
mailboxes, whose addresses are all that guards them in the published protocol, but no session's: what is sent there is
typed to an agent.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oah.core.model.ids import WorkspaceId
from oah.core.model.mailbox import SESSION_PREFIX
from oah.core.model.workspace import Scope
from oah.errors import Unauthorized
from oah.gateway.rules import GatewayRules
from oah.ports.clock import Clock
from oah.ports.store import Store
from oah.services import keys


@dataclass(frozen=True, slots=True)
class Identity:
    """A client that was let in. ``writes``: it may create, send and delete."""

    workspace_id: WorkspaceId
    by: str
    writes: bool = True
    sessions: bool = True
    secret: str = field(default="", repr=False)
    """Of the API key that was shown, to ask again whether it still holds."""

    def reaches(self, address: str) -> bool:
        """Whether a mailbox is any of its business."""
        return self.sessions or not address.startswith(SESSION_PREFIX)


class Access:
    """Judges what a CONNECT shows. `of` may ask SQL: it is called in a thread."""

    def __init__(self, store: Store, clock: Clock, rules: GatewayRules) -> None:
        self._store = store
        self._clock = clock
        self._rules = rules

    def stranger(self) -> Identity | None:
        """Who shows nothing."""
        if not self._rules.strangers:
            return None
        return Identity(self._rules.workspace, "stranger", sessions=False)

    def at_once(self, options: Mapping[str, Any]) -> Identity | None:
        """Who can be told without asking SQL."""
        shown = _shown(options)
        if not any(shown):
            return self.stranger()
        token, user, password = shown
        rules = self._rules
        if rules.token is not None and _same(token, rules.token):
            return Identity(rules.workspace, "token")
        if rules.user is not None and _same(user, rules.user) and _same(password, rules.password or ""):
            return Identity(rules.workspace, f"user:{rules.user}")
        return None

    def of(self, options: Mapping[str, Any]) -> Identity:
        """Who shows an API key. Raises Unauthorized, Unavailable."""
        token, user, password = _shown(options)
        secret = next((each for each in (token, password, user) if each.startswith(keys.PREFIX)), "")
        key = keys.known(self._store, self._clock, secret)
        if not key.may(Scope.READ):
            raise Unauthorized("the key may not read")
        workspace_id = key.workspace_id or self._rules.workspace
        return Identity(workspace_id, f"key:{key.id}", writes=key.may(Scope.RUN), secret=secret)

    def revoked(self, secrets: Iterable[str]) -> set[str]:
        """Those of the keys that have been revoked or have expired since they were shown. Raises Unavailable."""
        return {secret for secret in secrets if not self._holds(secret)}

    def _holds(self, secret: str) -> bool:
        try:
            keys.known(self._store, self._clock, secret)
        except Unauthorized:
            return False
        return True


def _shown(options: Mapping[str, Any]) -> tuple[str, str, str]:
    def text(name: str) -> str:
        value = options.get(name)
        return value if isinstance(value, str) else ""

    return text("auth_token"), text("user"), text("pass")


def _same(shown: str, known: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), known.encode("utf-8", "replace"))
