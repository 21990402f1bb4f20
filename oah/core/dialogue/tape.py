"""The last bytes of a terminal by their offsets: many readers, each of them only a number, nobody ever waits.

Offsets count every byte since the terminal was opened. What is older than the tape holds is gone; a reader that needs
it has fallen behind and starts again from a snapshot.
"""

from __future__ import annotations

TAPE_BYTES = 256 * 1024
"""Kept at least, once so much was written; at most twice as much."""


class Tape:
    """Not thread safe: whoever owns it, locks it."""

    def __init__(self, *, keep: int = TAPE_BYTES, start: int = 0) -> None:
        self._keep = keep
        self._kept = bytearray()
        self._start = start

    @property
    def start(self) -> int:
        """Offset of the oldest byte that is there."""
        return self._start

    @property
    def end(self) -> int:
        """Offset that the next byte will have."""
        return self._start + len(self._kept)

    def append(self, data: bytes) -> None:
        """What was written next."""
        self._kept += data
        if len(self._kept) > 2 * self._keep:
            gone = len(self._kept) - self._keep
            del self._kept[:gone]
            self._start += gone

    def read(self, offset: int, limit: int) -> bytes | None:
        """At most so many bytes from `offset` on, b'' at the end. None: they are gone, or never were."""
        if not self._start <= offset <= self.end:
            return None
        at = offset - self._start
        return bytes(self._kept[at : at + limit])

    def put(self, offset: int, data: bytes) -> bool:
        """Bytes whose offset is known: what is there already is not taken twice. False: some before them are missing,
        so the tape begins anew with them."""
        if offset > self.end or offset + len(data) < self._start:
            self.restart(offset)
            self._kept += data
            return False
        if (new := data[self.end - offset :] if offset < self.end else data) and offset + len(data) > self.end:
            self.append(new)
        return True

    def restart(self, offset: int) -> None:
        """Forget everything; the next byte has this offset."""
        self._kept = bytearray()
        self._start = offset
