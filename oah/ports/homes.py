"""Homes of sessions: where an agent finds the files of its conversation, and what is kept of them after a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oah.core.model.home import HomeRules, SessionHome
from oah.core.model.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePlace:
    """Paths for an agent. `state`: what the session is to remember of them. `lost`: why a conversation cannot be gone
    on with here (`home_lost`, `cwd_changed`). `own_cwd`: `cwd` is the session's own, to be created if missing."""

    home: str
    cwd: str
    own_cwd: bool
    state: SessionHome
    lost: str | None = None


class Homes(Protocol):
    """Of one worker."""

    def place(self, session: Session, rules: HomeRules) -> HomePlace:
        """Where the session's agent is to be started; an archived home is unpacked where this copy is not the last.

        Raises AgentError `home_unavailable` when the archive cannot be read now, the directory cannot be made, or there
        is none for shared homes."""
        ...

    def keep(self, place: HomePlace, session: Session, rules: HomeRules) -> SessionHome:
        """After a turn, before its outcome is settled: what the session is to remember. An archived home is packed;
        the older archive stays until the next one, so that whichever the outcome names is there. One that cannot be
        packed (too large, or nowhere to put it) is bound to this host until the next run. Raises nothing of that."""
        ...
