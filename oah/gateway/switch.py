"""Ordinary subjects: from one client to those who listen, and our answers to who asked.

They are matched over all connections of this process within one workspace; nothing of them is stored, and nothing of
mailboxes ever takes that way, so no pattern can see a mailbox's traffic. Several gateways of a deployment share the
mailboxes, not the ordinary subjects.
"""

from __future__ import annotations

from collections.abc import Callable

from oah.core.model.ids import WorkspaceId
from oah.gateway import answers, frames, letters, subjects
from oah.gateway.commands import Publish
from oah.gateway.interest import Interest
from oah.gateway.sender import Sender
from oah.gateway.subjects import Asked, Verb
from oah.gateway.subscription import Client, Subscription


class Switch:
    """One of the process; for the loop's thread. ``chance``: in [0, 1)."""

    def __init__(self, sender: Sender, chance: Callable[[], float]) -> None:
        self._sender = sender
        self._chance = chance
        self._interest: dict[WorkspaceId, Interest[Subscription]] = {}

    def interest(self, client: Client) -> Interest[Subscription]:
        """Who listens in a client's workspace."""
        assert client.identity is not None
        return self._interest.setdefault(client.identity.workspace_id, Interest())

    def route(self, client: Client, command: Publish) -> None:
        """A publish to an ordinary subject."""

        def but(listener: Subscription) -> bool:
            return listener.connection is client and not client.echo

        chosen = self.interest(client).chosen(command.subject, self._pick, but)
        for listener in chosen:
            listener.deliver(command.subject, command.payload, reply=command.reply, block=command.headers)
        if not chosen and command.reply is not None and client.no_responders:
            self._nobody(client, command.reply)

    def _pick(self, of: int) -> int:
        return int(self._chance() * of)

    def _nobody(self, client: Client, reply: str) -> None:
        """Nobody listens there: status 503 with an empty body, to the asker's own inbox."""
        for listener in list(self.interest(client).matching(reply)):
            if listener.connection is client:
                listener.deliver(reply, b"", block=frames.NOBODY)
                return

    def answer(self, client: Client, reply: str, answer: answers.Answer) -> None:
        """Ours to a client's request: to the asker itself, or to whoever listens there for it. A reply may also name a
        mailbox: then the answer is a message in it."""
        payload = answers.encoded(answer)
        if subjects.is_ours(reply):
            self._into_mailbox(client, reply, payload)
            return
        if client.identity is None or not subjects.is_literal(reply):
            return
        found = list(self.interest(client).matching(reply))
        own = [each for each in found if each.connection is client]
        for listener in own or [each for each in found if subjects.names_much(each.subject)]:
            listener.deliver(reply, payload)

    def _into_mailbox(self, client: Client, reply: str, payload: bytes) -> None:
        asked, identity = subjects.read_publish(reply), client.identity
        if not isinstance(asked, Asked) or asked.verb is not Verb.SEND or identity is None:
            return
        if not identity.writes or not identity.reaches(asked.address):
            return
        letter = letters.outgoing(
            asked,
            Publish(reply, payload),
            workspace_id=identity.workspace_id,
            sender="gateway" if identity.run is None else identity.by,
            agent=identity.sender,
        )
        self._sender.submit(letter, lambda _answer: None)
