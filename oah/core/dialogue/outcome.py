"""What a finished turn means for its run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oah.core.model.timeout import TimeoutReason


class Verdict(StrEnum):
    """Terminal statuses of a run, as an agent can cause them."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen. `status`: the turn's own, by its end marker. `exited`: the program ended, with `exit_code` (None
    unknown, -N
    signal N). `killed`: we killed the tree; `empty` says whether that was verified."""

    timed_out: TimeoutReason | None = None
    cancelled: bool = False
    signalled: bool = False
    """The cancel has gone beyond the interrupt key."""
    status: int | None = None
    message: str = ""
    exited: bool = False
    exit_code: int | None = None
    host_lost: bool = False
    killed: bool = False
    empty: bool = True
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The run's end, and whether the agent may be kept."""

    verdict: Verdict
    error_code: str | None = None
    error_message: str | None = None
    exit_code: int | None = None
    keep_warm: bool = False


def judge(facts: Facts, *, failed_code: str = "exit_nonzero") -> Outcome:
    """The first rule that applies: a lost host, an unkillable tree, a timeout, a cancel, a fault of ours, the turn's
    own status, the
    program's exit."""
    if facts.host_lost:
        return _failed("host_lost", "the process that owns the agent was lost; the agent was killed")
    if facts.killed and not facts.empty:
        return _failed("agent_unkillable", "the agent's processes could not be killed")
    if facts.timed_out is not None:
        error = facts.timed_out.error
        return Outcome(verdict=Verdict.TIMED_OUT, error_code=error.code, error_message=error.message)
    if facts.cancelled and not _was_faster(facts):
        warm = facts.status is not None and not facts.exited and not facts.killed
        return Outcome(verdict=Verdict.CANCELLED, exit_code=facts.status, keep_warm=warm)
    if facts.fault is not None:
        return _failed(*facts.fault)
    if facts.status is not None and not facts.exited:
        return _by_status(facts, failed_code)
    return _by_exit(facts)


def _was_faster(facts: Facts) -> bool:
    """A turn that says of itself that all went well while it had been asked by its interrupt key alone was over before
    that: a cancelled run is never one that was executed in full. What is interrupted ends with another status."""
    if facts.killed or facts.signalled:
        return False
    return facts.exit_code == 0 if facts.exited else facts.status == 0


def _by_status(facts: Facts, failed_code: str) -> Outcome:
    status = facts.status
    if status == 0:
        return Outcome(verdict=Verdict.COMPLETED, exit_code=0, keep_warm=not facts.killed)
    return Outcome(
        verdict=Verdict.FAILED,
        error_code=failed_code,
        error_message=facts.message or f"exit status {status}",
        exit_code=status,
        keep_warm=not facts.killed,
    )


def _by_exit(facts: Facts) -> Outcome:
    code = facts.exit_code
    if not facts.exited or code is None:
        return _failed("agent_lost", "the agent ended and nobody knows how")
    if code == 0:
        return Outcome(verdict=Verdict.COMPLETED, exit_code=0)
    if code < 0:
        return _failed("agent_killed", f"the agent was killed by signal {-code}", exit_code=code)
    return _failed("exit_nonzero", f"exit status {code}", exit_code=code)


def _failed(code: str, message: str, *, exit_code: int | None = None) -> Outcome:
    return Outcome(verdict=Verdict.FAILED, error_code=code, error_message=message, exit_code=exit_code)
