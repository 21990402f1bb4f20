"""Terminal output as plain text: escape sequences out, line ends normal, what a line overwrote gone. Bounded, head and
tail kept.

Good for programs that write lines (shells, interpreters, commands). Full-screen programs need a screen, not this.
"""

from __future__ import annotations

import re

LIMIT = 1024 * 1024
"""UTF-8 bytes of an answer kept in the row; source: the defaults of the protocol."""

# Each alternative is linear: no nested repetition.
_ESCAPES = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]"  # CSI
    "|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)"  # OSC, DCS, SOS, PM, APC up to BEL or ST
    "|\x1b[ -/]*[0-~]"  # two- and three-character sequences
    "|\x1b"
)
_CONTROLS = {code: None for code in (*range(32), 127) if chr(code) not in "\t\n\r\x1b"}
_UNFINISHED = re.compile("\x1b(?:\\[[0-?]*[ -/]*|[\\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\\Z")
_HELD = 4096


def strip_escapes(text: str) -> str:
    """Text without escape sequences and control characters; `\\r\\n` is `\\n`, an overwritten beginning of a line is
    gone."""
    if "\x08" in text:
        text = re.sub("[^\n]\x08", "", text)
    text = _plain(text)
    if "\r" not in text:
        return text
    return "\n".join(_last_written(line) if "\r" in line else line for line in text.split("\n"))


def _plain(text: str) -> str:
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if not text.isprintable():
        text = text.replace("\r\n", "\n").translate(_CONTROLS)
    return text


def _last_written(line: str) -> str:
    """What a line shows when each return began it anew."""
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


class Live:
    """Cleans a stream piece by piece for progress events: a sequence or line end that is cut in two is held back."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What can be shown now."""
        text = self._held + text
        cut = len(text)
        unfinished = _UNFINISHED.search(text, max(0, cut - _HELD))
        if unfinished is not None:
            cut = unfinished.start()
        while cut > 0 and text[cut - 1] == "\r":
            cut -= 1
        if len(text) - cut > _HELD:
            cut = len(text)
        self._held = text[cut:]
        return _plain(text[:cut]).replace("\r", "\n")


class Answer:
    """Collects an answer of any length in bounded memory: the first and the last half of the limit, and how much was
    between.

    Cleaning happens once, at the end; a flood costs only slicing.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._head: list[str] = []
        self._head_size = 0
        self._tail: list[str] = []
        self._tail_size = 0
        self.characters = 0

    def feed(self, text: str) -> None:
        """The next piece."""
        self.characters += len(text)
        room = self._limit - self._head_size
        if room > 0:
            self._head.append(text[:room])
            self._head_size += len(self._head[-1])
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_size += len(text)
            if self._tail_size > 4 * self._limit:
                self._trim()

    def _trim(self) -> None:
        kept = "".join(self._tail)[-self._limit :]
        self._tail, self._tail_size = [kept], len(kept)

    @property
    def whole(self) -> bool:
        """Whether nothing was dropped so far."""
        return self.characters == self._head_size + self._tail_size

    def text(self) -> str:
        """The cleaned answer, at most the limit in UTF-8 bytes, with a line in the middle that says how much is
        missing."""
        head, tail = "".join(self._head), "".join(self._tail)
        dropped = self.characters - len(head) - len(tail)
        if dropped == 0:
            return bounded(strip_escapes(head + tail), limit=self._limit)
        return bounded(strip_escapes(head), strip_escapes(tail), dropped=dropped, limit=self._limit)


def bounded(head: str, tail: str = "", *, dropped: int = 0, limit: int = LIMIT) -> str:
    """Head and tail together in at most `limit` bytes, cut in the middle at character boundaries."""
    first, last = head.encode(errors="replace"), tail.encode(errors="replace")
    if not dropped and len(first) + len(last) <= limit:
        return (first + last).decode()
    room = max(0, (limit - 80) // 2)
    both = first + last
    front = first[:room] if dropped else both[:room]
    back = (both[max(len(both) - room, len(front)) :]) if room else b""
    missing = len(both) - len(front) - len(back) + dropped
    middle = f"\n[... about {missing} bytes left out ...]\n"
    return front.decode(errors="ignore") + middle + back.decode(errors="ignore")
