"""What a program writes to its terminal, cut into text to draw, modes it sets, and questions it asks.

A state machine that lets a whitelist through and drops everything else: escape sequences that no emulator here knows
are neither drawn as rubbish nor given to one that raises on them. State is kept over chunks, so it does not matter
where a read cuts; what is dropped (titles, images, payloads) is never buffered, so a flood costs no memory.

Sources of the grammar: ECMA-48 and ECMA-35; of the sequences in use: recordings of the programs themselves.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

LONGEST_CSI = 256
"""Characters of a control sequence; a longer one is none."""

LONGEST_ASK = 128
"""Characters kept of an OSC or DCS string: what is asked fits; anything longer says something and asks nothing."""

MOST_VALUE = 9_999
"""Larger parameters mean this (as xterm's emulators have it)."""


class Ask(StrEnum):
    """Questions a program may ask its terminal."""

    STATUS = "status"
    CURSOR = "cursor"
    CURSOR_EXTENDED = "cursor_extended"
    DEVICE = "device"
    DEVICE_SECONDARY = "device_secondary"
    VERSION = "version"
    KEYBOARD = "keyboard"
    MODE = "mode"
    MODE_ANSI = "mode_ansi"
    COLOUR = "colour"
    PALETTE = "palette"
    SIZE_CELLS = "size_cells"
    SIZE_PIXELS = "size_pixels"
    SETTING = "setting"
    CAPABILITY = "capability"


@dataclass(frozen=True, slots=True)
class Query:
    """A question; `argument`: of what (the number of a mode or colour, the name of a capability)."""

    ask: Ask
    argument: str = ""


@dataclass(frozen=True, slots=True)
class ModeSet:
    """Private modes that are switched on or off, e.g. 2004 (bracketed paste), 1049 (the other screen)."""

    modes: tuple[int, ...]
    on: bool


Piece = str | Query | ModeSet
"""Text with whitelisted sequences only, to be drawn; or something to know or answer at exactly this point."""


class _State(Enum):
    GROUND = auto()
    ESCAPE = auto()
    INTERMEDIATE = auto()
    CSI = auto()
    STRING = auto()
    STRING_ESCAPE = auto()


_PLAIN = re.compile(r"[^\x00-\x1f\x7f-\x9f]+")
_IN_STRING = re.compile(r"[^\x07\x18\x1a\x1b\x9c]+")
_DRAWN = frozenset("\x07\x08\t\n\x0b\x0c\r")
_ESCAPES = frozenset("DEMH78c")
_STRINGS = {"]": "]", "P": "P", "X": "X", "^": "^", "_": "_"}
_PARAMETERS = {
    **dict.fromkeys("@ABCDEFGLMPXadeg", 1),
    **dict.fromkeys("Hfr", 2),
    "J": 1,
    "K": 1,
}
"""Finals that are drawn and how many parameters they take at most."""

_ERASE = {"J": frozenset((0, 1, 2, 3)), "K": frozenset((0, 1, 2)), "g": frozenset((0, 3))}
"""Finals whose parameter is a choice."""

_OTHER_SCREENS = frozenset((47, 1047, 1049))
_DRAWN_MODES = frozenset((5, 6, 7, 25))
"""Private modes that change what is drawn: reverse video, origin, wrapping, the cursor."""

_ASK_CSI = {
    "5n": Query(Ask.STATUS),
    "6n": Query(Ask.CURSOR),
    "?6n": Query(Ask.CURSOR_EXTENDED),
    "c": Query(Ask.DEVICE),
    "0c": Query(Ask.DEVICE),
    ">c": Query(Ask.DEVICE_SECONDARY),
    ">0c": Query(Ask.DEVICE_SECONDARY),
    ">q": Query(Ask.VERSION),
    ">0q": Query(Ask.VERSION),
    "?u": Query(Ask.KEYBOARD),
    "14t": Query(Ask.SIZE_PIXELS),
    "18t": Query(Ask.SIZE_CELLS),
}
_ASK_MODE = re.compile(r"(\??)(\d{1,5})\$p\Z")
_ASK_COLOUR = re.compile(r"(1[0-9]);\?\Z")
_ASK_PALETTE = re.compile(r"4;(\d{1,3});\?\Z")


class Cleaner:
    """`feed` bytes as they were read; one per terminal."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = _State.GROUND
        self._kept = ""
        self._kind = ""
        self._pieces: list[Piece] = []
        self._text: list[str] = []

    def feed(self, data: bytes) -> list[Piece]:
        """What these bytes add, in order. Never raises."""
        text = self._decode.decode(data)
        at = 0
        while at < len(text):
            at = self._step(text, at)
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _step(self, text: str, at: int) -> int:
        """Take one character, or a run of them that mean the same; where the next begins."""
        run = None
        if self._state is _State.GROUND:
            run = _PLAIN.match(text, at)
            if run:
                self._text.append(run.group())
        elif self._state is _State.STRING:
            run = _IN_STRING.match(text, at)
            if run and len(self._kept) <= LONGEST_ASK:
                self._kept += run.group()[: LONGEST_ASK + 1 - len(self._kept)]
        if run:
            return run.end()
        _TAKE[self._state](self, text[at])
        return at + 1

    # --- states ---

    def _ground(self, char: str) -> None:
        if char == "\x1b":
            self._state, self._kept = _State.ESCAPE, ""
        elif char in _DRAWN:
            self._text.append(char)

    def _escape(self, char: str) -> None:
        if char == "[":
            self._state = _State.CSI
        elif char in _STRINGS:
            self._state, self._kind = _State.STRING, char
        elif "\x20" <= char <= "\x2f":
            self._state = _State.INTERMEDIATE
        elif char == "\x1b":
            self._kept = ""
        else:
            self._state = _State.GROUND
            if char in _ESCAPES:
                self._text.append("\x1b" + char)
            elif char in _DRAWN:
                self._text.append(char)

    def _intermediate(self, char: str) -> None:
        """Character sets and the like: dropped whole."""
        if char == "\x1b":
            self._state, self._kept = _State.ESCAPE, ""
        elif not "\x20" <= char <= "\x2f":
            self._state = _State.GROUND

    def _csi(self, char: str) -> None:
        if "\x20" <= char <= "\x3f":
            if len(self._kept) < LONGEST_CSI:
                self._kept += char
        elif "\x40" <= char <= "\x7e":
            self._state = _State.GROUND
            if len(self._kept) < LONGEST_CSI:
                self._control(self._kept, char)
        elif char == "\x1b":
            self._state, self._kept = _State.ESCAPE, ""
        elif char in "\x18\x1a":
            self._state = _State.GROUND
        elif char in _DRAWN:
            self._text.append(char)

    def _string(self, char: str) -> None:
        if char == "\x1b":
            self._state = _State.STRING_ESCAPE
            return
        self._state = _State.GROUND
        if char in "\x07\x9c":
            self._said()

    def _string_escape(self, char: str) -> None:
        """A string ends with ESC and a backslash; another ESC sequence ends it as well, unsaid."""
        if char == "\\":
            self._state = _State.GROUND
            self._said()
        else:
            self._state, self._kept = _State.ESCAPE, ""
            self._escape(char)

    # --- what was said ---

    def _said(self) -> None:
        """An OSC or DCS string has ended: some ask."""
        body = self._kept
        if len(body) > LONGEST_ASK:
            return
        if self._kind == "]":
            if found := _ASK_COLOUR.match(body):
                self._ask(Query(Ask.COLOUR, found.group(1)))
            elif found := _ASK_PALETTE.match(body):
                self._ask(Query(Ask.PALETTE, found.group(1)))
        elif self._kind == "P":
            if body.startswith("$q"):
                self._ask(Query(Ask.SETTING, body[2:]))
            elif body.startswith("+q"):
                self._ask(Query(Ask.CAPABILITY, body[2:]))

    def _control(self, body: str, final: str) -> None:
        if (asked := _ASK_CSI.get(body + final)) is not None:
            self._ask(asked)
        elif found := _ASK_MODE.match(body + final):
            self._ask(Query(Ask.MODE if found.group(1) else Ask.MODE_ANSI, found.group(2)))
        elif final in "hl":
            self._mode(body, on=final == "h")
        elif final == "m":
            self._colours(body)
        elif final in _PARAMETERS and _is_plain(body):
            self._drawn(body, final)

    def _mode(self, body: str, *, on: bool) -> None:
        final = "h" if on else "l"
        if body.startswith("?") and _is_plain(body[1:]):
            modes = tuple(_numbers(body[1:]))
            drawn = [str(mode) for mode in modes if mode in _DRAWN_MODES]
            if drawn:
                self._text.append(f"\x1b[?{';'.join(drawn)}{final}")
            self._flush()
            self._pieces.append(ModeSet(modes, on))
        elif body == "4":
            self._text.append(f"\x1b[4{final}")

    def _colours(self, body: str) -> None:
        """Sub-parameters are rewritten to what every emulator knows; private forms are none of colour."""
        if body and not all(char.isascii() and (char.isdigit() or char in ";:") for char in body):
            return
        parts = [_colour(part) for part in body.split(";")]
        self._text.append(f"\x1b[{';'.join(part for part in parts if part is not None)}m" if any(parts) else "\x1b[0m")

    def _drawn(self, body: str, final: str) -> None:
        numbers = _numbers(body)[: _PARAMETERS[final]]
        choice = _ERASE.get(final)
        if choice is not None and (numbers[0] if numbers else 0) not in choice:
            return
        self._text.append(f"\x1b[{';'.join(map(str, numbers))}{final}")

    def _ask(self, query: Query) -> None:
        self._flush()
        self._pieces.append(query)

    def _flush(self) -> None:
        if self._text:
            self._pieces.append("".join(self._text))
            self._text.clear()


_TAKE = {
    _State.GROUND: Cleaner._ground,
    _State.ESCAPE: Cleaner._escape,
    _State.INTERMEDIATE: Cleaner._intermediate,
    _State.CSI: Cleaner._csi,
    _State.STRING: Cleaner._string,
    _State.STRING_ESCAPE: Cleaner._string_escape,
}


def other_screen(piece: ModeSet) -> bool:
    """Whether the program goes to its other screen, or comes back."""
    return any(mode in _OTHER_SCREENS for mode in piece.modes)


def _is_plain(body: str) -> bool:
    return all(char in "0123456789;" for char in body)


def _numbers(body: str) -> list[int]:
    return [min(int(part[:6] or "0"), MOST_VALUE) for part in body.split(";")] if body else []


def _colour(part: str) -> str | None:
    """One parameter of SGR: `4:3` (curly) is `4`, `38:2::r:g:b` is `38;2;r;g;b`; None: nothing to say."""
    if ":" not in part:
        return part[:4] or "0"
    kind, *rest = part.split(":")
    values = [value[:4] for value in rest if value]
    if kind in ("38", "48") and values and values[0] == "2" and len(values) >= 4:
        return ";".join([kind, "2", *values[-3:]])
    if kind in ("38", "48") and values and values[0] == "5" and len(values) >= 2:
        return ";".join([kind, "5", values[1]])
    if kind == "4":
        return "24" if values[:1] == ["0"] else "4"
    return None
