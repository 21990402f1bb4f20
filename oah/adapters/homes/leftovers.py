"""ports.homes.Leftovers on the directories of adapters/homes/directory.py."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from oah.adapters.homes.worktree import GONE, GitWorktrees, noted, set_aside
from oah.core.model.ids import SessionId
from oah.ports.homes import Leftover

log = logging.getLogger(__name__)
AT_ONCE = 20_000
"""Files that one pass removes at most: a program's caches are large, and the disk has others to serve."""
_SESSION = re.compile(r"ses_[A-Za-z0-9]{1,64}\Z")
_DEEP = 64


@dataclass(slots=True)
class DirectoryLeftovers:
    """`homes`: `<workspace>/<session>`; `work`: `<session>`. Everything else in them is let alone."""

    homes: Path
    work: Path
    worktrees: GitWorktrees = field(default_factory=GitWorktrees)
    _lap: list[SessionId] = field(default_factory=list)
    _homes: dict[SessionId, Path] = field(default_factory=dict)
    _kept: dict[SessionId, str] = field(default_factory=dict)

    def clear(self) -> None:
        """See ports.homes.Leftovers."""
        left = AT_ONCE
        for root in (self.work, *_folders(self.homes)):
            for path in _below(root, lambda name: name.startswith(GONE)):
                with contextlib.suppress(OSError):
                    left = _remove_tree(path, left)
                if left <= 0:
                    return

    def window(self, limit: int) -> Sequence[Leftover]:
        """See ports.homes.Leftovers."""
        if not self._lap:
            homes = {SessionId(p.name): p for root in _folders(self.homes) for p in _below(root, _is_session)}
            self._homes = homes
            self._lap = sorted({*homes, *(SessionId(p.name) for p in _below(self.work, _is_session))}, reverse=True)
        chosen, self._lap = self._lap[-limit:], self._lap[:-limit]
        return [Leftover(each, self._age(each)) for each in reversed(chosen)]

    def remove(self, session_id: SessionId) -> bool:
        """See ports.homes.Leftovers."""
        if not _is_session(session_id):
            return False
        work, home = self.work / session_id, self._homes.get(session_id)
        done = False
        if noted(work) is not None:
            why = self.worktrees.remove(work)
            if why is not None:
                if self._kept.get(session_id) != why:
                    log.warning("the worktree %s of a closed session stays: %s", work, why)
                    self._kept[session_id] = why
                return False
            self._kept.pop(session_id, None)
            done = True
        moved = [path for path in (work, home) if path is not None and _set_aside(path)]
        if home is not None:
            with contextlib.suppress(OSError):
                home.with_name(f".{home.name}.archive").unlink(missing_ok=True)
        return done or bool(moved)

    def _age(self, session_id: SessionId) -> timedelta:
        """Of the younger of the two."""
        changed = 0.0
        for path in (self._homes.get(session_id), self.work / session_id):
            if path is not None:
                with contextlib.suppress(OSError):
                    changed = max(changed, path.lstat().st_mtime)
        return timedelta(seconds=max(time.time() - changed, 0.0))


def _is_session(name: str) -> bool:
    return _SESSION.match(name) is not None


def _below(root: Path, wanted: object) -> Iterator[Path]:
    assert callable(wanted)
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for name in [each.name for each in entries if each.is_dir(follow_symlinks=False) and wanted(each.name)]:
            yield root / name


def _folders(root: Path) -> list[Path]:
    """Of workspaces."""
    return list(_below(root, lambda name: not name.startswith(".")))


def _set_aside(path: Path) -> bool:
    try:
        return set_aside(path) is not None
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
        return False


def _remove_tree(path: Path, budget: int) -> int:
    """Remove at most so many entries; what is left of the number. By descriptors: a link is removed, never followed.
    Raises OSError."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        budget = _empty(root, root, budget, depth=0)
    finally:
        os.close(root)
    if budget > 0:
        os.rmdir(path)
    return budget


def _empty(at: int, root: int, budget: int, *, depth: int) -> int:
    os.fchmod(at, 0o700)  # some tools write-protect their caches
    with os.scandir(at) as entries:
        found = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
    for name, folder in found:
        if budget <= 0:
            return 0
        if not folder:
            os.unlink(name, dir_fd=at)
        elif depth >= _DEEP:  # nearer to the top, where a next pass finds it
            os.rename(name, f"{name[:64]}-{secrets.token_hex(4)}", src_dir_fd=at, dst_dir_fd=root)
        else:
            budget = _empty_folder(name, at, root, budget, depth)
            if budget <= 0:
                return 0
            os.rmdir(name, dir_fd=at)
        budget -= 1
    return budget


def _empty_folder(name: str, at: int, root: int, budget: int, depth: int) -> int:
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)  # an agent may have closed it even to itself
        inner = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    try:
        return _empty(inner, root, budget, depth=depth + 1)
    finally:
        os.close(inner)
