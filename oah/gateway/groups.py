"""A queue group of a mailbox: each message to one member, under a lease.

One reader a group deals out to the members that this gateway has, in turn, to those whose clients take something. What
a member was handed is its own until it deletes the message; it comes back to the group when the member's connection
ends, or when its lease does. Leases of members that answer are extended. A member that unsubscribes keeps what it was
handed for one more lease: a client that drains is still working on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Priority
from oah.errors import NotFound, RequestError
from oah.gateway import letters
from oah.gateway.feeds import Pump
from oah.gateway.mail import Mail
from oah.gateway.subjects import message_subject
from oah.gateway.subscription import Subscription
from oah.ports.mailboxes import MOST_BYTES, Head, Leased

log = logging.getLogger(__name__)

MOST = 32
"""Handed out to one member at once, when there is much."""
WAIT = 0.05
"""Seconds before members that were all full are looked at again."""
GATHER = 0.05
"""Seconds between the first member and the first message: members of one program join together, and share."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Members of one name with the same mailbox and the same priorities share."""

    mailbox_id: MailboxId
    name: str
    priorities: tuple[Priority, ...]


class Group:
    """The members that this gateway has of one group."""

    def __init__(self, mail: Mail, key: GroupKey, mailbox: Mailbox, on_end: Callable[[Group], None]) -> None:
        self._mail = mail
        self._on_end = on_end
        self.key = key
        self._mailbox = mailbox
        self._members: list[Subscription] = []
        self._turn = 0
        self._limit = 1
        self._gathered = False
        self._pump = Pump(mail.loop, self._work)
        self._unwatch = mail.watch(mailbox.id, self._told, seen=mailbox)

    def join(self, subscription: Subscription) -> None:
        """One more member."""
        self._members.append(subscription)
        self._limit = 1  # what is left is shared with the new one, in small portions at first
        self._pump.ring()

    def leave(self, subscription: Subscription) -> None:
        """One less; the last one ends the group here."""
        if subscription in self._members:
            self._members.remove(subscription)
        if not self._members:
            self._pump.closed = True
            self._unwatch()
            self._on_end(self)

    def ring(self) -> None:
        """Leases may have ended without anybody telling."""
        self._pump.ring()

    def _told(self, head: Head) -> None:
        if head.gone:
            self._gone()
        else:
            self._pump.ring()

    def _gone(self) -> None:
        for member in list(self._members):
            member.connection.refuse(member)
            member.connection.drop(member)

    async def _work(self) -> None:
        if not self._gathered:
            self._gathered = True
            await asyncio.sleep(GATHER)
        while self._members:
            member = self._next()
            if member is None:
                await asyncio.sleep(WAIT)
                continue
            limit = min(self._limit, member.wants or self._limit)
            try:
                leased = await self._lease(member, limit)
            except NotFound:
                self._gone()
                return
            except RequestError as error:
                log.info("a group cannot be served: %s", error, extra={"code": error.code})
                self._gone()
                return
            if not leased:
                return
            self._limit = min(MOST, self._limit * 2) if len(leased) == limit else 1
            await self._deal(member, leased)

    async def _lease(self, member: Subscription, limit: int) -> list[Leased]:
        key = self.key
        return await self._mail.lease(
            member.connection,
            member.holder,
            self._mailbox.id,
            key.name,
            limit=limit,
            priorities=key.priorities,
            most_bytes=MOST_BYTES,
        )

    def _next(self) -> Subscription | None:
        """The next in turn whose client takes something."""
        for step in range(len(self._members)):
            member = self._members[(self._turn + step) % len(self._members)]
            if not member.connection.full and member.wants != 0:
                self._turn = (self._turn + step + 1) % len(self._members)
                return member
        return None

    async def _deal(self, member: Subscription, leased: Sequence[Leased]) -> None:
        for at, each in enumerate(leased):
            subject = message_subject(self._mailbox.address, each.message.priority)
            block = letters.block(each.message, attempt=each.attempt)
            if not member.deliver(subject, each.message.payload, block=block):
                await self._mail.give_back(self._mailbox.id, leased[at:])
                return
            self._mail.pushed()


class Groups:
    """All groups of one gateway; for the loop's thread."""

    def __init__(self, mail: Mail) -> None:
        self._mail = mail
        self._groups: dict[GroupKey, Group] = {}

    def join(self, key: GroupKey, mailbox: Mailbox, subscription: Subscription) -> Group:
        """A member of that group, which begins with its first one."""
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = Group(self._mail, key, mailbox, self._forget)
        found.join(subscription)
        return found

    async def look_for_ended(self) -> None:
        """Groups look again where leases have ended and nobody has told: whoever tells may be away. Raises
        Unavailable."""
        names = {key.mailbox_id for key in self._groups}
        if not names:
            return
        ended = await self._mail.call(self._mail.post.ended_leases, names)
        for key, group in list(self._groups.items()):
            if key.mailbox_id in ended:
                group.ring()

    def _forget(self, group: Group) -> None:
        if self._groups.get(group.key) is group:
            del self._groups[group.key]
