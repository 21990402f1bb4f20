"""FETCH and ACK: a group's member asks for messages, has them for a lease, and acknowledges each by its number.

A message that is not acknowledged comes again when the lease is over; acknowledging one says nothing of the others
(an acknowledgement of all up to a number would settle what other members still work on). While the connection that
fetched lives, its leases are extended.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import NotFound
from oah.gateway import answers
from oah.gateway.bodies import Wanted
from oah.gateway.mail import FETCHES, Mail
from oah.gateway.subjects import Era
from oah.gateway.subscription import Client
from oah.ports.mailboxes import Leased, Watermarks

REMEMBERED = 100_000
"""Messages handed out and not acknowledged, of all groups; the oldest are forgotten, and come again."""


class Fetches:
    """One of the process; for the loop's thread."""

    def __init__(self, mail: Mail, *, most_bytes: int) -> None:
        self._mail = mail
        self._room = most_bytes - answers.OVERHEAD
        self._leases: OrderedDict[tuple[MailboxId, str, int], str] = OrderedDict()

    async def fetch(self, connection: Client, mailbox: Mailbox, wanted: Wanted) -> answers.Answer:
        """Waits until there is something, or the time asked for is over. Raises NotFound when the mailbox goes."""
        news = self._mail.news(mailbox.id)
        try:
            until = self._mail.now() + wanted.wait.total_seconds()
            while True:
                news.clear()
                found = await self._look(connection, mailbox, wanted)
                left = until - self._mail.now()
                if found or left <= 0 or connection.ended is not None:
                    return answers.done(Era.PULL, messages=found)
                await news.wait(left)
        finally:
            news.close()

    async def ack(self, mailbox: Mailbox, group: str, seq: int) -> None:
        """Raises NotFound when it is not, or no longer, this group's to acknowledge."""
        key = (mailbox.id, group, seq)
        lease = self._leases.get(key)
        settled = lease is not None and await self._mail.call(self._mail.post.settle, mailbox.id, lease, ack=True)
        if self._leases.get(key) == lease:  # while the store is away it stays, for the next try
            self._leases.pop(key, None)
        if not settled:
            raise NotFound("message not found", hint="its lease is over, or it was acknowledged before")

    async def _look(self, connection: Client, mailbox: Mailbox, wanted: Wanted) -> list[answers.Answer]:
        room = self._room
        most_bytes = room * 3 // 5  # base64 makes four bytes of three
        if wanted.group is None:
            return self._fitting(await self._snapshot(mailbox, wanted, most_bytes), room)
        leased = await self._mail.lease(
            connection,
            connection.name + FETCHES,
            mailbox.id,
            wanted.group,
            limit=wanted.limit,
            priorities=tuple(Priority),
            most_bytes=most_bytes,
        )
        for each in leased:
            self._remember(mailbox.id, wanted.group, each)
        items = [answers.whole(each.message, attempt=each.attempt) for each in leased]
        fitting, all_of_them = answers.fitting(items, room, least=1)
        if not all_of_them:
            await self._mail.give_back(mailbox.id, leased[len(fitting) :])
        return list(fitting)

    @staticmethod
    def _fitting(messages: list[Message], room: int) -> list[answers.Answer]:
        return list(answers.fitting(map(answers.whole, messages), room, least=1)[0])

    async def _snapshot(self, mailbox: Mailbox, wanted: Wanted, most_bytes: int) -> list[Message]:
        """Without a group: what is there, to whoever asks."""
        had = Watermarks()
        if wanted.deliver == "from_id":
            had = Watermarks(dict.fromkeys(Priority, wanted.from_id - 1))
        if wanted.deliver == "latest":
            had = Watermarks(dict.fromkeys(Priority, await self._last(mailbox) - 1))
        found = await self._mail.read(mailbox.id, had, wanted.limit, tuple(Priority), most_bytes)
        return [each for each in found if _since(each, wanted.from_time if wanted.deliver == "from_time" else None)]

    async def _last(self, mailbox: Mailbox) -> int:
        """The newest number: what "latest" begins with."""
        again = await self._mail.call(self._mail.post.mailbox, mailbox.workspace_id, mailbox.address)
        return again.last_seq

    def _remember(self, mailbox_id: MailboxId, group: str, leased: Leased) -> None:
        self._leases[(mailbox_id, group, leased.message.seq)] = leased.lease_id
        while len(self._leases) > REMEMBERED:
            self._leases.popitem(last=False)


def _since(message: Message, moment: datetime | None) -> bool:
    return moment is None or message.sent_at >= moment
