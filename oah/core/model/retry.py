"""What somebody wishes about retries: a run, a profile or the deployment, each in the same words.

Keys: `max_retries`, `initial_seconds`, `factor`, `max_seconds`, `jitter`, `on`. What is absent is the next one's: the
run's wish comes before the profile's, the profile's before the deployment's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from oah.errors import InvalidRequest

MOST_RETRIES = 100
"""So many further attempts may be asked for."""
LONGEST = timedelta(days=7)
"""The longest pause that may be asked for."""
MOST_CODES = 64
_CODE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\Z")

NEVER = frozenset(
    {
        "cancelled",
        "start_timeout",
        "deadline_exceeded",
        "unknown_agent",
        "agent_unkillable",
        "worker_lost",
        "host_lost",
    }
)
"""Error codes that no rule can make retryable: the run was not to go on, or recovery and not a retry decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWish:
    """None: not said here."""

    max_retries: int | None = None
    initial: timedelta | None = None
    factor: float | None = None
    maximum: timedelta | None = None
    jitter: float | None = None
    on: frozenset[str] | None = None
    """Error codes that are retried, instead of the default ones."""


NO_WISH = RetryWish()


def retry_wish(words: Mapping[str, Any]) -> RetryWish:
    """The wish in the words of a request body or a TOML table. Raises InvalidRequest, naming the key."""
    unknown = sorted(set(words) - {"max_retries", "initial_seconds", "factor", "max_seconds", "jitter", "on"})
    if unknown:
        raise InvalidRequest(f"retry: unknown key {unknown[0]!r}")
    longest = LONGEST.total_seconds()
    return RetryWish(
        max_retries=_whole(words.get("max_retries")),
        initial=_duration(_number(words, "initial_seconds", 0, longest)),
        factor=_number(words, "factor", 1, 1_000),
        maximum=_duration(_number(words, "max_seconds", 0, longest)),
        jitter=_number(words, "jitter", 0, 1),
        on=_codes(words.get("on")),
    )


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_RETRIES:
        raise InvalidRequest(f"max_retries must be 0 to {MOST_RETRIES}")
    return value


def _number(words: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    value = words.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most:
        raise InvalidRequest(f"retry.{key} must be {least:g} to {most:g}")
    return float(value)


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _codes(value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) > MOST_CODES:
        raise InvalidRequest(f"retry.on must be a list of at most {MOST_CODES} error codes")
    for code in value:
        if not isinstance(code, str) or not _CODE.match(code):
            raise InvalidRequest(f"retry.on: {str(code)[:80]!r} is no error code")
        if code in NEVER:
            raise InvalidRequest(f"retry.on: {code} is never retried")
    return frozenset(value)
