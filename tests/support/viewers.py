"""A viewer of a terminal with an emulator of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

from oah.adapters.pty.screen import ScreenModel
from oah.client.terminal import Terminal
from oah.core.dialogue.frames import Frame, Note, Output, Snapshot


class Watcher:
    """Paints what a terminal sends; `notes` by type, the latest last."""

    def __init__(self, terminal: Terminal, *, rows: int = 40, columns: int = 100) -> None:
        self.terminal = terminal
        self.model = ScreenModel(rows=rows, columns=columns)
        self.notes: list[Note] = []
        self.snapshots = 0
        self.skipped = 0
        self._at = 0

    @property
    def text(self) -> str:
        return self.model.look().text

    def note(self, kind: str) -> Note | None:
        return next((note for note in reversed(self.notes) if note.type == kind), None)

    def take(self, frame: Frame) -> None:
        match frame:
            case Snapshot():
                self.snapshots += 1
                self._at = frame.offset
                self.model.feed(frame.paint)
            case Output():
                assert frame.offset <= self._at, f"bytes {self._at} to {frame.offset} are missing"
                self.model.feed(frame.after(self._at))
                self._at = max(self._at, frame.offset + len(frame.data))
            case Note():
                self.notes.append(frame)
                if frame.type == "skipped":
                    self.skipped += frame.data["bytes"]
                if frame.type == "size":
                    self.model.resize(rows=frame.data["rows"], columns=frame.data["cols"])

    def until(self, seen: Callable[[], object], *, within: float = 20) -> None:
        """Take frames until it is seen."""
        end = time.monotonic() + within
        while not seen():
            assert time.monotonic() < end, f"not seen; {self.notes[-5:]}\n{self.text}"
            frame = self.terminal.receive(timeout=0.2)
            if frame is not None:
                self.take(frame)
                self._take_what_is_there()
            elif self.terminal.code is not None:
                assert seen(), f"ended: {self.terminal.code} {self.terminal.reason}; {self.notes[-5:]}\n{self.text}"

    def _take_what_is_there(self) -> None:
        """Up to so much of it: to look at the screen costs more than to paint a frame of a flood."""
        for _ in range(100):
            frame = self.terminal.receive(timeout=0)
            if frame is None:
                break
            self.take(frame)

    def shows(self, text: str, *, within: float = 20) -> None:
        self.until(lambda: text in self.text, within=within)

    def hears(self, kind: str, *, within: float = 20) -> Note:
        self.until(lambda: self.note(kind) is not None, within=within)
        note = self.note(kind)
        assert note is not None
        return note

    def ends(self, *, within: float = 20) -> tuple[int, str]:
        self.until(lambda: self.terminal.code is not None, within=within)
        assert self.terminal.code is not None
        return self.terminal.code, self.terminal.reason
