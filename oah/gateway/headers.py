"""Header blocks: ``NATS/1.0``, lines ``Name: value``, an empty line.

What a sender wrote is kept line by line as it came, but for the names that only we may say. Names are case-sensitive,
as in the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oah.gateway.commands import LENIENT

BEGIN = b"NATS/1.0"
MSG_ID = "mq9-msg-id"
PRIORITY = "mq9-priority"
TIME = "mq9-time"
ATTEMPT = "mq9-attempt"
KEY = "mq9-key"
TAGS = "mq9-tags"
TTL = "mq9-ttl"
DELAY = "mq9-delay"
DEDUP = "Nats-Msg-Id"
OURS = frozenset({MSG_ID, PRIORITY, TIME, ATTEMPT, TTL, DELAY})
"""Of these a receiver sees only what we say."""


def fields(block: bytes) -> list[tuple[str, str]]:
    """Names and values of a block, in order; lines that are none are left out."""
    found = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.decode("utf-8", LENIENT).partition(":")
        if colon and name:
            found.append((name, value.strip()))
    return found


def first(of: Sequence[tuple[str, str]], name: str) -> str | None:
    """The first value of a name."""
    return next((value for each, value in of if each == name), None)


def kept(block: bytes) -> bytes:
    """The lines of a sender that are stored: as they came, without ours."""
    return theirs(block.partition(b"\r\n")[2])


def theirs(lines: bytes) -> bytes:
    """The lines that cannot be taken for ours: receivers' parsers end a line at a lone CR or LF too, fold one that
    begins with a blank into the one before it, and take blanks around a name away."""
    return b"".join(line + b"\r\n" for line in lines.split(b"\r\n") if _is_theirs(line))


def _is_theirs(line: bytes) -> bool:
    name, colon, _ = line.partition(b":")
    if not colon or not name.strip() or line[:1].isspace() or b"\r" in line or b"\n" in line:
        return False
    return name.strip().decode("utf-8", LENIENT) not in OURS


def block(lines: bytes = b"", ours: Iterable[tuple[str, str]] = (), *, status: str = "") -> bytes:
    """A whole block. ``lines``: stored ones, each with its CRLF."""
    said = "".join(f"{name}: {value}\r\n" for name, value in ours).encode("utf-8", LENIENT)
    begin = BEGIN + (b" " + status.encode() if status else b"")
    return begin + b"\r\n" + said + lines + b"\r\n"
