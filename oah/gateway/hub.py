"""What the connections of one gateway share, put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oah.gateway import frames
from oah.gateway.access import Access
from oah.gateway.attention import Attention
from oah.gateway.connection import Connection
from oah.gateway.desk import Desk
from oah.gateway.groups import Groups
from oah.gateway.mail import Mail
from oah.gateway.requests import Requests
from oah.gateway.rules import GatewayRules
from oah.gateway.sender import Sender
from oah.gateway.switch import Switch
from oah.ports.clock import Ids
from oah.ports.store import RunFence


class Hub:
    """One of the process; made in the loop's thread and for it."""

    def __init__(self, *, mail: Mail, access: Access, rules: GatewayRules, ids: Ids) -> None:
        self.mail, self.access, self.rules = mail, access, rules
        self.telemetry, self.loop, self.now = mail.telemetry, mail.loop, mail.now
        self.name = f"{rules.name}.{ids.nonce()[:12]}"
        self.connections: set[Connection] = set()
        self.attention: Attention[Connection] = Attention()
        self.groups = Groups(mail)
        self.sender = Sender(mail.send, mail.now, mail.telemetry)
        self.switch = Switch(self.sender, ids.chance)
        self.desk = Desk(mail, self.sender, self.switch, self.groups, Requests(mail, most_bytes=rules.max_payload))
        self.info: Mapping[str, Any] = {}
        self._subscriptions = 0
        self._numbers = 0

    def accept(self) -> Connection:
        """For the server: what a new client is handled by."""
        self._numbers += 1
        return Connection(self, self._numbers)

    def arrived(self, connection: Connection) -> None:
        """A client is here."""
        self.connections.add(connection)
        if connection.identity is None:
            self.attention.note(self.attention.nameless, connection)
        self.telemetry.gauge("oah_gateway_connections", len(self.connections))
        connection.write(frames.info({**self.info, "client_id": connection.number}))
        if len(self.connections) > self.rules.max_connections:
            connection.end("limit", "maximum connections exceeded")

    def leave(self, connection: Connection, reason: str) -> None:
        """A client is being let go, or has gone: what it held is for others."""
        self.connections.discard(connection)
        self.attention.forget(connection)
        self.telemetry.gauge("oah_gateway_connections", len(self.connections))
        self.telemetry.count("oah_gateway_ends_total", reason=reason)
        self.mail.left(connection)

    def agents(self, run: RunFence) -> int:
        """How many connections an attempt has."""
        return sum(each.identity is not None and each.identity.run == run for each in self.attention.keyed)

    def subscribed(self, change: int) -> None:
        """One more or one less."""
        self._subscriptions += change
        self.telemetry.gauge("oah_gateway_subscriptions", self._subscriptions)

    async def finish(self) -> None:
        """Until everything that clients have sent has its answer, and what was begun besides is done."""
        await self.sender.flush()
        await self.mail.finish()
