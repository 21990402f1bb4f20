"""Identifiers. Distinct types so that a session is never passed where a run is meant."""

from __future__ import annotations

from typing import NewType

WorkspaceId = NewType("WorkspaceId", str)
SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
WorkerId = NewType("WorkerId", str)
"""A worker incarnation: ``<name>.<boot nonce>``. The name survives a restart, the id does not."""
ClaimToken = NewType("ClaimToken", str)
"""128-bit nonce (32 hex digits) given by the caller of a claim; unique for ever, compared for equality only."""
EpochId = NewType("EpochId", str)
KeyId = NewType("KeyId", str)
MailboxId = NewType("MailboxId", str)
"""One life of a mailbox: a mailbox created again under the same address is another one."""
MessageId = NewType("MessageId", str)
DeliveryId = NewType("DeliveryId", str)
"""One attempt to give a message to an agent; what comes back under an older one is ignored."""


def worker_name(worker_id: WorkerId) -> str:
    """The name part of a worker id."""
    return worker_id.rpartition(".")[0] or worker_id
