"""A recording as plain text: what a person who scrolls up would read, line by line.

The terminal is played again through the screen model: what scrolls off the main screen is a line of the text, at the
end comes the screen as it stood. A full-screen program that draws on its other screen leaves only its last one there.
Playing is dear (about half a megabyte a second), so of a long recording only the end is played, and the text says so.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator

from oah.adapters.pty.screen import ScreenModel

MOST_BYTES = 2 * 1024 * 1024
"""Output that is played; earlier bytes are left out."""
_PIECE = 4_096
"""Characters between two looks: fewer than the lines that the model keeps."""
_SIZE = (40, 100)
_LARGEST = 1_000


def written(recording: Iterable[bytes]) -> Iterator[bytes]:
    """The text of an asciicast, in UTF-8. What is no event of one is skipped: a recording may end in the middle."""
    rows, columns = _SIZE
    events: deque[tuple[str, str]] = deque()
    size = left_out = 0
    for number, line in enumerate(_lines(recording)):
        if number == 0:
            rows, columns = _header(line)
            continue
        event = _event(line)
        if event is None:
            continue
        events.append(event)
        size += len(event[1])
        while size > MOST_BYTES and len(events) > 1:
            kind, gone = events.popleft()
            size -= len(gone)
            left_out += len(gone) if kind == "o" else 0
            if kind == "r":
                rows, columns = _resized(gone) or (rows, columns)
    if left_out:
        yield f"[{left_out} characters of output before this are left out; the recording has them]\n".encode()
    yield from _played(events, ScreenModel(rows=rows, columns=columns))


def _played(events: Iterable[tuple[str, str]], model: ScreenModel) -> Iterator[bytes]:
    seen = 0
    for kind, text in events:
        if kind == "r":
            if (size := _resized(text)) is not None:
                model.resize(rows=size[0], columns=size[1])
            continue
        for begin in range(0, len(text), _PIECE):
            model.feed(text[begin : begin + _PIECE].encode("utf-8", "replace"))
            screen = model.look()
            fresh = screen.above[len(screen.above) - min(screen.scrolled - seen, len(screen.above)) :]
            seen = screen.scrolled
            if fresh:
                yield ("\n".join(fresh) + "\n").encode()
    yield (model.look().text + "\n").encode()


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _header(line: bytes) -> tuple[int, int]:
    try:
        said = json.loads(line)
        return _bounded(int(said["height"]), int(said["width"])) or _SIZE
    except (ValueError, KeyError, TypeError):
        return _SIZE


def _event(line: bytes) -> tuple[str, str] | None:
    try:
        _, kind, text = json.loads(line)
    except (ValueError, TypeError):
        return None
    return (kind, text) if kind in ("o", "r") and isinstance(text, str) else None


def _resized(text: str) -> tuple[int, int] | None:
    columns, _, rows = text.partition("x")
    return _bounded(int(rows), int(columns)) if rows.isdigit() and columns.isdigit() else None


def _bounded(rows: int, columns: int) -> tuple[int, int] | None:
    return (rows, columns) if 1 <= rows <= _LARGEST and 1 <= columns <= _LARGEST else None
