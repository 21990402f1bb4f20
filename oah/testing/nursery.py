"""Processes of a test's fleet without the second that an interpreter needs to start and import everything.

    with Nursery() as nursery, Fleet(data_dir, starter=nursery) as fleet:
        ...

A nursery is one process (`oah.testing.forker`) that has imported what OAH's processes import, and nothing more: no
thread, no connection, no settings. Each start is a fork of it. What comes out is a process like one of a fresh
interpreter: its own pid, session, environment and directory, the same exit codes and signals. It differs in what
/proc tells of it: command line and environment there are the nursery's. Tests that look at those, at its memory or
at how a process starts take fresh interpreters, which is what a `Fleet` does when not told otherwise. Linux only.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from oah.cli.children import Started, execute
from oah.errors import Unavailable

OWN = ("OAH_", "PYTEST_")
"""Variables that nothing reads while it is imported, so that they may be other than the nursery's."""
HEAD = struct.Struct("!I")
"""Before each message: how many bytes of JSON follow."""


def send(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """One message; the descriptors travel with its head. Raises OSError when nobody is there to get it."""
    body = json.dumps(message).encode()
    if descriptors:
        socket.send_fds(channel, [HEAD.pack(len(body))], descriptors)
    else:
        channel.sendall(HEAD.pack(len(body)))
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors, or None at the end."""
    width = array.array("i").itemsize
    head, extra, _, _ = channel.recvmsg(HEAD.size, socket.CMSG_SPACE(2 * width))
    descriptors = array.array("i")
    for _, _, data in extra:
        descriptors.frombytes(data[: len(data) - len(data) % width])
    head += _exactly(channel, HEAD.size - len(head)) if head else b""
    if len(head) < HEAD.size:
        return None
    size = HEAD.unpack(head)[0]
    body = _exactly(channel, size)
    return (json.loads(body), list(descriptors)) if len(body) == size else None


def _exactly(channel: socket.socket, size: int) -> bytes:
    """So many bytes, fewer only at the end."""
    found = b""
    while len(found) < size and (more := channel.recv(size - len(found))):
        found += more
    return found


class Nursery:
    """A `Starter`. Thread safe. ``env``: the environment of its interpreter, this process's when left out.

    A child whose environment differs from it in more than OAH's own variables gets a fresh interpreter: who knows what
    was read when it was imported. Ends with ``close``, and when this process ends in whatever way; its children
    then live on until their lifelines end, but nobody can tell any more how they ended.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        # Children of a supervisor write without buffers; this is decided when an interpreter starts.
        self._env = {**(os.environ if env is None else env), "PYTHONUNBUFFERED": "1"}
        self._guard = threading.Lock()
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oah.testing.forker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; repeatable."""
        self._channel.close()
        self._process.wait()

    def __call__(self, words: Sequence[str], *, lifeline: int, env: Mapping[str, str], cwd: Path) -> Started:
        """Start `oah.cli.child` with these words. Raises Unavailable when the nursery has ended."""
        if _foreign(env) != _foreign(self._env):
            return execute(words, lifeline=lifeline, env=env, cwd=cwd)
        ours, theirs = os.pipe()
        try:
            told = self.ask({"words": list(words), "env": dict(env), "cwd": str(cwd)}, (theirs, lifeline))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return Fork(self, int(told["pid"]), os.fdopen(ours, "rb"))

    def ask(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """A question and its answer. Raises Unavailable when the nursery has ended."""
        with self._guard:
            try:
                send(self._channel, message, descriptors)
                answer = receive(self._channel)
            except OSError as error:
                raise Unavailable(f"the nursery (pid {self.pid}) has ended: {error}") from error
        if answer is None:
            raise Unavailable(f"the nursery (pid {self.pid}) has ended")
        return answer[0]


def _foreign(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(OWN)}


class Fork:
    """A child of a nursery, as `subprocess.Popen` shows its own.

    The nursery reaps it only when asked to, which is once it has ended; until then its pid is nobody else's.
    """

    def __init__(self, nursery: Nursery, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self._nursery = nursery
        self._code: int | None = None
        self._guard = threading.Lock()
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Raises Unavailable when the nursery cannot say."""
        return self._seen(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has ended. Raises subprocess.TimeoutExpired."""
        code = self._seen(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
        return code

    def send_signal(self, sig: int, /) -> None:
        """To itself. Nothing when it has been reaped."""
        with self._guard:
            if self._code is None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptor, sig)

    def _seen(self, timeout: float | None) -> int | None:
        if self._code is None and self._ended(timeout):
            with self._guard:
                if self._code is None:
                    self._code = int(self._nursery.ask({"reap": self.pid})["code"])
                    os.close(self._descriptor)
        return self._code

    def _ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        with self._guard:
            if self._code is not None:
                return True
            # Not the descriptor itself: while this waits, another thread may see the end and close it.
            watched = os.dup(self._descriptor)
        try:
            poll.register(watched, select.POLLIN)
            return bool(poll.poll(None if timeout is None else timeout * 1000))
        finally:
            os.close(watched)
