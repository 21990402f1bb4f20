"""Signals: the first SIGTERM or SIGINT drains, the second ends now, further ones change nothing.

A handler runs between two instructions of the main thread, perhaps while that holds the very lock the answer needs. So
it only writes a byte; a thread reads it and calls.
"""

from __future__ import annotations

import contextlib
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
        self._read = self._write = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Install the handlers. Raises Broken outside the main thread (the system delivers signals only there)."""
        if threading.current_thread() is not threading.main_thread():
            raise Broken("signals can only be watched from the main thread")
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._answer, name="signals", daemon=True)
        self._thread.start()
        for number in WATCHED:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handlers back and end the thread."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        os.close(self._write)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        os.close(self._read)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A full pipe means that thousands of signals wait already.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, bytes([number]))

    def _answer(self) -> None:
        for name, answer in self._answers:
            got = os.read(self._read, 1)
            if not got:
                return
            log.info("signal", extra={"signal": signal.Signals(got[0]).name, "answer": name})
            answer()
        while os.read(self._read, 64):
            pass
