"""A home as one tar file. What is packed belongs to an agent that is not trusted and may be changing: nothing is
followed, only regular files, directories and symbolic links of its own user are taken."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from oah.adapters.homes.worktree import set_aside

CACHES = (".cache", ".npm", ".bun", "node_modules", "__pycache__", "*.sock", "*.lock", "Cache", "logs")
"""Names that are never packed: what programs can do without."""
DEEPEST = 64
"""Levels of directories: each costs a descriptor while it is walked, and a walk that nests without bound ends its
process."""
_YOUNGEST = 2**33
"""No file is younger (in seconds): some file systems keep moments that no clock has."""
_PASSING = ("tmp",)
"""Neither are these, right in the home. Deeper, a program may mean something by such a name: one keeps its
conversations there."""


class TooLarge(Exception):
    """More bytes than are allowed, or deeper."""


def packed(home: Path, *, limit: int, exclude: Sequence[str], uid: int | None) -> bytes:
    """The tar. Raises TooLarge, OSError."""
    buffer = io.BytesIO()
    unwanted = (*CACHES, *exclude)
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, descriptor in _entries(home, unwanted, uid):
            try:
                if buffer.tell() + info.size > limit:
                    raise TooLarge
                if descriptor is None:
                    tar.addfile(info)
                else:
                    with open(descriptor, "rb", closefd=False) as file:
                        tar.addfile(info, io.BytesIO(_exactly(file.read(info.size), info.size)))
            finally:
                if descriptor is not None:
                    os.close(descriptor)
    return buffer.getvalue()


def _exactly(data: bytes, size: int) -> bytes:
    """A file that became shorter meanwhile."""
    return data.ljust(size, b"\0")


def _entries(home: Path, unwanted: Sequence[str], uid: int | None) -> Iterator[tuple[tarfile.TarInfo, int | None]]:
    """Entries with an open descriptor for files, which the caller closes. Walked by descriptors: a directory that is
    swapped for a link meanwhile leads nowhere."""
    for folder, folders, files, at in os.fwalk(home, follow_symlinks=False):
        below = os.path.relpath(folder, home)
        if below.count(os.sep) >= DEEPEST:
            raise TooLarge
        here = (*unwanted, *_PASSING) if below == os.curdir else unwanted
        folders[:] = sorted(name for name in folders if not _fits(name, here))
        for name in [*folders, *sorted(files)]:
            if _fits(name, here):
                continue
            entry = _entry(os.path.normpath(os.path.join(below, name)), name, at, uid)
            if entry is not None:
                yield entry


def _entry(path: str, name: str, at: int, uid: int | None) -> tuple[tarfile.TarInfo, int | None] | None:
    try:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
        if uid is not None and status.st_uid != uid:
            return None
        info = tarfile.TarInfo(path)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, min(max(status.st_mtime, 0), _YOUNGEST)
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            return info, None
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=at)
            return info, None
        if not stat.S_ISREG(status.st_mode):
            return None
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError:
        return None  # gone meanwhile, or not to be read
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or (uid is not None and found.st_uid != uid):
        os.close(descriptor)
        return None
    info.size = found.st_size
    return info, descriptor


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def unpack(data: bytes, home: Path, *, uid: int | None, gid: int | None) -> None:
    """In place of what is there, all or nothing. Links that lead out of it are left out. Raises OSError, TarError."""
    home.parent.mkdir(parents=True, exist_ok=True)
    fresh = home.with_name(f".{home.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
        for member in sorted(members, key=tarfile.TarInfo.issym):  # links last: nothing is ever written through one
            if not _is_behind_link(fresh, member.name):
                with contextlib.suppress(tarfile.FilterError):
                    tar.extract(member, fresh, filter="data")
    if uid is not None:
        for folder, folders, files in os.walk(fresh):
            for name in (*folders, *files):
                os.chown(os.path.join(folder, name), uid, -1 if gid is None else gid, follow_symlinks=False)
        os.chown(fresh, uid, -1 if gid is None else gid)
    gone = set_aside(home)
    fresh.rename(home)
    if gone is not None:
        with contextlib.suppress(RecursionError):  # nested without end: whoever clears what was set aside can do it
            shutil.rmtree(gone, ignore_errors=True)


def _is_behind_link(root: Path, name: str) -> bool:
    parts = Path(name).parts
    return ".." in parts or any(root.joinpath(*parts[:many]).is_symlink() for many in range(1, len(parts)))
