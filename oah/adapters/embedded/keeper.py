"""The keeper of the private server: a small process in a session of its own that starts it, watches, and ends it.

Run as a file, with the standard library only, so that it needs little memory and no environment::

    keeper.py <socket> <directory> <idle seconds> [<server binary> <descriptor of the server's lock>]

The server inherits the lock's descriptor and the keeper closes its own, so the lock lives exactly as long as the
server, whatever happens to the keeper. Without a binary it watches a server whose keeper has died. One keeper watches
at a time (a lock of their own); it ends the server when nobody has been connected for the idle time.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

POLL = 1.0


def main(path: str, directory: str, idle: float, start: tuple[str, int] | None) -> None:
    """Start if asked to, then watch until the server is gone."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    server = None
    if start is not None:
        binary, lock = start
        server = subprocess.Popen(
            [binary, *_settings(path, directory)], pass_fds=(lock,), stdin=subprocess.DEVNULL, cwd=directory
        )
        os.close(lock)
    own = os.open(os.path.join(directory, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Who started the server waits for its predecessor; who replaces a lost keeper may find another one here.
        fcntl.flock(own, fcntl.LOCK_EX | (fcntl.LOCK_NB if server is None else 0))
    except BlockingIOError:
        return
    _watch(path, idle, server)
    if server is not None:
        server.wait()


def clients(path: str) -> int | None:
    """How many are connected besides this look; None when nobody answers there."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect(path)
            connection.sendall(b"INFO clients\r\n")
            answer = b""
            while b"connected_clients:" not in answer or not answer.endswith(b"\r\n"):
                piece = connection.recv(65536)
                if not piece or answer.startswith(b"-"):
                    return None
                answer += piece
    except OSError:
        return None
    return int(answer.split(b"connected_clients:", 1)[1].split(b"\r\n", 1)[0]) - 1


def _watch(path: str, idle: float, server: subprocess.Popen[bytes] | None) -> None:
    last, unanswered = time.monotonic(), 0
    while unanswered < 10:
        time.sleep(min(POLL, idle / 4))
        if server is not None and server.poll() is not None:
            return
        found = clients(path)
        unanswered = 0 if found is not None else unanswered + 1
        if found != 0:
            last = time.monotonic()
        elif time.monotonic() - last >= idle:
            end(path)
            return


def end(path: str) -> None:
    """End the server there; nothing when there is none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5)
            connection.connect(path)
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            connection.recv(1)
    except OSError:
        return  # it is gone


def _settings(path: str, directory: str) -> list[str]:
    """Private, empty at every start, and refusing to grow rather than evicting."""
    values = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "dir": directory,
        "logfile": os.path.join(directory, "server.log"),
        "save": "",
        "appendonly": "no",
        "databases": "1",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [word for name, value in values.items() for word in (f"--{name}", value)]


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # the starter must not be its parent: it would have to reap it
    os.setsid()
    main(
        sys.argv[1],
        sys.argv[2],
        float(sys.argv[3]),
        (sys.argv[4], int(sys.argv[5])) if len(sys.argv) > 4 else None,
    )
