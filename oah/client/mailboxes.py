"""Mailboxes: made, sent to, read, subscribed to, and shared out among the members of a group.

Payloads are bytes: in every document that has one, ``payload`` is ``bytes``, whatever the JSON had.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from oah.client.calls import Calls, given, moment, part, seconds
from oah.client.sse import reconnecting
from oah.client.transport import Json
from oah.errors import NotFound

GONE = "gone"
"""The last event of a subscription: its mailbox has expired or was deleted."""
LONGEST_ASK = 20.0
"""Seconds that one request of a longer wait takes."""


class MailboxCalls(Calls):
    """The client's part that speaks of mailboxes. ``workspace``: only a key of all workspaces needs it."""

    def create_mailbox(
        self,
        address: str | None = None,
        *,
        ttl: timedelta | float | None = None,
        description: str | None = None,
        workspace: str | None = None,
    ) -> Json:
        """A mailbox under a name that others know, or, without ``address``, a private one with an address that nobody
        can guess. Idempotent: ``new`` says whether it was made now; the first ``ttl`` stands. Raises InvalidRequest
        ``invalid_address``, LimitReached."""
        body = given(address=address, ttl_seconds=seconds(ttl), description=description)
        # A private one that is made twice is one that nobody knows of.
        return self._one("POST", "/v1/mailboxes", body=body, params=given(workspace=workspace), once=address is None)

    def mailboxes(self, *, private: bool = False, workspace: str | None = None, limit: int | None = None) -> list[Json]:
        """By address. ``private``: those with secret addresses and those of sessions, too (scope ``operate``)."""
        params = given(workspace=workspace, private="true" if private else None)
        return self._list("/v1/mailboxes", params, limit=limit)

    def mailbox(self, address: str, *, workspace: str | None = None) -> Json:
        """One mailbox. Raises NotFound ``mailbox_not_found``, ``mailbox_expired``."""
        return self._one("GET", _path(address), params=given(workspace=workspace))

    def delete_mailbox(self, address: str, *, workspace: str | None = None) -> bool:
        """With its messages; whether there was one. Raises Conflict for a session's."""
        params = given(workspace=workspace)
        return bool(self._one("DELETE", _path(address), params=params)["deleted"])

    # --- messages ---------------------------------------------------------------------------------------------------

    def send_message(
        self,
        address: str,
        payload: bytes | str,
        *,
        priority: str | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        ttl: timedelta | float | None = None,
        delay: timedelta | float | None = None,
        key: str | None = None,
        tags: Sequence[str] | None = None,
        idempotency_key: str | None = None,
        workspace: str | None = None,
    ) -> Json:
        """Store a message: ``{id, seq, duplicate, …}``; ``seq`` is None while it is delayed. ``priority``: normal,
        urgent or critical. ``key``: an older message of the same key goes. Repeats after lost answers find the first
        message, by the ``idempotency_key`` given or one made here. Raises NotFound, LimitReached ``mailbox_full``,
        PayloadTooLarge."""
        body = given(
            payload=payload if isinstance(payload, str) else None,
            payload_base64=None if isinstance(payload, str) else base64.b64encode(payload).decode(),
            priority=priority,
            headers=headers,
            ttl_seconds=seconds(ttl),
            delay_seconds=seconds(delay),
            key=key,
            tags=None if tags is None else list(tags),
        )
        named = {"idempotency-key": idempotency_key or uuid.uuid4().hex}
        return self._one(
            "POST", f"{_path(address)}/messages", body=body, params=given(workspace=workspace), headers=named
        )

    def messages(
        self,
        address: str,
        *,
        key: str | None = None,
        tag: str | None = None,
        since: datetime | None = None,
        workspace: str | None = None,
        limit: int | None = None,
    ) -> list[Json]:
        """What is in it, in the order in which it would be read, without payloads; it disturbs nobody."""
        params = given(key=key, tag=tag, since=moment(since), workspace=workspace)
        return self._list(f"{_path(address)}/messages", params, limit=limit)

    def message(self, address: str, seq: int, *, workspace: str | None = None) -> Json:
        """One message, whole; it stays. Raises NotFound."""
        path = f"{_path(address)}/messages/{int(seq)}"
        return with_bytes(self._one("GET", path, params=given(workspace=workspace)))

    def delete_message(self, address: str, seq: int, *, workspace: str | None = None) -> bool:
        """Whether something was deleted."""
        path = f"{_path(address)}/messages/{int(seq)}"
        return bool(self._one("DELETE", path, params=given(workspace=workspace))["deleted"])

    def purge_mailbox(self, address: str, *, workspace: str | None = None) -> int:
        """Delete all messages; how many there were."""
        answer = self._one("DELETE", f"{_path(address)}/messages", params=given(workspace=workspace))
        return int(answer["deleted"])

    # --- reading ----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        address: str,
        *,
        priorities: Sequence[str] | None = None,
        after: str | None = None,
        timeout: timedelta | float | None = None,
        workspace: str | None = None,
    ) -> Iterator[Json]:
        """Every message that is there, then each new one as it comes, without gap or repeat; every subscriber gets
        all. Ends when the mailbox is gone.

        Reconnects by itself. ``after``: the ``position`` of a message, to go on after it. Raises TimeoutError,
        NotFound when there is no such mailbox to begin with.
        """
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        params = given(priority=list(priorities) if priorities else None, workspace=workspace)
        frames = reconnecting(
            self._api, f"{_path(address)}/subscribe", after=after, deadline=deadline, ends=_ENDS, params=params
        )
        begun = False
        try:
            for frame in frames:
                begun = True
                if frame.name in _ENDS:
                    return
                yield with_bytes({**json.loads(frame.data), "position": frame.id})
        except NotFound:
            if not begun:
                raise

    def receive_messages(
        self,
        address: str,
        *,
        group: str = "default",
        limit: int = 1,
        wait: timedelta | float = 0,
        holder: str | None = None,
        workspace: str | None = None,
    ) -> list[Json]:
        """The next messages that nobody else of ``group`` has, each under a lease: ``ack`` it (or delete the message)
        before ``lease_seconds`` have passed, or another member gets it. Waits up to ``wait`` for one; else empty.
        ``holder``: a name of your own, to prolong all its leases with ``extend_leases``."""
        end = time.monotonic() + (seconds(wait) or 0.0)
        while True:
            left = max(0.0, end - time.monotonic())
            ask = min(left, LONGEST_ASK)
            body = given(group=group, limit=limit, wait_seconds=ask, holder=holder)
            answer = self._one(
                "POST", f"{_path(address)}/receive", body=body, params=given(workspace=workspace), patience=ask
            )
            if answer["items"] or left <= LONGEST_ASK:
                return [with_bytes(item) for item in answer["items"]]

    def ack_message(self, lease_id: str) -> Json:
        """The group is done with it. Raises Conflict ``lease_over``, NotFound ``lease_not_found``: somebody else may
        have it by now."""
        return self._one("POST", f"/v1/mailboxes/leases/{part(lease_id)}/ack")

    def nack_message(self, lease_id: str, *, delay: timedelta | float | None = None) -> Json:
        """Give it back, for the next member, after ``delay``. Raises as ``ack_message``."""
        body = given(delay_seconds=seconds(delay)) or None
        return self._one("POST", f"/v1/mailboxes/leases/{part(lease_id)}/nack", body=body)

    def extend_leases(self, holder: str, *, workspace: str | None = None) -> int:
        """What ``holder`` holds is its for another ``lease_seconds``; how many there are."""
        body, params = {"holder": holder}, given(workspace=workspace)
        return int(self._one("POST", "/v1/mailboxes/leases/extend", body=body, params=params)["extended"])

    def trace_message(self, message_id: str) -> Json:
        """Where a message has been, with the time of every hop. Raises NotFound."""
        return self._one("GET", f"/v1/messages/{part(message_id)}/trace")


_ENDS = frozenset({GONE})


def with_bytes(document: Mapping[str, Any]) -> Json:
    """A message's document with its payload as bytes, whichever way JSON had it."""
    found: Json = dict(document)
    encoded = found.pop("payload_base64", None)
    if encoded is not None:
        found["payload"] = base64.b64decode(encoded)
    elif isinstance(found.get("payload"), str):
        found["payload"] = found["payload"].encode("utf-8")
    return found


def _path(address: str) -> str:
    return f"/v1/mailboxes/{part(address)}"
