"""Agents that make themselves known: REGISTER, REPORT, UNREGISTER, DISCOVER.

The register of a workspace is a mailbox like any other: an agent's card is the newest message of the key that is its
name. So it is durable, seen by every gateway, and can be read by whoever may read mailboxes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oah.core.model.mailbox import Mailbox
from oah.core.model.message import Message, Priority
from oah.errors import InvalidRequest, NotFound, RequestError
from oah.gateway import answers, bodies
from oah.gateway.access import Identity
from oah.gateway.mail import Mail
from oah.gateway.subjects import Asked, Era
from oah.ports.mailboxes import MOST_BYTES, Outgoing, Watermarks

CARDS = "mq9.agents"
REPORTS = "mq9.agents.reports"
MOST_LOOKED_AT = 2_000
"""Cards that one DISCOVER goes through."""


class Register:
    """One of the process; for the loop's thread."""

    def __init__(self, mail: Mail, *, most_bytes: int) -> None:
        self._mail = mail
        self._room = most_bytes - answers.OVERHEAD

    async def register(self, identity: Identity, _asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        """Again under the same name: the new card counts."""
        await self._put(identity, CARDS, self._name(body), body)
        return answers.done(Era.PULL)

    async def report(self, identity: Identity, _asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        """The latest report of an agent is shown with its card."""
        await self._put(identity, REPORTS, self._name(body), body)
        return answers.done(Era.PULL)

    async def unregister(self, identity: Identity, _asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        """By name, or by the mailbox that the card names."""
        name, address = bodies.text(body, "name"), bodies.text(body, "mailbox")
        if name is None and address is None:
            raise InvalidRequest("'name' or 'mailbox' is missing")
        gone = 0
        for message in await self._all(identity, CARDS):
            card = _card(message)
            if message.key == name or (card is not None and address is not None and card.get("mailbox") == address):
                gone += await self._mail.call(self._mail.post.delete, message.mailbox_id, message.seq)
                await self._forget_reports(identity, message.key)
        if not gone:
            raise NotFound("agent not found")
        return answers.done(Era.PULL)

    async def discover(self, identity: Identity, _asked: Asked, body: Mapping[str, Any]) -> answers.Answer:
        """Cards in which the words occur: all of them for ``text``; ``semantic`` orders by how many do."""
        words = (bodies.text(body, "text", most=4_096) or "").lower().split()
        meaning = (bodies.text(body, "semantic", most=4_096) or "").lower().split()
        limit = bodies.whole_number(body, "limit", otherwise=20, least=1, most=200)
        page = bodies.whole_number(body, "page", otherwise=1, least=1, most=10**6)
        cards = [card for message in await self._all(identity, CARDS) if (card := _card(message)) is not None]
        found = _matching(cards, words, meaning)[(page - 1) * limit : page * limit]
        reports = {message.key: message for message in await self._all(identity, REPORTS)}
        shown = [_with_report(card, reports.get(card.get("name"))) for card in found]
        items, _ = answers.fitting(shown, self._room)
        return answers.done(Era.PULL, agents=list(items))

    @staticmethod
    def _name(body: Mapping[str, Any]) -> str:
        name = bodies.text(body, "name", most=128)
        if name is None:
            raise InvalidRequest("'name' is missing")
        return name

    async def _put(self, identity: Identity, address: str, name: str, body: Mapping[str, Any]) -> None:
        await self._mail.call(self._mail.standing, identity.workspace_id, address)
        letter = Outgoing(
            workspace_id=identity.workspace_id,
            address=address,
            payload=json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
            sender=identity.by,
            key=name,
        )
        answer = (await self._mail.call(self._mail.post.send, [letter]))[0]
        if isinstance(answer, RequestError):
            raise answer

    async def _all(self, identity: Identity, address: str) -> list[Message]:
        try:
            mailbox: Mailbox = await self._mail.call(self._mail.post.mailbox, identity.workspace_id, address)
        except NotFound:
            return []
        return await self._mail.read(mailbox.id, Watermarks(), MOST_LOOKED_AT, tuple(Priority), MOST_BYTES)

    async def _forget_reports(self, identity: Identity, name: str | None) -> None:
        for message in await self._all(identity, REPORTS):
            if message.key == name:
                await self._mail.call(self._mail.post.delete, message.mailbox_id, message.seq)


def _card(message: Message) -> Mapping[str, Any] | None:
    """None for what somebody else has put into that mailbox."""
    try:
        found = json.loads(message.payload)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _with_report(card: Mapping[str, Any], message: Message | None) -> Mapping[str, Any]:
    report = None if message is None else _card(message)
    if message is None or report is None:
        return card
    return {**card, "report": report, "reported_at": int(message.sent_at.timestamp())}


def _matching(cards: list[Mapping[str, Any]], words: list[str], meaning: list[str]) -> list[Mapping[str, Any]]:
    def said(card: Mapping[str, Any]) -> str:
        return json.dumps(card, ensure_ascii=False).lower()

    if meaning:
        scored = [(sum(word in said(card) for word in meaning), at) for at, card in enumerate(cards)]
        return [cards[at] for score, at in sorted(scored, key=lambda each: (-each[0], each[1])) if score]
    return [card for card in cards if all(word in said(card) for word in words)]
