"""What becomes of a run whose owner is gone.

Guarantees: a cancel that was asked for wins; a run is queued again at most `max_attempts` times by recovery, after
which an operator decides; a run that waits for a tool is queued again only under `requeue_all`, because the tool may
have done its work; an owner row without an active run costs nobody anything. Whether the owner *is* gone is judged
elsewhere (`orphan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oah.core.model.run import RunStatus

FAIL_CLOSED = "fail_closed"
"""The reason of a failure that says nothing about the run but that the operator wants it so."""


class Strategy(StrEnum):
    """What an operator wants done; the values of `OAH_STALE_RUN_RECOVERY_STRATEGY`."""

    FAIL = "fail"
    REQUEUE_RUNNING = "requeue_running"
    REQUEUE_ALL = "requeue_all"


@dataclass(frozen=True, slots=True)
class Rules:
    """`max_attempts`: how often recovery may queue one run again; 0 = never."""

    strategy: Strategy
    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class View:
    """The active run of an owner row, if it has one. `recovery_attempts`: what recovery has done to it so far."""

    status: RunStatus | None
    recovery_attempts: int = 0
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class Requeue:
    """Back to `queued` at its place, one recovery attempt more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """`failed`; nobody is asked."""

    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """`failed` and set aside: an operator decides."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """`cancelled`: somebody had asked for it before the owner was lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class DropOwner:
    """Nothing was running: only the owner row goes."""

    reason: str


Decision = Requeue | Fail | Quarantine | Cancel | DropOwner


def decide(view: View, rules: Rules) -> Decision:
    """The decision about one orphan. Total: every view gets one."""
    if view.status is None or not view.status.active:
        return DropOwner("no_active_run")
    if view.cancel_requested:
        return Cancel("cancel_requested")
    if rules.strategy is Strategy.FAIL:
        return Fail(FAIL_CLOSED)
    if view.status is RunStatus.WAITING_TOOL and rules.strategy is not Strategy.REQUEUE_ALL:
        return Fail("waiting_tool_manual_resume_required")
    if view.recovery_attempts >= rules.max_attempts:
        return Quarantine("max_attempts_exhausted")
    return Requeue("automatic_requeue")
