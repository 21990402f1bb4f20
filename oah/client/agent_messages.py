"""Messages for the agents of sessions: sent, looked at, acknowledged; agents woken."""

from __future__ import annotations

import uuid
from datetime import timedelta

from oah.client.calls import Calls, given, part, seconds
from oah.client.transport import Json


class AgentMessageCalls(Calls):
    """The client's part that speaks to agents."""

    def send_to_session(
        self,
        session_id: str,
        text: str,
        *,
        mode: str | None = None,
        priority: str | None = None,
        ttl: timedelta | float | None = None,
        delay: timedelta | float | None = None,
        callback: str | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """A message for the session's agent; ``state`` and ``outcome`` say how far it has come. ``mode``: ``wait`` (at
        the next boundary), ``steer`` (into the live turn), ``run`` (as a run). ``callback``: a webhook that is told of
        each later change. Raises Conflict ``session_closed``, LimitReached ``mailbox_full``."""
        body = given(
            text=text,
            mode=mode,
            priority=priority,
            ttl_seconds=seconds(ttl),
            delay_seconds=seconds(delay),
            callback=callback,
        )
        headers = {"idempotency-key": idempotency_key or uuid.uuid4().hex}
        return self._one("POST", f"/v1/sessions/{part(session_id)}/messages", body=body, headers=headers)

    def session_messages(self, session_id: str, *, state: str | None = None, limit: int | None = None) -> list[Json]:
        """Newest first, without their texts."""
        return self._list(f"/v1/sessions/{part(session_id)}/messages", given(state=state), limit=limit)

    def session_message(self, session_id: str, message_id: str) -> Json:
        """One, whole. Raises NotFound."""
        return self._one("GET", f"/v1/sessions/{part(session_id)}/messages/{part(message_id)}")

    def message_cursors(self, session_id: str) -> Json:
        """How far they have come: ``received``, ``acked``, ``last``."""
        page = self._one("GET", f"/v1/sessions/{part(session_id)}/messages", params={"limit": 1})
        cursors: Json = page["cursors"]
        return cursors

    def ack_session_messages(self, session_id: str, up_to: int) -> Json:
        """By the agent itself, with the key of its run: it has everything up to this number."""
        return self._one("POST", f"/v1/sessions/{part(session_id)}/messages/ack", body={"up_to": up_to})

    def wake_session(self, session_id: str) -> Json:
        """Start the agent for the messages that wait, whatever failed before. Raises NotFound, Conflict."""
        return self._one("POST", f"/v1/sessions/{part(session_id)}/wake", body={})
