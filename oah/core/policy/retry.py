"""Whether a failed attempt is followed by another, and after how long.

Guarantees: at most `max_retries` further attempts; what was cancelled, in whatever way, is never retried; no attempt
that would begin at or after the run's deadline; the pause grows by a factor up to a maximum, and chance only shortens
it. Attempts that recovery repeats are counted elsewhere (`recovery.py`): a lost worker costs no retry.

Each terminal reason has a flag of its own (the table is docs/explanation/retries.md): `NEVER` retried, retried when a
rule names it (`IF_NAMED`), and retried by default: every other code of a run that failed, a profile's own
`failed_code` among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from oah.core.model.retry import MOST_RETRIES, NEVER, RetryWish
from oah.core.model.run import RunStatus
from oah.core.model.timeout import TimeoutReason

T = TypeVar("T")
IF_NAMED = frozenset(
    {
        *(reason.value for reason in TimeoutReason if reason.value not in NEVER),
        "spawn_too_large",
        "input_too_large",
        "input_rejected",
    }
)
"""Another attempt would most likely end the same way, or cost as much time again: only on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`max_retries`: further attempts; `initial`: the first pause; `jitter`: how much of a pause chance may take.

    `on`: the error codes that are retried, None: the default ones.
    """

    max_retries: int = 0
    initial: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    maximum: timedelta = timedelta(minutes=5)
    jitter: float = 0.2
    on: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An attempt that ended. `failed_attempts`: those before it. `stopped`: somebody wants the run to end. `left`: time
    until the run's deadline; None: it has none."""

    status: RunStatus
    error_code: str | None
    failed_attempts: int = 0
    stopped: bool = False
    left: timedelta | None = None


class Reason(StrEnum):
    """Why there is no further attempt."""

    NOT_FAILED = "not_failed"
    STOPPED = "stopped"
    NOT_RETRYABLE = "not_retryable"
    SPENT = "spent"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Retry:
    """Once more, not before `delay` has passed."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The outcome is the run's."""

    reason: Reason


Decision = Retry | GiveUp


def decide(view: View, rules: Rules, *, chance: float) -> Decision:
    """The decision about one ended attempt. `chance`: 0 to 1, drawn by the caller."""
    if view.status is RunStatus.CANCELLED or view.stopped:
        return GiveUp(Reason.STOPPED)
    if view.status not in (RunStatus.FAILED, RunStatus.TIMED_OUT):
        return GiveUp(Reason.NOT_FAILED)
    if not retryable(view.error_code, rules):
        return GiveUp(Reason.NOT_RETRYABLE)
    if view.failed_attempts >= min(rules.max_retries, MOST_RETRIES):
        return GiveUp(Reason.SPENT)
    delay = pause(view.failed_attempts, rules, chance=chance)
    if view.left is not None and delay >= view.left:
        return GiveUp(Reason.DEADLINE)
    return Retry(delay)


def retryable(code: str | None, rules: Rules) -> bool:
    """Whether an error of this code is worth another attempt. An outcome without a code says nothing, so it is not."""
    if code is None or code in NEVER:
        return False
    if rules.on is not None:
        return code in rules.on
    return code not in IF_NAMED


def pause(failed_attempts: int, rules: Rules, *, chance: float) -> timedelta:
    """The pause after so many failed attempts and one more: never longer than the maximum, shortened by chance."""
    most = rules.maximum.total_seconds()
    first = rules.initial.total_seconds()
    try:
        full = min(most, first * rules.factor**failed_attempts)
    except OverflowError:
        full = most
    return timedelta(seconds=full * (1 - rules.jitter * min(max(chance, 0.0), 1.0)))


def merged(rules: Rules, *wishes: RetryWish) -> Rules:
    """Rules with wishes on top, the last one the strongest."""
    for wish in wishes:
        rules = Rules(
            max_retries=_said(wish.max_retries, rules.max_retries),
            initial=_said(wish.initial, rules.initial),
            factor=_said(wish.factor, rules.factor),
            maximum=_said(wish.maximum, rules.maximum),
            jitter=_said(wish.jitter, rules.jitter),
            on=_said(wish.on, rules.on),
        )
    return rules


def _said(wish: T | None, else_: T) -> T:
    return else_ if wish is None else wish


LABELS = frozenset(
    {
        "exit_nonzero",
        "agent_exited",
        "agent_raised",
        "agent_error",
        "agent_killed",
        "agent_lost",
        "agent_not_ready",
        "spawn_failed",
        "run_timeout",
        "idle_timeout",
        "step_timeout",
        "model_timeout",
        "wait_timeout",
        "other",
    }
)
"""Error codes as a closed set, for a metric; a profile's own code is `other`."""


def label(code: str | None) -> str:
    """The value of the metric's label."""
    return code if code in LABELS else "other"
