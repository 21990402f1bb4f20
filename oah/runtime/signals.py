"""Signals: the first SIGTERM or SIGINT drains, the second ends now, further ones change nothing.

A handler runs between two instructions of the main thread: perhaps while that holds the very lock the answer needs, and
not at all while it waits for a lock and the system gave the signal to another thread. So the interpreter's own handler,
in C, writes a byte from whatever thread it runs in, and a thread reads it and calls.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from oah.errors import Broken

log = logging.getLogger(__name__)

WATCHED = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """While entered, SIGTERM and SIGINT are answered by `drain`, then `now`, in a thread of their own."""

    def __init__(self, *, drain: Callable[[], None], now: Callable[[], None]) -> None:
        self._answers = (("drain", drain), ("now", now))
        self._before: dict[signal.Signals, Any] = {}
        self._read = self._write = self._wakeup = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Install the handlers. Raises Broken outside the main thread (the system delivers signals only there)."""
        if threading.current_thread() is not threading.main_thread():
            raise Broken("signals can only be watched from the main thread")
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)  # a full pipe means that thousands of signals wait already
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._answer, name="signals", daemon=True)
        self._thread.start()
        for number in WATCHED:
            self._before[number] = signal.signal(number, _written_already)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handlers back and end the thread."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._write)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        os.close(self._read)

    def _answer(self) -> None:
        for name, answer in self._answers:
            number = self._next()
            if number is None:
                return
            log.info("signal", extra={"signal": signal.Signals(number).name, "answer": name})
            answer()
        while os.read(self._read, 64):
            pass

    def _next(self) -> int | None:
        """The next signal that is ours; None at the end. The pipe has those of others, too."""
        while got := os.read(self._read, 1):
            if got[0] in WATCHED:
                return got[0]
        return None


def _written_already(number: int, frame: FrameType | None) -> None:
    """The handler in Python: without one there would be none in C."""
