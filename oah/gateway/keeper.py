"""What has to be looked at again and again: silent clients, slow ones, leases of members that live.

All clients are looked at a few times in the period after which they are asked; those that do not take what waits for
them, or have not said who they are, every half a second, and only while there are such.

A client that reads nothing is let go when its buffer is too full or has not moved for too long. Members of groups are
asked more often than others: what a dead one holds must not wait for minutes. Their leases are extended only while they
answer, so a peer that is half gone, or too busy to say anything, keeps its connection but nothing that others wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from oah.errors import OahError
from oah.gateway import frames
from oah.gateway.commands import REVOKED, UNAUTHORIZED
from oah.gateway.connection import Connection
from oah.gateway.hub import Hub
from oah.gateway.mail import FETCHES

log = logging.getLogger(__name__)

LOOK = 0.5
"""Seconds between two looks at those who need it."""
ALL = 10
"""Looks at all clients in the time after which a silent one is asked."""
MOST_QUESTIONS = 2
"""PINGs without an answer; when the next one would be due the client is let go."""
ASK_AGAIN = 5.0
"""Seconds between two looks at the keys that clients have shown: one that is revoked holds that much longer."""
CONNECT_WITHIN = 2.0
"""Seconds that a client may take to say who it is, where it has to; what the store takes to know it does not count."""


class Keeper:
    """For the loop's thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked: dict[Connection, float] = {}
        self._extended_at = self._proven_at = self._seen_at = hub.now()
        self._left: dict[str, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            spare = self.pause() - LOOK
            if spare > 0:
                await self._hub.attention.rest(spare)
            await asyncio.sleep(LOOK)
            await self.step()

    async def step(self) -> None:
        """What it is time for."""
        self.look()
        if self._hub.now() - self._extended_at >= self._third - LOOK / 2:
            self._extended_at = self._hub.now()
            await self.extend()
        if self._hub.now() - self._proven_at >= ASK_AGAIN:
            self._proven_at = self._hub.now()
            await self.prove()

    @property
    def _third(self) -> float:
        """Of a lease: members are asked, and their leases extended, so often."""
        return self._hub.rules.lease.total_seconds() / 3

    @property
    def _all_every(self) -> float:
        return max(LOOK, min(self._hub.rules.ping_every.total_seconds() / ALL, self._third))

    def pause(self) -> float:
        """Seconds until there is something to do, if nothing happens."""
        attention, now = self._hub.attention, self._hub.now()
        if attention.closely:
            return LOOK
        until = self._seen_at + self._all_every
        if attention.keyed:
            until = min(until, self._proven_at + ASK_AGAIN)
        return until - now

    def look(self) -> None:
        """At all connections when it is time, else at those who need it."""
        attention = self._hub.attention
        members = set(self._hub.mail.holders.values())
        for connection in list(self._due()):
            self._look_at(connection, connection in members)
            if not connection.unsent:
                attention.unsent.discard(connection)
        self._left = {holder: when for holder, when in self._left.items() if holder in self._hub.mail.holders}
        self._asked = {each: when for each, when in self._asked.items() if each in self._hub.connections}

    def _due(self) -> Iterable[Connection]:
        attention, now = self._hub.attention, self._hub.now()
        if now - self._seen_at < self._all_every - LOOK / 2:
            return attention.unsent | attention.nameless
        self._seen_at = now
        return self._hub.connections

    def _look_at(self, connection: Connection, member: bool) -> None:  # noqa: FBT001 (one caller)
        rules, now = self._hub.rules, self._hub.now()
        if self._stuck(connection, now):
            connection.end("slow", "Slow Consumer")
            return
        if connection.identity is None and not connection.asking and now - connection.opened_at > CONNECT_WITHIN:
            connection.end("refused", "Authentication Timeout" if connection.connected else UNAUTHORIZED)
            return
        every = rules.ping_every.total_seconds()
        if now - connection.heard_at > every * (MOST_QUESTIONS + 1):
            connection.end("stale", "Stale Connection")
            return
        if member:
            every = min(every, self._third)
        if now - max(connection.heard_at, self._asked.get(connection, 0.0)) < every:
            return
        self._asked[connection] = now
        connection.write(frames.PING)

    def _stuck(self, connection: Connection, now: float) -> bool:
        """Whether nothing of what waits has gone out for too long."""
        unsent = connection.unsent
        gone, since = connection.moved
        if not unsent or connection.written - unsent != gone:
            connection.moved = (connection.written - unsent, now)
            return False
        return now - since > self._hub.rules.write_deadline.total_seconds()

    async def prove(self) -> None:
        """Let those go whose key does not hold any more; while the store is away all stay."""
        shown = {each: each.identity.secret for each in self._hub.attention.keyed if each.identity is not None}
        secrets = set(filter(None, shown.values()))
        if not secrets:
            return
        try:
            revoked = await self._hub.mail.call(self._hub.access.revoked, secrets)
        except OahError as error:
            log.warning("keys cannot be looked at: %s", error, extra={"code": error.code})
            return
        for connection, secret in shown.items():
            if secret in revoked:
                connection.end("refused", REVOKED)

    async def extend(self) -> None:
        """Leases of members that were heard of; groups look again for what came back without a word."""
        fresh = self._hub.now() - self._hub.rules.lease.total_seconds()
        mail = self._hub.mail
        for holder, client in list(mail.holders.items()):
            if not isinstance(client, Connection) or client.heard_at < fresh:
                continue
            if not holder.endswith(FETCHES) and holder[len(client.name) + 1 :] not in client.subscriptions:
                self._forget(holder)
                continue
            try:
                await mail.extend(holder)
            except OahError as error:
                log.warning("leases cannot be extended: %s", error, extra={"code": error.code})
                return
        try:
            await self._hub.groups.look_for_ended()
        except OahError as error:
            log.warning("ended leases cannot be looked for: %s", error, extra={"code": error.code})

    def _forget(self, holder: str) -> None:
        """One that has unsubscribed: what it has is its own for one more lease."""
        since = self._left.setdefault(holder, self._hub.now())
        if self._hub.now() - since > self._hub.rules.lease.total_seconds():
            del self._left[holder]
            self._hub.mail.holders.pop(holder, None)
