"""A man in the middle of a PostgreSQL socket: cuts or stalls a connection at the moment of COMMIT."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class AtCommit(StrEnum):
    """What the proxy does with the next COMMIT."""

    PASS = "pass"
    CUT_BEFORE = "cut_before"
    """The server never sees it."""
    CUT_AFTER = "cut_after"
    """The server commits, the client never hears."""
    STALL = "stall"
    """The client is cut at once, the server sees the COMMIT when ``release`` is called."""


class CommitProxy:
    """Listens on a socket of its own; ``url`` leads through it. ``at_commit`` is used up by the next COMMIT."""

    def __init__(self, url: str, directory: Path) -> None:
        parts = conninfo_to_dict(url)
        self._target = f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}"
        self.url = "postgresql://?" + "&".join(
            f"{name}={value}" for name, value in {**parts, "host": str(directory), "port": "5432"}.items()
        )
        self.conninfo = make_conninfo(**{**parts, "host": str(directory), "port": "5432"})  # type: ignore[arg-type]
        self.at_commit = AtCommit.PASS
        self._released = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        """Let a stalled COMMIT reach the server."""
        self._released.set()

    def close(self) -> None:
        """End the listener and every connection."""
        for end in [self._listener, *self._open]:
            _end(end)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._open += [client, server]
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT" in data and self.at_commit is not AtCommit.PASS:
                    self._meddle(data, client, server)
                    return
                server.sendall(data)
        _end(server)

    def _meddle(self, data: bytes, client: socket.socket, server: socket.socket) -> None:
        what, self.at_commit = self.at_commit, AtCommit.PASS
        _end(client)
        if what is AtCommit.STALL:
            self._released.wait(30)
        if what is not AtCommit.CUT_BEFORE:
            server.sendall(data)
            return  # the other pump reads the answer into nothing, and the end of the session closes it
        _end(server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            with suppress(OSError):
                target.sendall(data)
    _end(target)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def commit_proxy(url: str) -> Iterator[CommitProxy]:
    """A proxy before the server of this address; in a short directory, for sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="oah-px-") as directory:
        proxy = CommitProxy(url, Path(directory))
        try:
            yield proxy
        finally:
            proxy.release()
            proxy.close()
