"""A terminal's worker side, and the one thread that reads them all.

Reading never waits for a consumer: each terminal keeps a bounded buffer that drops its oldest bytes and counts them.
Writing is non-blocking, in pieces, with a deadline. Descriptors are non-blocking and are only used and closed under
the terminal's lock, so a recycled number is never read or written by mistake.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import struct
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from oah.core.dialogue.tape import Tape
from oah.errors import AgentError
from oah.ports.terminal import OutputSink

BUFFER_BYTES = 1024 * 1024
PIECE = 1024
"""Bytes per write: a terminal's input queue is 4 KiB (source: facts measured on Linux, docs/explanation)."""
LINE_BYTES = 4095
"""Longest line a terminal in canonical mode keeps; the kernel drops the rest without a word."""
_READ = 65536
_PROMPT_BYTES = 4096
"""More than a program says to ask for a line."""
_READS_PER_TURN = 16
_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


class PtyTerminal:
    """ports.terminal.Terminal over a PTY master."""

    def __init__(self, fd: int, *, buffer_bytes: int = BUFFER_BYTES) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._cap = buffer_bytes
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._tape = Tape()
        self.position = 0
        """Offset after the last byte that the consumer has taken; dropped bytes count."""
        self.typing = threading.RLock()
        """Held by whoever types: one write is never inside another, nor keys of a person inside a text of ours."""
        self.pressed_at = float("-inf")
        """When a person typed last (monotonic seconds)."""
        self.draft = 0
        """Characters of a line that a person may have left unfinished, for programs that show none."""
        self.prompt: re.Pattern[bytes] | None = None
        """What a line-wise program says whenever it asks for a line; None: nobody knows."""
        self._given_at: int | None = None
        self._dropped = 0
        self._line = 0
        self._ended = False
        self._closed = False
        self._sink: OutputSink | None = None
        self._woken: Callable[[], None] | None = None
        self._on_close: Callable[[PtyTerminal], None] = lambda _: None

    # -- consumer ---------------------------------------------------------------------------------------------------

    def take(self, size: int, timeout: timedelta | None) -> bytes | None:
        """See ports.terminal.Terminal."""
        end = None if timeout is None else time.monotonic() + timeout.total_seconds()
        with self._filled:
            while not self._chunks and not self._ended:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._filled.wait(left)
            return self._pop(size)

    def _pop(self, size: int) -> bytes:
        taken: list[bytes] = []
        while self._chunks and size > 0:
            chunk = self._chunks.popleft()
            if len(chunk) > size:
                self._chunks.appendleft(chunk[size:])
                chunk = chunk[:size]
            taken.append(chunk)
            size -= len(chunk)
            self._size -= len(chunk)
        self.position = self._tape.end - self._size
        return b"".join(taken)

    @property
    def given(self) -> bool:
        """Whether somebody has given the program a line, and it has not asked for the next one."""
        return self._given_at is not None

    def write(
        self, data: bytes, timeout: timedelta, *, stop: Callable[[], bool] = lambda: False, gives: bool = False
    ) -> None:
        """See ports.terminal.Terminal. `stop`: asked while the program does not read; True: give up at once. `gives`:
        see `given`."""
        with self.typing:
            self._write(data, timeout, stop, gives=gives)

    def _write(self, data: bytes, timeout: timedelta, stop: Callable[[], bool], *, gives: bool) -> None:
        self._check_lines(data)
        if gives:
            with self._lock:
                self._given_at = self._tape.end
        end = time.monotonic() + timeout.total_seconds()
        done = 0
        while done < len(data):
            written = self._write_piece(data[done : done + PIECE])
            done += written
            if written:
                continue
            left = end - time.monotonic()
            if left <= 0 or stop():
                raise AgentError(
                    f"the program read {done} of {len(data)} bytes within {timeout.total_seconds():g} s",
                    code="agent_not_reading",
                )
            self._wait_writable(min(left, _POLL_SECONDS))

    def _write_piece(self, piece: bytes) -> int:
        with self._lock:
            if self._closed or self._ended:
                raise AgentError("the terminal is closed", code="agent_gone")
            try:
                return os.write(self.fd, piece)
            except BlockingIOError:
                return 0
            except OSError as error:
                raise AgentError(f"the terminal is gone: {error.strerror}", code="agent_gone") from error

    def _wait_writable(self, seconds: float) -> None:
        with self._lock:
            if self._closed:
                return
            poller = select.poll()
            poller.register(self.fd, select.POLLOUT)
        poller.poll(seconds * 1000)

    def _check_lines(self, data: bytes) -> None:
        """Refuse what the line discipline would cut. The rest of an unfinished line counts."""
        if not self.canonical():
            self._line = 0
            return
        lines = data.replace(b"\r", b"\n").split(b"\n")
        lengths = [len(line) for line in lines]
        lengths[0] += self._line
        if max(lengths) > LINE_BYTES:
            raise AgentError(
                f"a line of {max(lengths)} bytes for a program that reads whole lines of at most {LINE_BYTES} bytes",
                code="line_too_long",
            )
        self._line = lengths[-1]

    def wake(self, call: Callable[[], None] | None) -> None:
        """Call this, in the reader thread, whenever there is something to take (None = nobody). It must not block."""
        with self._filled:
            self._woken = call

    # -- viewers ----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Offset of the byte that comes next."""
        with self._lock:
            return self._tape.end

    def replay(self, offset: int, limit: int) -> bytes | None:
        """Bytes from `offset` on that were read lately, taken by the consumer or not; None: no longer kept."""
        with self._lock:
            return self._tape.read(offset, limit)

    def replayable(self) -> int:
        """Offset of the oldest byte that is still kept."""
        with self._lock:
            return self._tape.start

    def wait_beyond(self, offset: int, changed: Callable[[], bool], timeout: timedelta) -> None:
        """Until bytes after `offset` were read, or `changed` (asked at each `nudge`)."""
        with self._filled:
            self._filled.wait_for(lambda: self._tape.end > offset or changed(), timeout.total_seconds())

    def nudge(self) -> None:
        """Something about the terminal has changed: whoever waits looks again."""
        with self._filled:
            self._filled.notify_all()

    # -- the terminal itself ----------------------------------------------------------------------------------------

    def resize(self, *, rows: int, cols: int) -> None:
        """See ports.terminal.Terminal."""
        with self._lock:
            if not self._closed:
                fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def record(self, sink: OutputSink | None) -> None:
        """See ports.terminal.Terminal."""
        with self._lock:
            self._sink = sink

    def canonical(self) -> bool:
        """See ports.terminal.Terminal."""
        return bool(self._local_modes() & termios.ICANON)

    def echoes(self) -> bool:
        """See ports.terminal.Terminal."""
        return bool(self._local_modes() & termios.ECHO)

    def set_echo(self, *, on: bool) -> None:
        """Whether the kernel echoes input from now on. Programs change it as they like."""
        with self._lock:
            if self._closed:
                return
            try:
                modes = termios.tcgetattr(self.fd)
                modes[3] = modes[3] | termios.ECHO if on else modes[3] & ~termios.ECHO
                termios.tcsetattr(self.fd, termios.TCSANOW, modes)
            except termios.error:
                return

    def _local_modes(self) -> int:
        with self._lock:
            if self._closed:
                return 0
            try:
                return int(termios.tcgetattr(self.fd)[3])
            except termios.error:
                return 0

    def foreground_group(self) -> int:
        """Process group that the terminal's keys reach, 0 when there is none."""
        with self._lock:
            if self._closed:
                return 0
            try:
                return os.tcgetpgrp(self.fd)
            except OSError:
                return 0

    def close(self) -> None:
        """See ports.terminal.Terminal."""
        with self._filled:
            if self._closed:
                return
            self._closed = self._ended = True
            self._on_close(self)
            os.close(self.fd)
            self._filled.notify_all()

    @property
    def dropped(self) -> int:
        """See ports.terminal.Terminal."""
        return self._dropped

    @property
    def closed(self) -> bool:
        """See ports.terminal.Terminal."""
        return self._closed or (self._ended and not self._chunks)

    # -- reader thread ----------------------------------------------------------------------------------------------

    def attach(self, on_close: Callable[[PtyTerminal], None]) -> None:
        """The reader that reads it, told before the descriptor is closed."""
        self._on_close = on_close

    def pull(self) -> bool:
        """Read what is there, bounded. False at the end: nobody holds the other side any more."""
        for _ in range(_READS_PER_TURN):
            with self._filled:
                if self._closed:
                    return True
                try:
                    data = os.read(self.fd, _READ)
                except BlockingIOError:
                    return True
                except OSError:
                    data = b""
                if not data:
                    self._ended = True
                    self._notify()
                    return False
                self._keep(data)
        return True

    def _see_prompt(self, size: int) -> None:
        """Now, for it is not kept for long; it may have come in pieces."""
        if self._given_at is not None and self.prompt is not None:
            begin = max(self._given_at, self._tape.end - size - _PROMPT_BYTES)
            if self.prompt.search(self._tape.read(begin, size + _PROMPT_BYTES) or b""):
                self._given_at = None

    def _keep(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.feed(data)
        self._tape.append(data)
        self._see_prompt(len(data))
        self._chunks.append(data)
        self._size += len(data)
        while self._size > self._cap:
            dropped = self._chunks.popleft()
            self._size -= len(dropped)
            self._dropped += len(dropped)
        self._notify()

    def _notify(self) -> None:
        self._filled.notify_all()
        if self._woken is not None:
            self._woken()


class Reader:
    """One epoll thread over all terminals and whatever else is watched (the host's socket and pidfd)."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._terminals: dict[int, PtyTerminal] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="terminals", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Terminals stay open, unread."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
            self._epoll.close()
            os.close(self._wake)

    def add(self, terminal: PtyTerminal) -> None:
        """Read this one until its end."""
        terminal.attach(self._forget)
        with self._lock:
            self._terminals[terminal.fd] = terminal
            self._epoll.register(terminal.fd, select.EPOLLIN)

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """Call this, in the reader thread, whenever the descriptor is readable."""
        with self._lock:
            self._watched[fd] = call
            self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Before the descriptor is closed. Repeatable."""
        with self._lock:
            if self._watched.pop(fd, None) is not None:
                self._epoll.unregister(fd)

    def _forget(self, terminal: PtyTerminal) -> None:
        with self._lock:
            if self._terminals.get(terminal.fd) is terminal:
                del self._terminals[terminal.fd]
                self._epoll.unregister(terminal.fd)

    def _run(self) -> None:
        while not self._stopping:
            for fd, _ in self._epoll.poll():
                if fd == self._wake:
                    continue
                terminal = self._terminals.get(fd)
                if terminal is not None:
                    if not terminal.pull():
                        self._forget(terminal)
                    continue
                call = self._watched.get(fd)
                if call is not None:
                    self._guarded(call)

    @staticmethod
    def _guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - one broken observer must not blind all terminals
            _log.exception("an observer in the terminals thread failed")
