"""The exception tree, sorted by what the catcher should do.

::

    OahError                  code, retryable, hint
    ├── RequestError          the caller can fix it: HTTP 4xx, exit 2, 3 or 4
    │   ├── InvalidRequest    malformed or impossible input (400, 422)
    │   ├── Unauthorized      no key or an unknown one (401)
    │   ├── Forbidden         a key without the scope (403)
    │   ├── NotFound          no such thing in this workspace (404)
    │   ├── Conflict          the state does not allow it (409)
    │   ├── PayloadTooLarge   (413)
    │   └── LimitReached      a queue, a quota or a rate is full (429)
    ├── LeaseError            we lost the right to act: stop, write nothing
    │   ├── EpochMismatch     Redis speaks of another epoch: read it again from SQL
    │   └── Rebuilding        the shard is being rebuilt: wait, claim nothing
    ├── AgentError            what the agent did: it fails the run, the worker goes on
    ├── Unavailable           a dependency is away: the loop retries
    │   ├── InDoubt           a commit may or may not have happened: read under the lock
    │   └── Backpressure      a store refuses growth (over maxmemory): later
    └── Broken                a bug: crash the component
"""

from __future__ import annotations

from datetime import timedelta


class OahError(Exception):
    """Base of every error that OAH raises on purpose.

    ``code`` is stable and machine readable, ``retryable`` says whether the same call may succeed later,
    ``hint`` tells a person what to do.
    """

    code = "error"
    retryable = False

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class RequestError(OahError):
    """The caller can fix it."""

    code = "invalid_request"


class InvalidRequest(RequestError):
    """Malformed or impossible input."""


class Unauthorized(RequestError):
    """No key, or a key that is unknown or revoked."""

    code = "unauthorized"


class Forbidden(RequestError):
    """The key lacks the scope, or what is asked for is not for it."""

    code = "forbidden"


class NotFound(RequestError):
    """No such thing in the caller's workspace."""

    code = "not_found"


class Conflict(RequestError):
    """The state of the thing does not allow the request."""

    code = "conflict"


class PayloadTooLarge(RequestError):
    """More bytes than the limit allows."""

    code = "payload_too_large"


class LimitReached(RequestError):
    """A queue or a quota is full, or a rate is exceeded. ``retry_after``: when it is worth to ask again, if known."""

    code = "queue_full"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after


class LeaseError(OahError):
    """We lost the right to act: stop and write nothing."""

    code = "lease_lost"


class EpochMismatch(LeaseError):
    """Redis speaks of another epoch than the caller. Neither a confirmation nor a loss of any lease."""

    code = "epoch_mismatch"
    retryable = True


class Rebuilding(LeaseError):
    """The shard is being rebuilt from SQL; nothing can be claimed yet."""

    code = "rebuilding"
    retryable = True


class AgentError(OahError):
    """What the agent did, or could not do. It fails the run; the worker goes on."""

    code = "agent_error"


class Unavailable(OahError):
    """A dependency is away. ``retry_after`` is a suggestion for the caller."""

    code = "unavailable"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        retry_after: timedelta = timedelta(seconds=1),
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after = retry_after


class InDoubt(Unavailable):
    """The connection broke at COMMIT: it may have happened. Read the rows under their lock before acting."""

    code = "in_doubt"


class Backpressure(Unavailable):
    """A store refuses to grow (Redis over maxmemory). The relay repeats it later."""

    code = "backpressure"


class Broken(OahError):
    """A bug or a corrupted state. The component that meets it must crash, loudly."""

    code = "broken"
