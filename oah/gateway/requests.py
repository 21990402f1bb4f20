"""Requests with an answer: create, list, delete, and what the later generation of the protocol asks for.

Each is one coroutine from what was asked to the answer; errors are raised and put into words by the desk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from oah.core.model.ids import MailboxId
from oah.core.model.mailbox import Mailbox
from oah.errors import InvalidRequest, NotFound
from oah.gateway import answers, bodies
from oah.gateway.access import Identity
from oah.gateway.fetches import Fetches
from oah.gateway.mail import Mail
from oah.gateway.register import Register
from oah.gateway.subjects import Asked, Era, Verb
from oah.gateway.subscription import Client

LIST_PAGE = 1_000
QUERY_MOST = 100
HIGHEST = 2**62


class Requests:
    """One of the process; for the loop's thread."""

    def __init__(self, mail: Mail, *, most_bytes: int) -> None:
        self._mail = mail
        self._room = most_bytes - answers.OVERHEAD
        self._fetches = Fetches(mail, most_bytes=most_bytes)
        self._register = Register(mail, most_bytes=most_bytes)
        self._verbs: Mapping[Verb, Callable[[Identity, Asked, Mapping[str, Any]], Awaitable[answers.Answer]]] = {
            Verb.CREATE: self._create,
            Verb.LIST: self._list,
            Verb.DELETE: self._delete,
            Verb.QUERY: self._query,
            Verb.ACK: self._ack,
            Verb.REGISTER: self._register.register,
            Verb.UNREGISTER: self._register.unregister,
            Verb.REPORT: self._register.report,
            Verb.DISCOVER: self._register.discover,
        }

    async def answer(self, identity: Identity, connection: Client, asked: Asked, payload: bytes) -> answers.Answer:
        """Raises RequestError, Unavailable."""
        body = bodies.read(payload)
        if asked.verb is Verb.FETCH:
            mailbox = await self._mailbox(identity, asked.address)
            return await self._fetches.fetch(connection, mailbox, bodies.fetch(body))
        return await self._verbs[asked.verb](identity, asked, body)

    async def _mailbox(self, identity: Identity, address: str) -> Mailbox:
        return await self._mail.call(self._mail.post.mailbox, identity.workspace_id, address)

    async def _create(self, identity: Identity, _asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        name = bodies.text(body, "name")
        if bodies.truth(body, "public") and name is None:
            raise InvalidRequest("a public mailbox has a name")
        ttl = bodies.seconds(body, "ttl")
        rules = self._mail.post.rules
        if ttl == timedelta(0) and rules.default_ttl is not None:
            ttl = rules.max_ttl  # "for ever" is as long as this deployment lets a mailbox live
        created = await self._mail.call(
            self._mail.post.create,
            identity.workspace_id,
            address=name,
            public=name is not None,
            ttl=ttl,
            description=bodies.text(body, "desc", most=2_000) or "",
        )
        return answers.created(created.mailbox, new=created.new)

    async def _list(self, identity: Identity, asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        mailbox = await self._mailbox(identity, asked.address)
        cursor = bodies.text(body, "cursor")
        limit = bodies.whole_number(body, "limit", otherwise=HIGHEST, least=1, most=HIGHEST)
        room = self._room
        found: list[answers.Answer] = []
        while True:
            page = await self._mail.call(
                self._mail.post.listing, mailbox.id, cursor=cursor, limit=min(LIST_PAGE, limit - len(found))
            )
            items, all_of_them = answers.fitting(map(answers.metadata, page.items), room)
            room -= sum(len(answers.encoded(item)) + 1 for item in items)
            if not all_of_them:
                # A cursor names whole pages: this one is read again with the next call.
                return answers.done(asked.era, mail_id=mailbox.address, messages=found, next_cursor=cursor)
            found += items
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = {} if cursor is None else {"next_cursor": cursor}
        return answers.done(asked.era, mail_id=mailbox.address, messages=found, **more)

    async def _delete(self, identity: Identity, asked: Asked, _body: Mapping[str, Any]) -> answers.Answer:
        if not (asked.number.isascii() and asked.number.isdigit()) or len(asked.number) > 18:
            raise InvalidRequest(f"invalid msg_id: {asked.number}")
        mailbox = await self._mailbox(identity, asked.address)
        deleted = await self._mail.call(self._mail.post.delete, mailbox.id, int(asked.number))
        return answers.done(asked.era, deleted=deleted)

    async def _query(self, identity: Identity, asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        mailbox = await self._mailbox(identity, asked.address)
        tags = bodies.tags(body)
        page = await self._mail.call(
            self._mail.post.listing,
            mailbox.id,
            limit=bodies.whole_number(body, "limit", otherwise=QUERY_MOST, least=1, most=QUERY_MOST),
            key=bodies.text(body, "key"),
            tag=tags[0] if tags else None,
            since=bodies.moment(body, "since"),
        )
        items = []
        for message in page.items:
            if set(tags) <= set(message.tags):
                whole = await self._whole(mailbox.id, message.seq)
                items += [] if whole is None else [whole]
        fitting, _ = answers.fitting(items, self._room, least=1)
        return answers.done(Era.PULL, messages=fitting)

    async def _whole(self, mailbox_id: MailboxId, seq: int) -> answers.Answer | None:
        try:
            return answers.whole(await self._mail.call(self._mail.post.peek, mailbox_id, seq))
        except NotFound:  # gone since it was listed
            return None

    async def _ack(self, identity: Identity, asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        mailbox = await self._mailbox(identity, asked.address)
        group = bodies.text(body, "group_name", most=128)
        if group is None:
            raise InvalidRequest("'group_name' is missing")
        seq = bodies.whole_number(body, "msg_id", otherwise=0, least=1, most=HIGHEST)
        await self._fetches.ack(mailbox, group, seq)
        return answers.done(Era.PULL)
