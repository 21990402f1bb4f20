"""What is asked of mailboxes over NATS: every publish and every subscription in their namespace comes here.

A request is answered where it names a reply, also a refused one. A message that nobody awaits a receipt for and that is
refused is answered with the form of -ERR at which clients keep their connection: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Awaitable

from oah.errors import Forbidden, NotFound, OahError, RequestError, Unavailable
from oah.gateway import answers, frames, letters, subjects
from oah.gateway.access import Identity
from oah.gateway.commands import Publish
from oah.gateway.feeds import Feed
from oah.gateway.groups import GroupKey, Groups
from oah.gateway.mail import Mail
from oah.gateway.requests import Requests
from oah.gateway.sender import Sender
from oah.gateway.subjects import Asked, Era, Reading, Refused, Verb
from oah.gateway.subscription import Client, Subscription
from oah.gateway.switch import Switch
from oah.ports.mailboxes import Sent


class Desk:
    """One of the process; for the loop's thread."""

    def __init__(self, mail: Mail, sender: Sender, switch: Switch, groups: Groups, requests: Requests) -> None:
        self._mail = mail
        self._sender = sender
        self._switch = switch
        self._groups = groups
        self._requests = requests

    # Publish

    def publish(self, connection: Client, command: Publish) -> Awaitable[None] | None:
        """A request or a message. What is returned has to be waited for before the client's next command."""
        asked = subjects.read_publish(command.subject)
        if isinstance(asked, Refused):
            self._refuse(connection, command, answers.refused(asked))
            return None
        wrong = self._forbidden(connection.identity, asked)
        if wrong is not None:
            self._refuse(connection, command, answers.failed(wrong))
            return None
        if asked.verb is Verb.SEND:
            return self._send(connection, command, asked)
        return self._ask(connection, command, asked)

    @staticmethod
    def _forbidden(identity: Identity | None, asked: Asked) -> RequestError | None:
        if identity is None:
            return Forbidden("no key was shown")
        if not identity.writes and asked.verb not in (Verb.LIST, Verb.QUERY, Verb.DISCOVER):
            return Forbidden("the key may only read")
        if asked.address and not identity.reaches(asked.address):
            return Forbidden("mailboxes of sessions are reached with a key")
        if asked.verb is not Verb.SEND and not identity.reads(asked.address):
            return NotFound(f"no mailbox {asked.address}", code="mailbox_not_found")
        return None

    def _send(self, connection: Client, command: Publish, asked: Asked) -> Awaitable[None] | None:
        identity = connection.identity
        assert identity is not None
        try:
            letter = letters.outgoing(
                asked, command, workspace_id=identity.workspace_id, sender=identity.by, agent=identity.sender
            )
        except RequestError as error:
            self._refuse(connection, command, answers.failed(error))
            return None

        size = len(command.payload)

        def then(answer: Sent | OahError) -> None:
            connection.stored(size)
            self._receipt(connection, command, asked.era, answer)

        self._sender.submit(letter, then)
        waiting = connection.sending(size)
        return connection.settled() if connection.verbose else waiting

    def _receipt(self, connection: Client, command: Publish, era: Era, answer: Sent | OahError) -> None:
        if isinstance(answer, Sent):
            self._mail.telemetry.count("oah_gateway_requests_total", verb="send", result="done")
            if command.reply is not None:
                self._switch.answer(connection, command.reply, answers.sent(era, answer))
            connection.ok()
            return
        result = "failed" if isinstance(answer, Unavailable) else "refused"
        self._mail.telemetry.count("oah_gateway_requests_total", verb="send", result=result)
        self._tell(connection, command, answers.failed(answer))

    def _refuse(self, connection: Client, command: Publish, answer: answers.Answer) -> None:
        self._mail.telemetry.count("oah_gateway_refusals_total", what="publish")
        self._tell(connection, command, answer)

    def _tell(self, connection: Client, command: Publish, answer: answers.Answer) -> None:
        if command.reply is not None:
            self._switch.answer(connection, command.reply, answer)
            connection.ok()
        else:
            connection.write(frames.refused_publish(command.subject))

    async def _ask(self, connection: Client, command: Publish, asked: Asked) -> None:
        await connection.settled()  # a client that has sent and then lists sees what it has sent
        waiting = self._answer(connection, command, asked)
        if asked.verb is Verb.FETCH and not connection.verbose and connection.beside(waiting):
            return  # it may wait for what this very client is about to send
        await waiting

    async def _answer(self, connection: Client, command: Publish, asked: Asked) -> None:
        identity = connection.identity
        assert identity is not None
        verb = asked.verb.name.lower()
        try:
            answer = await self._requests.answer(identity, connection, asked, command.payload)
        except RequestError as error:
            answer, result = answers.failed(error), "refused"
        except Unavailable as error:
            answer, result = answers.failed(error), "failed"
        else:
            result = "done"
        self._mail.telemetry.count("oah_gateway_requests_total", verb=verb, result=result)
        if result == "done" and command.reply is None:
            connection.ok()
        else:
            self._tell(connection, command, answer)

    # Subscribe

    def subscribe(self, subscription: Subscription) -> Awaitable[None] | None:
        """A reader of a mailbox; refused, it never counted."""
        connection = subscription.connection
        reading = subjects.read_subscription(subscription.subject)
        identity = connection.identity
        if isinstance(reading, Refused) or identity is None:
            connection.refuse(subscription)
            return None
        if not identity.reaches(reading.address) or not identity.reads(reading.address):
            connection.refuse(subscription)
            return None
        if subscription.queue is not None and not identity.writes:
            connection.refuse(subscription)  # to take a message from others is more than to read
            return None
        return self._open(subscription, identity, reading)

    async def _open(self, subscription: Subscription, identity: Identity, reading: Reading) -> None:
        connection = subscription.connection
        await connection.settled()
        try:
            mailbox = await self._mail.call(self._mail.post.mailbox, identity.workspace_id, reading.address)
        except (RequestError, Unavailable):
            connection.refuse(subscription)
            return
        if connection.ended is not None:
            return
        if subscription.queue is not None and mailbox.session_id is not None:
            connection.refuse(subscription)  # a session's messages are its agent's
            return
        connection.keep(subscription)
        if subscription.queue is None:
            subscription.source = Feed(self._mail, subscription, mailbox, reading.priorities)
        else:
            key = GroupKey(mailbox.id, subscription.queue, reading.priorities)
            subscription.source = self._groups.join(key, mailbox, subscription)
        connection.ok()  # last: a client that takes it no more is let go by this, and leaves its mailbox
