"""Homes: where the files lie in which an agent program keeps a session's conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class HomeMode(StrEnum):
    """How far a session's home reaches."""

    LOCAL = "local"
    """One host; elsewhere the conversation begins anew."""
    ARCHIVED = "archived"
    """Packed after each run, unpacked by whichever host goes on."""
    SHARED = "shared"
    """On a volume that all workers mount at the same path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """A working directory that is a git worktree of `repo`, on a branch of its own that begins at `ref` (None: at what
    the repository has checked out)."""

    repo: str
    ref: str | None = None

    def document(self) -> dict[str, Any]:
        """As it is stored and shown."""
        return {"repo": self.repo} if self.ref is None else {"repo": self.repo, "ref": self.ref}


def worktree_of(document: Mapping[str, Any] | None) -> Worktree | None:
    """From what `Worktree.document` made."""
    return Worktree(repo=document["repo"], ref=document.get("ref")) if document else None


_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}\Z")


def is_ref(text: str) -> bool:
    """Whether it can name a commit, and can be no option, range or expression."""
    return _REF.match(text) is not None and ".." not in text and "@{" not in text


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeRules:
    """What a profile says of its homes. `exclude`: names (globs) that are not packed. `same_cwd`: its conversations
    are bound to the working directory in which they began. `worktree`: of sessions that name no working directory."""

    mode: HomeMode = HomeMode.LOCAL
    exclude: tuple[str, ...] = ()
    same_cwd: bool = True
    worktree: Worktree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHome:
    """Where a session's home was when its last run was given to an agent.

    `host` is for people; `place` is the mark of the directory of homes and decides whether it is the same one.
    `archive`: blob key of the last packed copy, the `generation`-th. `bound`: its runs wait for that place; False: it
    was gone for too long.
    """

    mode: HomeMode
    host: str
    place: str
    cwd: str
    archive: str | None = None
    generation: int = 0
    bound: bool = True

    @property
    def only_at(self) -> str | None:
        """The place without which the conversation begins anew; None: it goes on anywhere, or is lost."""
        local = self.mode is HomeMode.LOCAL or (self.mode is HomeMode.ARCHIVED and self.archive is None)
        return self.place or None if local and self.bound else None

    def document(self) -> dict[str, Any]:
        """As it is stored."""
        return {**asdict(self), "mode": str(self.mode)}


def session_home(document: Mapping[str, Any] | None) -> SessionHome | None:
    """From what `SessionHome.document` made; None where there is none or it is of another kind."""
    if not document:
        return None
    known = {name: document[name] for name in SessionHome.__slots__ if name in document}
    try:
        return SessionHome(**{**known, "mode": HomeMode(known["mode"])})
    except (KeyError, TypeError, ValueError):
        return None
