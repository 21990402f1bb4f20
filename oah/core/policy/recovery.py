"""What becomes of a run whose owner is gone.

Guarantees: a cancel that was asked for wins; a run is queued again at most `max_attempts` times by recovery, after
which an operator decides; a run that waits for a tool is queued again only under `requeue_all`, because the tool may
have done its work, and is an operator's to decide about under `requeue_running`; an owner row without an active run
costs nobody anything. Whether the owner *is* gone is judged elsewhere (`orphan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from oah.core.model.run import RecoveryStrategy, RunStatus

Strategy = RecoveryStrategy

FAIL_CLOSED = "fail_closed"
"""The reason of a failure that says nothing about the run but that the operator wants it so."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`max_attempts`: how often recovery may queue one run again; 0 = never."""

    strategy: Strategy
    max_attempts: int = 3


class Source(StrEnum):
    """Who may say what becomes of a run, the most specific first."""

    RUN = "run"
    PROFILE = "profile"
    WORKSPACE = "workspace"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True)
class Override:
    """What one source says; None: nothing, the next one is asked."""

    strategy: Strategy | None = None
    max_attempts: int | None = None


SAYS_NOTHING = Override()


def override(strategy: str | None, max_attempts: int | None) -> Override:
    """What a row says. A strategy that this release does not know says nothing."""
    known = Strategy(strategy) if strategy in set(Strategy) else None
    return Override(known, max_attempts)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The rules for one run, and which source each of the two members comes from."""

    rules: Rules
    strategy_from: Source
    max_attempts_from: Source

    @property
    def policy_from(self) -> Mapping[str, str]:
        """As the run's recovery record has it."""
        return {"strategy": self.strategy_from.value, "max_attempts": self.max_attempts_from.value}


def resolve(
    deployment: Rules,
    *,
    run: Override = SAYS_NOTHING,
    profile: Override = SAYS_NOTHING,
    workspace: Override = SAYS_NOTHING,
) -> Resolved:
    """Run over profile over workspace over deployment, for each member by itself.

    A profile that the decider does not know says nothing: it judges by what it knows, and a run that is queued again
    stays in its lane, where only workers that do know the profile take it.
    """
    asked = ((Source.RUN, run), (Source.PROFILE, profile), (Source.WORKSPACE, workspace))
    strategy, strategy_from = deployment.strategy, Source.DEPLOYMENT
    attempts, attempts_from = deployment.max_attempts, Source.DEPLOYMENT
    for source, says in reversed(asked):
        if says.strategy is not None:
            strategy, strategy_from = says.strategy, source
        if says.max_attempts is not None:
            attempts, attempts_from = says.max_attempts, source
    return Resolved(Rules(strategy, attempts), strategy_from, attempts_from)


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
        return Quarantine("waiting_tool_manual_resume_required")
    if view.recovery_attempts >= rules.max_attempts:
        return Quarantine("max_attempts_exhausted")
    return Requeue("automatic_requeue")
