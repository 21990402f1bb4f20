"""What travels between a terminal and those who watch it: binary frames of its bytes, JSON frames about it.

The same frames go from a worker to an API process and from there to a viewer. A binary frame is one letter, an offset
(8 bytes, big endian) and bytes: `S` a snapshot (paints the whole screen; output that follows begins at the offset), `O`
output (its first byte has the offset). Whoever has painted a snapshot ignores output before its offset.

JSON frames carry a `type`. From the terminal: `size`, `bound`, `unbound`, `skipped`, `writer`, `granted`, `taken_over`,
`refused`, `waiting`, `end`. From a viewer: `snapshot` (send one), `resize`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SUBPROTOCOL = "oah.terminal.v1"
"""Name of this form among WebSocket's subprotocols."""
BEARER = "bearer."
"""Browsers cannot set headers: a key may stand among the subprotocols offered, behind this."""

LONGEST_INPUT = 64 * 1024
"""Bytes of one frame that a viewer types."""
LONGEST_FRAME = 8 * 1024 * 1024
PIECE = 64 * 1024
"""Output bytes of one frame at most."""
MOST_ROWS = 500
MOST_COLUMNS = 1_000

_HEAD = struct.Struct(">cQ")
_SNAPSHOT, _OUTPUT = b"S", b"O"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole screen as bytes that paint it."""

    offset: int
    paint: bytes


@dataclass(frozen=True, slots=True)
class Output:
    """What the program wrote."""

    offset: int
    data: bytes

    def after(self, offset: int) -> bytes:
        """What of it has this offset or a later one."""
        return self.data[max(offset - self.offset, 0) :]


@dataclass(frozen=True, slots=True)
class Note:
    """A JSON frame."""

    type: str
    data: Mapping[str, Any]


Frame = Snapshot | Output | Note


def encoded(frame: Frame) -> bytes | str:
    """As sent: bytes for a binary frame, text for a JSON one."""
    match frame:
        case Snapshot():
            return _HEAD.pack(_SNAPSHOT, frame.offset) + frame.paint
        case Output():
            return _HEAD.pack(_OUTPUT, frame.offset) + frame.data
        case Note():
            return json.dumps({"type": frame.type, **frame.data})


def decoded(message: bytes | str) -> Frame | None:
    """None: no frame of ours."""
    if isinstance(message, str):
        return _note(message)
    if len(message) < _HEAD.size:
        return None
    kind, offset = _HEAD.unpack_from(message)
    rest = message[_HEAD.size :]
    if kind == _SNAPSHOT:
        return Snapshot(offset, rest)
    return Output(offset, rest) if kind == _OUTPUT else None


def _note(text: str) -> Note | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("type"), str):
        return None
    return Note(said.pop("type"), said)


def size_of(data: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of a `resize`; None when it names none that a terminal can have."""
    rows, columns = data.get("rows"), data.get("cols")
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    fits = 2 <= rows <= MOST_ROWS and 10 <= columns <= MOST_COLUMNS
    return (rows, columns) if fits else None
