"""Webhooks: which events they may ask for, and what follows from how a delivery went.

Of one delivery the tries are spread over about an hour. Of one webhook, rounds that all fail are followed by pauses, so
that a receiver that is away is asked now and then and not by every delivery that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from oah.core.model.event import EventType
from oah.errors import InvalidRequest

TEST = "webhook.test"
"""The type of a delivery that was asked for to see whether it arrives; tried once."""

ENDS = (EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED, EventType.RUN_TIMED_OUT)
OFFERED: tuple[EventType, ...] = (
    *ENDS,
    EventType.RUN_QUARANTINED,
    EventType.RUN_RECOVERED,
    EventType.RUN_RETRYING,
    EventType.RUN_VOIDED,
    EventType.DEAD_LETTER_ADDED,
    EventType.DEAD_LETTER_EVICTED,
    EventType.DEAD_LETTER_REDRIVEN,
    EventType.DEAD_LETTER_PURGED,
)
"""Not what happens many times in a run: that is what event streams are for."""
GROUPS = ("run.*", "dead_letter.*")
DEFAULT: tuple[str, ...] = (*ENDS, EventType.RUN_QUARANTINED, "dead_letter.*")

_OFFERED = frozenset(OFFERED)
OUTBOX = "outbox"
"""The kind of dead letters that webhooks themselves leave."""


def subscription(events: Iterable[str] | None) -> tuple[str, ...]:
    """Types and groups, each once, in the order given; the default for None. Raises InvalidRequest."""
    if events is None:
        return tuple(str(event) for event in DEFAULT)
    wanted = tuple(dict.fromkeys(str(event) for event in events))
    if not wanted:
        raise InvalidRequest("a webhook needs an event", hint=_hint())
    for event in wanted:
        if event not in _OFFERED and event not in GROUPS:
            raise InvalidRequest(f"webhooks cannot ask for '{event[:80]}'", code="unknown_event", hint=_hint())
    return wanted


def _hint() -> str:
    return f"one of {', '.join((*GROUPS, *OFFERED))}"


def told(kind: str, data: Mapping[str, Any]) -> bool:
    """Whether webhooks may hear of such an event. What they could not deliver they would hear of for ever."""
    return kind in _OFFERED and not (kind.startswith("dead_letter.") and data.get("kind") == OUTBOX)


@dataclass(frozen=True, slots=True)
class Rules:
    """``tries`` of a delivery, the first pause between them growing by ``factor`` up to ``longest`` (8 tries: about an
    hour), of which up to ``jitter`` is taken away; pauses of a webhook from ``pause`` doubling up to ``longest_pause``;
    after ``rounds`` in a row that all failed it is switched off."""

    tries: int = 8
    first: timedelta = timedelta(seconds=5)
    factor: float = 3.0
    longest: timedelta = timedelta(minutes=30)
    jitter: float = 0.2
    longest_asked: timedelta = timedelta(hours=1)
    """The longest ``Retry-After`` that is honoured."""
    pause: timedelta = timedelta(seconds=1)
    longest_pause: timedelta = timedelta(minutes=1)
    rounds: int = 100


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after so long."""

    after: timedelta


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It is not tried any more by itself. ``gone``: the receiver wants nothing of this webhook any more."""

    code: str
    gone: bool = False


Verdict = Delivered | Again | GivenUp


def judge(
    status: int | None,
    *,
    tries: int,
    testing: bool,
    retry_after: timedelta | None,
    chance: float,
    rules: Rules,
) -> Verdict:
    """What follows from a try. ``status``: of the answer, None where there was none; ``tries``: how many there were,
    this one included; ``chance`` in [0, 1)."""
    if status is not None and 200 <= status < 300:
        return Delivered()
    if status == 410:
        return GivenUp("gone", gone=True)
    if testing or tries >= rules.tries:
        return GivenUp("test_failed" if testing else "exhausted")
    grown = min(rules.first.total_seconds() * rules.factor ** (tries - 1), rules.longest.total_seconds())
    wait = timedelta(seconds=grown * (1 - rules.jitter * chance))
    return Again(max(wait, min(retry_after or timedelta(0), rules.longest_asked)))


def pause(failed_rounds: int, rules: Rules) -> timedelta:
    """How long a webhook is left alone after so many (≥ 1) rounds in a row that all failed."""
    return min(rules.pause * (1 << min(failed_rounds - 1, 20)), rules.longest_pause)
