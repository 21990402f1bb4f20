"""A recording per attempt: asciicast v2, what a terminal showed, typed and how large it was, in a blob that plays in
asciinema.

The reader thread only puts bytes into memory; one writer thread encodes and uploads every few seconds, and whoever
settles the
attempt finishes it. After the head (64 MiB) only the last 16 MiB are kept, in memory, and written at the end behind a
marker event
that says how much is missing. Bytes are cut where a character ends.
"""

from __future__ import annotations

import codecs
import json
import logging
import threading
import time
from collections import deque

from oah.errors import OahError
from oah.ports.blobs import Blobs

HEAD_BYTES = 64 * 1024 * 1024
TAIL_BYTES = 16 * 1024 * 1024
"""Caps of one attempt; source: the defaults of the protocol (64 + 16 MiB)."""
FLUSH_SECONDS = 2.0
_EARLY_FLUSH_BYTES = 1024 * 1024
_PENDING_BYTES = 16 * 1024 * 1024

_log = logging.getLogger(__name__)


class Recording:
    """One attempt's. `feed` may be called in the reader thread; everything that touches the store happens elsewhere."""

    def __init__(
        self,
        blobs: Blobs,
        key: str,
        *,
        cols: int,
        rows: int,
        title: str,
        head_bytes: int = HEAD_BYTES,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        self.key = key
        self._blobs = blobs
        self._caps = head_bytes, tail_bytes
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: deque[tuple[float, str, bytes | str]] = deque()
        self._pending_bytes = 0
        self._tail: deque[tuple[float, str, bytes | str]] = deque()
        self._tail_bytes = 0
        self._written = 0
        self._missing = 0
        self._broken: str | None = None
        self._closed = False
        header = {
            "version": 2,
            "width": cols,
            "height": rows,
            "timestamp": int(time.time()),
            "title": title,
            "env": {"TERM": "xterm-256color"},
        }
        self._header = json.dumps(header) + "\n"

    # -- events, from any thread ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Output, as read."""
        self._put("o", data, len(data))

    def lost(self, count: int) -> None:
        """Bytes that nobody saw."""
        self.mark(f"{count} bytes lost")

    def typed(self, text: str) -> None:
        """Input, as given to the program."""
        self._put("i", text, len(text))

    def resized(self, *, rows: int, cols: int) -> None:
        """A new size."""
        self._put("r", f"{cols}x{rows}", 16)

    def mark(self, label: str) -> None:
        """A named moment, shown by players as a chapter."""
        self._put("m", label, len(label))

    def _put(self, kind: str, data: bytes | str, size: int) -> None:
        at = time.monotonic() - self._begun
        with self._lock:
            if self._closed:
                return
            if (
                self._written + self._pending_bytes < self._caps[0]
                and self._pending_bytes < _PENDING_BYTES
                and not self._tail
            ):
                self._pending.append((at, kind, data))
                self._pending_bytes += size
                return
            self._tail.append((at, kind, data))
            self._tail_bytes += size
            while self._tail_bytes > self._caps[1] and len(self._tail) > 1:
                _, _, gone = self._tail.popleft()
                self._tail_bytes -= len(gone)
                self._missing += len(gone)

    # -- the store --------------------------------------------------------------------------------------------------

    @property
    def due_early(self) -> bool:
        """Whether much waits to be written."""
        return self._pending_bytes > _EARLY_FLUSH_BYTES

    def flush(self) -> None:
        """Write what waits. A store that fails ends the recording, never the run."""
        with self._writing:
            with self._lock:
                events, self._pending, size = self._pending, deque(), self._pending_bytes
                self._pending_bytes = 0
                self._written += size
            self._write(events)

    def finish(self) -> str | None:
        """Write everything, the tail too. The blob's key, None when nothing could be stored. Repeatable."""
        self.flush()
        with self._writing:
            with self._lock:
                if self._closed:
                    return None if self._broken else self.key
                self._closed = True
                tail, self._tail = self._tail, deque()
            if self._missing:
                label = f"cut: {self._missing} bytes left out"
                self._decoder.reset()
                tail.appendleft((tail[0][0] if tail else 0.0, "m", label))
            self._write(tail, last=True)
        return None if self._broken else self.key

    def _write(self, events: deque[tuple[float, str, bytes | str]], *, last: bool = False) -> None:
        header, self._header = self._header, ""
        lines = [header] if header else []
        while events:
            at, kind, data = events.popleft()
            text = data if isinstance(data, str) else self._decoder.decode(data)
            if text:
                lines.append(_line(at, kind, text))
        if last and (rest := self._decoder.decode(b"", final=True)):
            lines.append(_line(time.monotonic() - self._begun, "o", rest))
        if self._broken or not lines:
            return
        try:
            write = self._blobs.put if header else self._blobs.append
            write(self.key, "".join(lines).encode())
        except OahError as error:
            self._broken = str(error)
            _log.warning("recording %s ends early: %s", self.key, error)


def _line(at: float, kind: str, text: str) -> str:
    return f'[{at:.6f}, "{kind}", {json.dumps(text.encode("utf-8", "replace").decode())}]\n'


class RecordingWriter:
    """The thread that writes all open recordings every few seconds, so that a dead worker's recordings can be read."""

    def __init__(self, *, seconds: float = FLUSH_SECONDS) -> None:
        self._seconds = seconds
        self._open: set[Recording] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is there, end the thread. Repeatable."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, recording: Recording) -> None:
        with self._lock:
            self._open.add(recording)

    def finish(self, recording: Recording) -> str | None:
        """Write the rest of this one and forget it. Its blob's key, None when it could not be stored."""
        with self._lock:
            self._open.discard(recording)
        return recording.finish()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self._seconds / 8):
            with self._lock:
                recordings = list(self._open)
            everything = time.monotonic() - last >= self._seconds
            last = time.monotonic() if everything else last
            for recording in recordings:
                if everything or recording.due_early:
                    recording.flush()
        for recording in list(self._open):
            recording.flush()
