"""Short words for tests about messages for agents, in front of the clerk of the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from oah.core.model.ids import MessageId, SessionId
from oah.core.model.message import AgentMessage, MessageMode, MessageState, Sender, WakeMode
from oah.core.model.run import Outcome, Run, RunError, RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.wake import Rules
from oah.errors import RequestError
from oah.ports.mailboxes import ForAgent, NewMessage, Sent
from oah.ports.messages import Injected, MailSwept, MessageFilter
from oah.ports.store import AfterRun, RunFence, Settlement
from tests.support.store_clerk import Clerk, fence_of

HOUR = timedelta(hours=1)
NOW = Rules(pause=timedelta(0), failures=3)


class AgentMail:
    """One session, its messages, and an attempt that delivers them."""

    def __init__(self, clerk: Clerk, session: str) -> None:
        self.clerk = clerk
        self.store = clerk.store
        self.session = SessionId(session)
        self._ids = count(1)

    def eager(self) -> AgentMail:
        """Messages start its agent."""
        self.store.update_session(self.session, None, {"wake": WakeMode.EAGER.value})
        return self

    def resumable(self) -> AgentMail:
        """Its conversation has a name."""
        self.store.update_session(self.session, None, {"session_ref": "ref-1"})
        return self

    def send(self, *texts: str, **more: Any) -> list[Sent]:
        """Send, each accepted."""
        answers = self.try_send(*texts, **more)
        sent = [each for each in answers if isinstance(each, Sent)]
        assert len(sent) == len(answers), answers
        return sent

    def try_send(
        self,
        *texts: str,
        mode: MessageMode = MessageMode.WAIT,
        sender: Sender | None = None,
        callback: str | None = None,
        most: int = 256,
        **more: Any,
    ) -> list[Sent | RequestError]:
        """Send in one batch."""
        more.setdefault("ttl", HOUR)
        asked = ForAgent(mode=mode, sender=sender or Sender(by="key:k1"), callback=callback)
        return self.store.send_messages(
            [
                NewMessage(
                    id=MessageId(f"msg_{self.session}_{next(self._ids):04d}"),
                    workspace_id=DEFAULT_WORKSPACE,
                    address=self.session,
                    payload=text.encode(),
                    for_agent=asked,
                    wake_pause=timedelta(0),
                    **more,
                )
                for text in texts
            ],
            session_messages=most,
        )

    def start(self) -> tuple[Run, RunFence]:
        """Start the next run of the session."""
        begun = self.clerk.start(self.session)
        return begun.run, fence_of(begun)

    def start_parked(self) -> tuple[Run, RunFence]:
        """The owner of a warm agent starts the next run."""
        owner = self.clerk.owner(self.session)
        begun = self.clerk.start(self.session, owner.token, worker=owner.worker_id)
        return begun.run, fence_of(begun)

    def nothing_to_start(self) -> bool:
        """No run is eligible."""
        return type(self.clerk.try_start(self.clerk.claim(self.session))[0]).__name__ == "NothingEligible"

    def take(self, fence: RunFence, *, most: int = 5) -> AgentMessage | None:
        """The next one."""
        taken = self.store.take_messages(fence, limit=1, most_attempts=most).messages
        return taken[0] if taken else None

    def taken(self, fence: RunFence, *, most: int = 5) -> AgentMessage:
        """The next one, which there is."""
        message = self.take(fence, most=most)
        assert message is not None
        return message

    def over(self, fence: RunFence, message: AgentMessage, outcome: str = "confirmed") -> MessageState:
        """Its turn has ended."""
        return self.done(fence, message, outcome, turn_over=True)

    def done(self, fence: RunFence, message: AgentMessage, outcome: str = "confirmed", **more: Any) -> MessageState:
        """What became of it."""
        done = Injected(message_id=message.message_id, delivery_id=message.delivery_id, outcome=outcome, **more)
        return self.store.injected(fence, [done]).states[0]

    def deliver_all(self, fence: RunFence) -> list[str]:
        """As a worker does: one after the other; their texts."""
        texts = []
        while (message := self.take(fence)) is not None:
            texts.append(message.payload.decode())
            assert self.over(fence, message) is MessageState.ACKED
        return texts

    def end(
        self, fence: RunFence, status: RunStatus = RunStatus.COMPLETED, *, keep: bool = False, agent: str = "fresh"
    ) -> AfterRun:
        """Settle the attempt."""
        error = RunError("agent_not_ready", "it broke") if status is RunStatus.FAILED else None
        outcome = Outcome(status, "done", error=error, agent=agent)
        return self.store.settle([Settlement(fence, outcome, keep_owner=keep)])[0]

    def talked(self, *, keep: bool = False) -> None:
        """There was a conversation."""
        self.clerk.submit(self.session)
        _, fence = self.start()
        self.end(fence, keep=keep)

    def sweep(self, rules: Rules = NOW) -> MailSwept:
        """One pass of the leader."""
        return self.store.sweep_messages(rules)

    def states(self) -> list[str]:
        """Of all messages, oldest first."""
        return [each.state.value for each in self.all()]

    def all(self) -> Sequence[AgentMessage]:
        """Oldest first."""
        found = self.store.agent_messages(MessageFilter(session_id=self.session, limit=1_000)).items
        return sorted(found, key=lambda message: message.seq or 0)

    def one(self, message_id: str) -> AgentMessage:
        """With its content."""
        return self.store.agent_message(MessageId(message_id), None)

    def events(self, kind: str = "message.") -> list[str]:
        """Types of its events."""
        return [each for each in self.clerk.events(self.session) if each.startswith(kind)]

    def expire(self, message_id: str) -> None:
        """Its time is over."""
        moment = "1" if self.clerk.url.startswith("sqlite") else "now() - interval '1 second'"
        for table, key in (("agent_messages", "message_id"), ("messages", "id")):
            self.clerk.behind.query(f"UPDATE {table} SET expires_at = {moment} WHERE {key} = ?", message_id)

    def older(self, message_id: str) -> None:
        """It was sent two hours before."""
        sqlite = self.clerk.url.startswith("sqlite")
        moment = "created_at - 7200000000" if sqlite else "created_at - interval '2 hours'"
        self.clerk.behind.query(f"UPDATE agent_messages SET created_at = {moment} WHERE message_id = ?", message_id)

    def audit(self) -> None:
        """The rows of runs are sound, and the count of unsettled messages is exact."""
        self.clerk.audit()
        [(counted, unsettled)] = self.clerk.behind.query(
            "SELECT unsettled, (SELECT count(*) FROM agent_messages WHERE session_id = s.id"
            " AND state IN ('queued', 'delivered')) FROM sessions s WHERE id = ?",
            self.session,
        )
        assert counted == unsettled
