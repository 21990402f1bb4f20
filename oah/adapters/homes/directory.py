"""ports.homes.Homes on directories.

`<data dir>/homes/<workspace>/<session>` is the home of a session, for shared ones the same below the directory that all
workers mount. Beside it lies a note that says which archive it is a copy of. Each directory of homes carries a mark:
two hosts with the same mark have the same homes, and a host that lost its disk has another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import tarfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from oah.adapters.homes.packing import TooLarge, packed, unpack
from oah.adapters.homes.worktree import GitWorktrees, noted
from oah.core.model.artifact import archives
from oah.core.model.home import HomeMode, HomeRules, SessionHome, Worktree
from oah.core.model.session import Session
from oah.errors import AgentError, OahError, Unavailable
from oah.ports.blobs import Blobs
from oah.ports.homes import HomePlace

log = logging.getLogger(__name__)
PASSABLE = 0o711
"""Where agents run as another user they pass through to what is theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeDirectories:
    """`own`: homes of this host. `shared`: those on the volume, None: there is none. `work`: working directories of
    sessions that name none. `limit`: bytes of a packed home. `worktrees`: makes those that are to be worktrees."""

    own: Path
    work: Path
    shared: Path | None = None
    limit: int = 64 * 1024 * 1024
    uid: int | None = None
    gid: int | None = None
    worktrees: GitWorktrees = field(default_factory=GitWorktrees)

    @property
    def shared_work(self) -> Path | None:
        """Working directories of sessions with shared homes."""
        return None if self.shared is None else self.shared / ".work"


class DirectoryHomes:
    """See the module. Called from slot threads; no two at once for one session, which the session's lock sees to."""

    def __init__(self, directories: HomeDirectories, blobs: Blobs, *, host: str | None = None) -> None:
        self._at = directories
        self._blobs = blobs
        self._host = host or socket.gethostname()
        self._marks: dict[Path, str] = {}

    def mark(self) -> str:
        """Of the homes of this host. Raises OSError."""
        return self._mark(self._at.own)

    def place(self, session: Session, rules: HomeRules) -> HomePlace:
        """See ports.homes.Homes."""
        root, before = self._root(rules.mode), session.home
        home = root / session.workspace_id / session.id
        cwd, own_cwd = self._cwd(session, rules)
        try:
            mark = self._mark(root)
            self._make(home.parent)
            found = self._found(home, session, rules, mark)
        except (OSError, tarfile.TarError, Unavailable) as error:
            raise AgentError(f"no home for the agent: {error}", code="home_unavailable") from error
        state = SessionHome(mode=rules.mode, host=self._host, place=mark, cwd=cwd)
        if rules.mode is HomeMode.ARCHIVED and before is not None and found:
            state = replace(state, archive=before.archive, generation=before.generation)
        lost = None
        if before is not None and not found:
            lost = "home_lost"
        elif before is not None and rules.same_cwd and before.cwd != cwd:
            lost = "cwd_changed"
        return HomePlace(home=str(home), cwd=cwd, own_cwd=own_cwd, state=state, lost=lost)

    def keep(self, place: HomePlace, session: Session, rules: HomeRules) -> SessionHome:
        """See ports.homes.Homes."""
        state = place.state
        if rules.mode is not HomeMode.ARCHIVED:
            return state
        home = Path(place.home)
        generation = max(state.generation, 0 if session.home is None else session.home.generation) + 1
        key = f"{archives(session.id)}{generation:08d}-{secrets.token_hex(4)}.tar"
        try:
            data = packed(home, limit=self._at.limit, exclude=rules.exclude, uid=self._at.uid)
            self._blobs.put(key, data)
        except (TooLarge, OSError, OahError, ValueError, RecursionError) as error:
            log.warning("the home of session %s is not archived: %r", session.id, error)
            _note(home, None)
            return replace(state, archive=None, generation=generation)
        _note(home, key)
        self._forget(session, key, generation)
        return replace(state, archive=key, generation=generation)

    # -- which copy -------------------------------------------------------------------------------------------------

    def _found(self, home: Path, session: Session, rules: HomeRules, mark: str) -> bool:
        """Whether the home of the last run is here now."""
        before = session.home
        if before is None:
            return True
        here = before.place == mark and home.is_dir()
        if rules.mode is not HomeMode.ARCHIVED or before.mode is not HomeMode.ARCHIVED:
            return here
        if home.is_dir() and before.archive is not None and _noted(home) == before.archive:
            return True
        if before.archive is None:
            return here
        data = self._blobs.get(before.archive)
        if data is None:
            return False
        unpack(data, home, uid=self._at.uid, gid=self._at.gid)
        _note(home, before.archive)
        return True

    def _forget(self, session: Session, new: str, generation: int) -> None:
        """Archives before the one that the session names: it is needed until the new one is settled. None of this
        generation or a later one: where packing took long, the session may be somebody else's by now."""
        kept = (new, None if session.home is None else session.home.archive)
        with contextlib.suppress(OahError, OSError):
            for key in list(self._blobs.keys(archives(session.id))):
                if key not in kept and key < f"{archives(session.id)}{generation:08d}":
                    self._blobs.delete(key)

    # -- directories ------------------------------------------------------------------------------------------------

    def _root(self, mode: HomeMode) -> Path:
        if mode is not HomeMode.SHARED:
            return self._at.own
        if self._at.shared is None:
            raise AgentError(
                "its homes are shared, and this worker has no directory for them",
                code="home_unavailable",
                hint="set OAH_HOMES_DIR to a directory that all workers mount at the same path",
            )
        return self._at.shared

    def _cwd(self, session: Session, rules: HomeRules) -> tuple[str, bool]:
        if session.cwd is not None:
            return session.cwd, False
        shared = self._at.shared_work if rules.mode is HomeMode.SHARED else None
        at = (shared or self._at.work) / session.id
        worktree = session.worktree or _by_profile(at, rules.worktree)
        if worktree is None:
            return str(at), True
        try:
            self._make(at.parent)
        except OSError as error:
            raise AgentError(f"no directory for worktrees: {error}", code="home_unavailable") from error
        self._at.worktrees.ready(at, session.id, worktree)
        return str(at), False

    def _mark(self, root: Path) -> str:
        """Of a directory of homes; made with it."""
        found = self._marks.get(root)
        if found is None:
            self._make(root)
            path = root / ".mark"
            if not path.exists():
                own = path.with_name(f".mark-{secrets.token_hex(4)}")
                own.write_text(secrets.token_hex(8), encoding="ascii")
                try:
                    os.link(own, path)  # whole, and the first one's
                except FileExistsError:
                    pass
                except OSError:  # a volume without links
                    own.replace(path)
                own.unlink(missing_ok=True)
            found = self._marks[root] = path.read_text(encoding="ascii").strip()
        return found

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self._at.uid is not None:
            folder.chmod(PASSABLE)


def _by_profile(at: Path, worktree: Worktree | None) -> Worktree | None:
    """A session stays what it was when its profile says otherwise now."""
    note = noted(at)
    if note is not None:
        return Worktree(repo=note.repo) if worktree is None or note.made else worktree
    return None if at.exists() else worktree


def _note(home: Path, key: str | None) -> None:
    with contextlib.suppress(OSError):
        path = home.with_name(f".{home.name}.archive")
        path.write_text(key or "", encoding="ascii")


def _noted(home: Path) -> str | None:
    try:
        return home.with_name(f".{home.name}.archive").read_text(encoding="ascii") or None
    except OSError:
        return None
