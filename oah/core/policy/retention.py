"""What ages out, and in which order.

Guarantees: children go before parents, so that nothing is left that points at what is gone; events never outlive their
run, nor a run its idempotency keys; a limit of None keeps for ever. Only what has ended ages: whether it has is for the
store to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

KEYS_LEAST = timedelta(hours=24)
"""An idempotency key is good for at least so long: the outside interface says so."""


_BEFORE = 0.9
"""A home goes when so much of its session's own time is over, at the latest."""


class Aged(StrEnum):
    """What ages out; the label of the metric."""

    DEAD_LETTERS = "dead_letters"
    IDEMPOTENCY_KEYS = "idempotency_keys"
    EVENTS = "events"
    RECORDINGS = "recordings"
    HOMES = "homes"
    RUNS = "runs"
    MESSAGES = "messages"
    """Of agents; those of other mailboxes end by themselves."""
    SESSIONS = "sessions"
    AUDIT = "audit"
    JOBS = "jobs"
    ROLLOUTS = "rollouts"
    WEBHOOK_DELIVERIES = "webhook_deliveries"
    COMMANDS = "commands"
    WORKERS = "workers"
    SCALE_DECISIONS = "scale_decisions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How long each is kept after its end; None: for ever. Defaults are those of the settings."""

    events: timedelta | None = timedelta(days=14)
    recordings: timedelta | None = timedelta(days=14)
    homes: timedelta | None = timedelta(days=7)
    """Of closed sessions: archives here, directories where they are."""
    runs: timedelta | None = timedelta(days=30)
    dead_letters: timedelta | None = timedelta(days=90)
    audit: timedelta | None = timedelta(days=90)
    jobs: timedelta | None = timedelta(days=7)
    webhook_deliveries: timedelta | None = timedelta(days=14)
    idempotency_keys: timedelta = KEYS_LEAST
    workers: timedelta | None = timedelta(days=30)
    scale_decisions: timedelta | None = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class Due:
    """What is older than ``age`` goes."""

    what: Aged
    age: timedelta


def plan(rules: Rules) -> tuple[Due, ...]:
    """In the order in which they may go. A closed session goes when its last run could have gone."""
    keys = max(rules.idempotency_keys, KEYS_LEAST)
    runs = _runs_age(rules)
    ages = {
        # A dead letter keeps its run: first the letter, then what it was about.
        Aged.DEAD_LETTERS: rules.dead_letters,
        Aged.IDEMPOTENCY_KEYS: keys,
        Aged.EVENTS: _shorter(rules.events, runs),
        Aged.RECORDINGS: _shorter(rules.recordings, runs),
        Aged.HOMES: homes_age(rules),
        Aged.RUNS: runs,
        Aged.MESSAGES: _shorter(rules.events, runs),
        Aged.SESSIONS: runs,
        Aged.AUDIT: rules.audit,
        Aged.JOBS: rules.jobs,
        Aged.ROLLOUTS: rules.jobs,
        Aged.WEBHOOK_DELIVERIES: rules.webhook_deliveries,
        Aged.COMMANDS: rules.workers,
        Aged.WORKERS: rules.workers,
        Aged.SCALE_DECISIONS: rules.scale_decisions,
    }
    return tuple(Due(what, age) for what, age in ages.items() if age is not None)


def homes_age(rules: Rules) -> timedelta | None:
    """After the end of the session; before its row goes, which says that it has ended."""
    runs = _runs_age(rules)
    return _shorter(rules.homes, None if runs is None else runs * _BEFORE)


def _runs_age(rules: Rules) -> timedelta | None:
    return None if rules.runs is None else max(rules.runs, rules.idempotency_keys, KEYS_LEAST)


def _shorter(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
