"""What all connections of a gateway share, as a connection sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from oah.gateway.access import Access
from oah.gateway.attention import Attention
from oah.gateway.desk import Desk
from oah.gateway.mail import Mail
from oah.gateway.rules import GatewayRules
from oah.gateway.switch import Switch
from oah.ports.store import RunFence
from oah.ports.telemetry import Telemetry


class Shared(Protocol):
    """What all connections share."""

    name: str
    rules: GatewayRules
    access: Access
    attention: Attention[Any]  # of connections, which import this module
    desk: Desk
    switch: Switch
    telemetry: Telemetry
    loop: asyncio.AbstractEventLoop

    @property
    def now(self) -> Callable[[], float]: ...

    @property
    def mail(self) -> Mail: ...

    # A connection, which imports this module.
    def arrived(self, connection: Any) -> None: ...
    def leave(self, connection: Any, reason: str) -> None: ...
    def subscribed(self, change: int) -> None: ...
    def agents(self, run: RunFence) -> int: ...
