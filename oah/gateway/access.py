"""Who a client is: by a key shown as token or password, by the gateway's own token or user, or a stranger.

A key is an API key, or that of a run: then its agent may what it may over HTTP, as long as the attempt lasts.

A stranger is let in only where the deployment allows it (its own machine, no token and no user configured). It reaches
mailboxes, whose addresses are all that guards them in the published protocol, but no session's: what is sent there is
typed to an agent.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from oah.core.model.ids import WorkspaceId
from oah.core.model.mailbox import SESSION_PREFIX
from oah.core.model.message import Sender
from oah.core.model.workspace import Scope
from oah.errors import Unauthorized
from oah.gateway import subjects
from oah.gateway.rules import GatewayRules
from oah.ports.clock import Clock
from oah.ports.store import RunFence, Store
from oah.services import keys, run_keys

TOGETHER = 1_000
"""Keys that are asked for in one statement."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A client that was let in. ``writes``: it may create, send and delete."""

    workspace_id: WorkspaceId
    by: str
    writes: bool = True
    sessions: bool = True
    secret: str = field(default="", repr=False)
    """Of the key that was shown, to ask again whether it still holds."""
    run: RunFence | None = None
    """The attempt whose agent it is."""

    def reaches(self, address: str) -> bool:
        """Whether a mailbox is any of its business."""
        return self.sessions or not address.startswith(SESSION_PREFIX)

    def reads(self, address: str) -> bool:
        """Whether it may do more than send there: to an agent the mailboxes of other sessions show nothing."""
        return self.run is None or not address.startswith(SESSION_PREFIX) or address == self.run.session_id

    def hears(self, pattern: str) -> bool:
        """Whether it may listen to such ordinary subjects: an agent names whom it listens to, and does not listen in
        on everybody's answers."""
        return self.run is None or subjects.is_literal(pattern) or subjects.names_much(pattern)

    @property
    def sender(self) -> Sender | None:
        """Of a message to another session: who hears when it fails. None: whoever connects under that name."""
        if self.run is None:
            return None
        return Sender(by=self.by, session_id=self.run.session_id, run_id=self.run.run_id)


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
        """Who shows a key. Raises Unauthorized, Unavailable."""
        token, user, password = _shown(options)
        prefixes = (keys.PREFIX, run_keys.PREFIX)
        secret = next((each for each in (token, password, user) if each.startswith(prefixes)), "")
        if run_keys.is_run_key(secret):
            return self._agent(secret)
        key = keys.known(self._store, self._clock, secret)
        if not key.may(Scope.READ):
            raise Unauthorized("the key may not read")
        workspace_id = key.workspace_id or self._rules.workspace
        return Identity(workspace_id, f"key:{key.id}", writes=key.may(Scope.RUN), secret=secret)

    def _agent(self, secret: str) -> Identity:
        fence = run_keys.opened(self._store, secret)
        session = self._store.session(fence.session_id, None)
        return Identity(session.workspace_id, f"run:{fence.run_id}", secret=secret, run=fence)

    def revoked(self, secrets: Collection[str]) -> set[str]:
        """Those of the keys that have been revoked or have expired, or whose attempts have ended, since they were
        shown: two statements for a thousand of them. Raises Unavailable."""
        listed = sorted(secrets)
        batches = (listed[at : at + TOGETHER] for at in range(0, len(listed), TOGETHER))
        return set(listed).difference(*map(self._holding, batches))

    def _holding(self, secrets: Collection[str]) -> set[str]:
        of_runs = {secret for secret in secrets if run_keys.is_run_key(secret)}
        return run_keys.holding(self._store, of_runs) | keys.holding(self._store, self._clock, set(secrets) - of_runs)


def _shown(options: Mapping[str, Any]) -> tuple[str, str, str]:
    def text(name: str) -> str:
        value = options.get(name)
        return value if isinstance(value, str) else ""

    return text("auth_token"), text("user"), text("pass")


def _same(shown: str, known: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "replace"), known.encode("utf-8", "replace"))
