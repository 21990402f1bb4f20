"""What is let in: texts, documents, names and moments from outside, judged before anything is written.

A text that SQL, a terminal or JSON could not carry is refused here, once, so that everything behind this door may
assume clean text: no NUL (PostgreSQL refuses it, a terminal would eat it), no lone surrogate (it has no UTF-8).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from oah.core.model.lane import NAME
from oah.core.model.session import EnvValue, is_secret_name
from oah.errors import InvalidRequest, PayloadTooLarge

_SURROGATE = re.compile("[\ud800-\udfff]")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_KEY = re.compile(r"^[\x21-\x7e]{1,255}\Z")
_KEYS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PRIORITIES = 100
"""Priorities go from minus this to this: within what a score can carry (lua/lib/session.lua)."""
SPOKEN_LINE_BYTES = 4_000
"""A terminal that reads by lines keeps 4,095 bytes of one (Linux) and drops the rest without a word."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds on what is accepted; sizes in bytes of UTF-8."""

    input_bytes: int = 1024 * 1024
    title_bytes: int = 512
    note_bytes: int = 16 * 1024
    document_bytes: int = 64 * 1024
    """Labels, metadata and env, each as a whole."""
    document_depth: int = 16
    furthest: timedelta = timedelta(days=3660)
    """The furthest moment or longest duration that may be asked for."""
    retries: int = 100


def clean(text: str, *, what: str, limit: int, empty: bool = True) -> str:
    """The text, if it can be carried. Raises InvalidRequest, PayloadTooLarge. ``empty``: whether it may be."""
    if "\0" in text:
        raise InvalidRequest(f"{what} contains a NUL character", code="invalid_text")
    if _SURROGATE.search(text):
        raise InvalidRequest(f"{what} contains a lone surrogate: it is no valid Unicode text", code="invalid_text")
    if not empty and not text.strip():
        raise InvalidRequest(f"{what} is empty", code="empty_input" if what == "input" else "invalid_request")
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise PayloadTooLarge(f"{what} has {size} bytes, the limit is {limit}")
    return text


def run_input(text: str, rules: Rules) -> str:
    """A run's input. Raises InvalidRequest (``empty_input``, ``invalid_text``), PayloadTooLarge."""
    return clean(text, what="input", limit=rules.input_bytes, empty=False)


def spoken(text: str) -> None:
    """A text that is typed to a working agent: no keys among it, and no line that a terminal would cut.

    Raises InvalidRequest (``invalid_text``), PayloadTooLarge.
    """
    found = _KEYS.search(text)
    if found is not None:
        raise InvalidRequest(
            f"the text has a control character at position {found.start()}: only text can be said to a working agent",
            code="invalid_text",
        )
    if max(len(line.encode("utf-8", "replace")) for line in text.split("\n")) > SPOKEN_LINE_BYTES:
        raise PayloadTooLarge(f"a line of the text is longer than {SPOKEN_LINE_BYTES} bytes")


def document(value: Mapping[str, Any], *, what: str, rules: Rules) -> Mapping[str, Any]:
    """A free document (metadata): clean texts, finite numbers, bounded size and depth. Raises as ``clean``."""
    size = _weigh(value, what, rules.document_depth)
    if size > rules.document_bytes:
        raise PayloadTooLarge(f"{what} has about {size} bytes, the limit is {rules.document_bytes}")
    return value


def _weigh(value: Any, what: str, depth: int) -> int:
    if depth < 0:
        raise InvalidRequest(f"{what} is nested too deeply")
    match value:
        case str():
            clean(value, what=what, limit=2**31)
            return len(value.encode()) + 3
        case float() if not math.isfinite(value):
            raise InvalidRequest(f"{what} contains a number that is not finite")
        case int() if not -(2**63) <= value < 2**63:
            raise InvalidRequest(f"{what} contains a number beyond 64 bits")
        case Mapping():
            return 2 + sum(_weigh(key, what, depth) + _weigh(item, what, depth - 1) for key, item in value.items())
        case list() | tuple():
            return 2 + sum(_weigh(item, what, depth - 1) for item in value)
        case None | bool() | int() | float():
            return 8
        case _:
            raise InvalidRequest(f"{what} contains something that is no JSON")


def environment(env: Mapping[str, EnvValue], rules: Rules) -> Mapping[str, EnvValue]:
    """Additions to an agent's environment; of a secret only its name is known here. Raises as ``clean``."""
    for name, value in env.items():
        if not _ENV_NAME.match(name):
            raise InvalidRequest(f"'{name[:80]}' is no name of an environment variable")
        if not isinstance(value, str) and (set(value) != {"secret"} or not is_secret_name(value["secret"])):
            raise InvalidRequest(
                f"the value of {name} is neither a text nor the name of a secret",
                code="invalid_secret_name",
                hint="letters, digits, '_', '.', '-', at most 128",
            )
    document(env, what="env", rules=rules)
    return env


def name(text: str, *, what: str) -> str:
    """A name of a pool, an agent, a workspace. Raises InvalidRequest."""
    if not NAME.match(text):
        raise InvalidRequest(
            f"'{text[:80]}' is no {what} name", hint="lower-case letters, digits, '.', '_', '-'; at most 63 characters"
        )
    return text


def idempotency_key(text: str | None) -> str | None:
    """A key of 1 to 255 visible ASCII characters. Raises InvalidRequest."""
    if text is not None and not _KEY.match(text):
        raise InvalidRequest("an idempotency key has 1 to 255 visible ASCII characters", code="invalid_idempotency_key")
    return text


def priority(value: int) -> int:
    """Of a run among those of its workspace. Raises InvalidRequest."""
    if not -PRIORITIES <= value <= PRIORITIES:
        raise InvalidRequest(f"priority must be {-PRIORITIES} to {PRIORITIES}")
    return value


def duration(seconds: float | None, *, what: str, rules: Rules, zero: bool = False) -> timedelta | None:
    """Seconds from outside as a duration; ``zero``: whether none at all is allowed. Raises InvalidRequest."""
    if seconds is None:
        return None
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise InvalidRequest(f"{what} must be {'at least' if zero else 'more than'} 0 seconds")
    if seconds > rules.furthest.total_seconds():
        raise InvalidRequest(f"{what} is longer than {rules.furthest.days} days")
    return timedelta(seconds=seconds)


def moment(value: datetime | None, *, what: str, now: datetime, rules: Rules) -> datetime | None:
    """A moment from outside, with a zone and not too far away. Raises InvalidRequest."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise InvalidRequest(f"{what} needs a time zone", hint="RFC 3339, e.g. 2030-01-31T12:00:00Z")
    try:
        distance = abs(value - now)
    except OverflowError:
        distance = timedelta.max
    if distance > rules.furthest:
        raise InvalidRequest(f"{what} is further away than {rules.furthest.days} days")
    return value
