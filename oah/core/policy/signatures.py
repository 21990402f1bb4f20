"""Signatures of webhooks, as the Standard Webhooks specification has them.

What is signed is ``<id>.<timestamp>.<body>``, so that neither body nor moment can be exchanged; the key is what
``whsec_`` and base64 stand for. A signature header may hold several, separated by spaces; one that fits is enough.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from oah.errors import InvalidRequest

PREFIX = "whsec_"
VERSION = "v1"
SHORTEST, LONGEST = 24, 64
"""Bytes of a key, as the specification asks for."""


def secret_of(key: bytes) -> str:
    """A key as people keep it."""
    return PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """The key that a secret stands for; the prefix may be missing. Raises InvalidRequest ``invalid_secret``."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid() from error
    if not SHORTEST <= len(key) <= LONGEST:
        raise _invalid()
    return key


def _invalid() -> InvalidRequest:
    return InvalidRequest(
        "this is no secret for webhooks", code="invalid_secret", hint="whsec_ and base64 of 24 to 64 random bytes"
    )


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a message; ``timestamp`` in seconds since the epoch. Raises InvalidRequest."""
    content = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    digest = hmac.new(key_of(secret), content, hashlib.sha256).digest()
    return f"{VERSION},{base64.b64encode(digest).decode()}"


def fits(header: str, secrets: Iterable[str], *, message_id: str, timestamp: int, body: bytes) -> bool:
    """Whether one of the signatures of a header was made with one of the secrets, in constant time."""
    wanted = [sign(secret, message_id=message_id, timestamp=timestamp, body=body).encode() for secret in secrets]
    given = [each.encode() for each in header.split()]
    return any(hmac.compare_digest(one, other) for one in wanted for other in given)
