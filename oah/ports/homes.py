"""Homes of sessions: where an agent finds the files of its conversation, and what is kept of them after a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from oah.core.model.home import HomeRules, SessionHome
from oah.core.model.ids import SessionId
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


@dataclass(frozen=True, slots=True)
class Leftover:
    """A session of which something lies here. `age`: since its directory was last changed."""

    session_id: SessionId
    age: timedelta


class Leftovers(Protocol):
    """Directories of sessions in one place, of which somebody else says which are over."""

    def clear(self) -> None:
        """Go on with what was removed and is not gone yet; bounded. Raises nothing."""
        ...

    def window(self, limit: int) -> Sequence[Leftover]:
        """The next ones of a lap that begins anew at its end; empty: there is nothing. Raises nothing."""
        ...

    def remove(self, session_id: SessionId) -> bool:
        """Home and working directory, but no work that is nowhere else: a worktree with changes stays. Nothing is
        followed. False: nothing was, or something stays. Raises nothing."""
        ...


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
