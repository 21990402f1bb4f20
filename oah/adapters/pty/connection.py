"""The connection to one PTY host process: start it, send, hear, notice that it is gone."""

from __future__ import annotations

import array
import contextlib
import itertools
import marshal
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import oah
from oah.adapters.pty.terminal import Reader
from oah.errors import AgentError, Unavailable

MAX_REQUEST = 262144
"""Bytes of one spawn request; one SEQPACKET message (source: measured, 220,000 fails with default buffers)."""
MAX_STRING = 131072
"""Bytes of one argument or environment entry: Linux's MAX_ARG_STRLEN."""
READY_SECONDS = 10.0
SEND_SECONDS = 2.0
_MAX_ANSWER = 65536
Answer = Callable[[tuple[Any, ...], list[int]], Any]
_START = "import sys; sys.path.append(sys.argv[1]); from oah.adapters.pty.hostside.main import main; main(sys.argv[2:])"


class Connection:
    """One host process. `on_message` and `on_gone` are called in the reader thread; `on_gone` once."""

    def __init__(
        self,
        *,
        margin_seconds: float,
        deadman_enabled: bool,
        reader: Reader,
        on_message: Callable[[tuple[Any, ...]], None],
        on_gone: Callable[[Connection, str], None],
    ) -> None:
        self._reader = reader
        self._on_message = on_message
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[Future[Any], Answer]] = {}
        self._sent: dict[int, float] = {}
        self._gone: str | None = None
        self.acknowledged = boottime()
        self.opened = False
        self.recovered = threading.Event()
        """Set by the owner once everything that this host left was killed."""
        self._process, self._socket = _launch(margin_seconds=margin_seconds, deadman_enabled=deadman_enabled)
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The host's."""
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._gone is not None

    def open(self) -> None:
        """Wait until the host is ready, then let the reader thread hear it. Raises Unavailable."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if not poller.poll(READY_SECONDS * 1000) or self._receive() is None:
            self._gone = "the PTY host did not start"
            self.destroy()
            raise Unavailable(
                f"the PTY host did not start (exit status {self._process.returncode})",
                code="host_lost",
                hint="run it by hand: python -m oah.adapters.pty.hostside.main",
            )
        self.acknowledged = boottime()
        self.opened = True
        self._reader.watch(self._socket.fileno(), self._hear)
        self._reader.watch(self._pidfd, lambda: self.give_up("the PTY host ended"))

    def give_up(self, reason: str) -> None:
        """This host is lost. Its answers are heard no more; whoever waits is told."""
        with self._lock:
            if self._gone is not None:
                return
            self._gone = reason
            waiting, self._pending = [future for future, _ in self._pending.values()], {}
        self._reader.unwatch(self._socket.fileno())
        self._reader.unwatch(self._pidfd)
        for future in waiting:
            future.set_exception(Unavailable(reason, code="host_lost"))
        self._on_gone(self, reason)

    def destroy(self) -> None:
        """SIGKILL the host and wait for it; works on a stopped one too. Closes the connection."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def wait(self, seconds: float) -> bool:
        """Wait for the host's own end."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    # -- sending ----------------------------------------------------------------------------------------------------

    def ask(self, answer: Answer, kind: str, *arguments: Any) -> Future[Any]:
        """Send something that is answered by number. `answer` makes the result of the answer, in the reader thread,
        before any later message is heard. Raises Unavailable `host_lost`, AgentError `spawn_too_large`."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        with self._lock:
            if self._gone is not None:
                raise Unavailable(self._gone, code="host_lost")
            self._pending[number] = future, answer
        try:
            self.tell(kind, number, *arguments)
        except BaseException:
            with self._lock:
                self._pending.pop(number, None)
            raise
        return future

    def tell(self, kind: str, *arguments: Any) -> None:
        """Send, waiting at most two seconds for a host that does not read. Raises Unavailable `host_lost`."""
        data = marshal.dumps((kind, *arguments))
        if len(data) > MAX_REQUEST:
            raise AgentError(f"a request of {len(data)} bytes, more than {MAX_REQUEST}", code="spawn_too_large")
        end = time.monotonic() + SEND_SECONDS
        while not self._try_send(data):
            left = end - time.monotonic()
            if left <= 0:
                raise Unavailable("the PTY host does not read", code="host_lost")
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            poller.poll(left * 1000)

    def report(self, kind: str, argument: float | Mapping[str, float]) -> None:
        """Send a deadline or mark; dropped when the host does not read (the next one comes a period later)."""
        number = next(self._numbers)
        with self._lock:
            self._sent[number] = boottime()
            while len(self._sent) > 1000:
                del self._sent[next(iter(self._sent))]
        with contextlib.suppress(Unavailable):
            self._try_send(marshal.dumps((kind, number, argument if isinstance(argument, float) else dict(argument))))

    def _try_send(self, data: bytes) -> bool:
        if self._gone is not None:
            raise Unavailable(self._gone, code="host_lost")
        try:
            self._socket.send(data)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Unavailable(f"the PTY host is gone: {error.strerror}", code="host_lost") from error
        return True

    # -- hearing ----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        for _ in range(64):
            if self._gone is not None:
                return
            received = self._receive()
            if received is None:
                self.give_up("the PTY host closed its connection")
                return
            message, fds = received
            if not message:
                return
            self._sort(message, fds)

    def _receive(self) -> tuple[tuple[Any, ...], list[int]] | None:
        """One message with its descriptors; an empty one when there is none now; None at the end."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_MAX_ANSWER, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return (), []
        except OSError:
            return None
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        return (marshal.loads(data), list(fds)) if data else None

    def _sort(self, message: tuple[Any, ...], fds: list[int]) -> None:
        match message:
            case ("ack", number):
                with self._lock:
                    sent = self._sent.pop(number, None)
                if sent is not None:
                    self.acknowledged = max(self.acknowledged, sent)
            case ("spawned" | "refused" | "signalled", number, *_):
                self._answered(number, message, fds)
            case _:
                self._on_message(message)

    def _answered(self, number: int, message: tuple[Any, ...], fds: list[int]) -> None:
        with self._lock:
            future, answer = self._pending.pop(number, (None, None))
        if future is None or answer is None:
            for fd in fds:
                os.close(fd)
            return
        try:
            future.set_result(answer(message, fds))
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that asked
            future.set_exception(error)


def boottime() -> float:
    """CLOCK_BOOTTIME in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _launch(*, margin_seconds: float, deadman_enabled: bool) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_REQUEST)
        fd = theirs.fileno()
        interpreter = os.path.realpath(sys.executable)
        root = str(Path(oah.__file__).resolve().parent.parent)
        switch = "on" if deadman_enabled else "off"
        arguments = [str(fd), str(os.getpid()), f"{margin_seconds:.6f}", switch]
        process = subprocess.Popen(
            [interpreter, "-I", "-S", "-c", _START, root, *arguments],
            pass_fds=[fd],
            cwd="/",
            env={} if deadman_enabled else {"OAH_TESTING_DEADMAN_OFF": os.environ.get("OAH_TESTING_DEADMAN_OFF", "")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None,  # ours: what a dying host has to say belongs into the worker's log
        )
    ours.settimeout(0)
    return process, ours
