"""What a gateway is told by the settings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.ids import WorkspaceId


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRules:
    """See ``GatewaySettings``. ``strangers``: clients that show nothing are let in, but reach no session."""

    name: str
    version: str
    host: str
    port: int
    workspace: WorkspaceId
    strangers: bool
    max_payload: int
    max_connections: int
    max_subscriptions: int
    max_pending: int
    lease: timedelta
    write_deadline: timedelta
    ping_every: timedelta
    token: str | None = None
    user: str | None = None
    password: str | None = None
    certificate: str | None = None
    key: str | None = None
