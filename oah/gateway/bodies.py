"""Bodies of requests: JSON objects that are checked, never trusted. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.errors import InvalidRequest

LONGEST = 65_536
"""Bytes of a request's body; messages are no bodies."""
LATEST_MOMENT = 253_402_300_799
"""The last second that a date can say."""


def read(payload: bytes) -> Mapping[str, Any]:
    """The object; nothing, and the empty text that some clients send, is an empty one. Raises InvalidRequest."""
    if len(payload) > LONGEST:
        raise InvalidRequest(f"a request has at most {LONGEST} bytes")
    if not payload.strip():
        return {}
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        raise InvalidRequest("the request is no JSON") from None
    if found in ("", None):
        return {}
    if not isinstance(found, dict):
        raise InvalidRequest("the request is no JSON object")
    return found


def text(body: Mapping[str, Any], name: str, *, most: int = 1_024) -> str | None:
    """A text; None where there is none."""
    value = body.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > most:
        raise InvalidRequest(f"'{name}' is no text of at most {most} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"'{name}' is no valid text") from None
    return value


def truth(body: Mapping[str, Any], name: str) -> bool:
    """Whether it is said."""
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{name}' is true or false")
    return value


def whole_number(body: Mapping[str, Any], name: str, *, otherwise: int, least: int, most: int) -> int:
    """A number; beyond ``most`` it is that."""
    value = body.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(f"'{name}' is no number from {least} on")
    return min(value, most)


def seconds(body: Mapping[str, Any], name: str) -> timedelta | None:
    """A duration; None where there is none. Zero is a duration."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"'{name}' is no number of seconds")
    if value > 10**9:
        raise InvalidRequest(f"'{name}' is too long")
    return timedelta(seconds=value)


def moment(body: Mapping[str, Any], name: str) -> datetime | None:
    """Seconds since 1970."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LATEST_MOMENT:
        raise InvalidRequest(f"'{name}' is no moment (seconds since 1970)")
    return datetime.fromtimestamp(value, UTC)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a FETCH asks for."""

    group: str | None
    deliver: str
    from_id: int
    from_time: datetime | None
    limit: int
    wait: timedelta


DELIVER = ("latest", "earliest", "from_time", "from_id")
MOST_FETCHED = 1_000
LONGEST_WAIT_MS = 60_000


def fetch(body: Mapping[str, Any]) -> Wanted:
    """Raises InvalidRequest."""
    config = body.get("config") or {}
    if not isinstance(config, dict):
        raise InvalidRequest("'config' is no JSON object")
    deliver = text(body, "deliver") or "latest"
    if deliver not in DELIVER:
        raise InvalidRequest(f"'deliver' is one of {', '.join(DELIVER)}")
    wait = whole_number(config, "max_wait_ms", otherwise=500, least=0, most=LONGEST_WAIT_MS)
    return Wanted(
        group=text(body, "group_name", most=128),
        deliver=deliver,
        from_id=whole_number(body, "from_id", otherwise=0, least=0, most=2**62),
        from_time=moment(body, "from_time"),
        limit=whole_number(config, "num_msgs", otherwise=100, least=1, most=MOST_FETCHED),
        wait=timedelta(milliseconds=wait),
    )


def tags(body: Mapping[str, Any]) -> Sequence[str]:
    """Of a QUERY: a list, or a text with commas."""
    value = body.get("tags")
    if value is None:
        return ()
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequest("'tags' is a list of texts")
    return [each.strip() for each in value if each.strip()]
