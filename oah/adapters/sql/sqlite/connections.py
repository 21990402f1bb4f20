"""Connections to SQLite: WAL, every commit on the disk, writers begin at once, nobody sleeps in the library's handler.

The library waits for a lock in sleeps that grow to 100 ms; here a writer asks again every millisecond or two, so that
several processes share a file without long tails. A deferred transaction that reads and then writes can fail at once
however long the time-out: there is none here, a writer begins with BEGIN IMMEDIATE.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from random import uniform

from oah.errors import Broken, InvalidRequest, Unavailable

OLDEST = (3, 35, 0)
"""The first SQLite with RETURNING."""
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
        "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone",
    }
)  # fmt: skip
BUSY_SECONDS = 10.0
"""How long an ordinary writer waits for the other processes."""
RETRY_SECONDS = (0.0005, 0.002)


def database_path(url: str) -> Path:
    """The file of ``sqlite:///relative`` or ``sqlite:////absolute``. Raises InvalidRequest."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0]
    if scheme not in ("sqlite", "sqlite+pysqlite") or not path.startswith("/") or path in ("/", "/:memory:"):
        raise InvalidRequest(
            f"'{url}' names no SQLite file", hint="sqlite:///path/to/file.db; in memory is not offered"
        )
    return Path(path[1:]).expanduser()


def check_library() -> None:
    """Raises Broken for a SQLite library that is too old."""
    if sqlite3.sqlite_version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise Broken(f"SQLite {sqlite3.sqlite_version} is too old: {needed} or newer is needed")


def check_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Raises InvalidRequest where the file would lie on a network file system, as far as the system tells."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    target = str(path.resolve())
    best, kind = "", ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in NETWORK_FILE_SYSTEMS:
        raise InvalidRequest(
            f"{path} lies on a network file system ({kind})",
            hint="SQLite needs a local disk; use PostgreSQL across hosts",
        )


def now_us() -> int:
    """This host's clock: the clock of an embedded database."""
    return time.time_ns() // 1000


def opened(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection without implicit transactions."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        connection.create_function("now_us", 0, now_us)
        _patiently(connection, "PRAGMA journal_mode=WAL", time.monotonic() + BUSY_SECONDS)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if read_only:
            connection.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
            connection.execute("PRAGMA query_only=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def begin_immediate(connection: sqlite3.Connection, seconds: float = BUSY_SECONDS) -> None:
    """Take the write lock. Raises Unavailable when others keep it longer than ``seconds``."""
    _patiently(connection, "BEGIN IMMEDIATE", time.monotonic() + seconds)


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether somebody else has the lock (primary code BUSY, whatever its extension)."""
    return (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_BUSY


def _patiently(connection: sqlite3.Connection, statement: str, deadline: float) -> None:
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= deadline:
                raise Unavailable(f"SQLite: other writers keep the database busy ({statement})") from error
        time.sleep(uniform(*RETRY_SECONDS))


def make_place(path: Path) -> None:
    """Create the directory of the file, private to its user."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(f"cannot create {path.parent}: {os.strerror(error.errno or 0)}") from error
