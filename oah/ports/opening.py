"""How an agent stands to its session's conversation once it is open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REFUSED = "resume_refused"
"""Error code of an opening: the program does not go on with the conversation."""


class AgentKind(StrEnum):
    """What a run was given (`run_attempts.agent`)."""

    WARM = "warm"
    """The process that did the run before."""
    RESUMED = "resumed"
    """A new process that goes on with the conversation."""
    REPAIRED = "repaired"
    """As `resumed`, after the damaged end of the program's record was cut off."""
    FRESH = "fresh"
    """It knows nothing of the runs before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """`reason`: see core/model/run.py, Attempt. `session_ref`: the program's name of the conversation, None where it is
    not known (yet). `before`: the name of a conversation that was given up. `resumable`: whether the profile can go on
    with one at all; where it cannot nothing of this is worth telling."""

    kind: AgentKind = AgentKind.FRESH
    reason: str | None = None
    session_ref: str | None = None
    before: str | None = None
    resumable: bool = False
