"""pexpect's matching over a terminal's bounded buffer.

Only `read_nonblocking` is replaced. Patterns are RE2 objects given to `expect_list` (a backtracking pattern would hold
the
interpreter lock and stop every thread of the worker). pexpect counts time with the wall clock, so waits are cut into
slices under a
monotonic deadline of our own.
"""

from __future__ import annotations

import codecs
import io
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pexpect
import re2
from pexpect.spawnbase import SpawnBase

from oah.errors import InvalidRequest
from oah.ports.terminal import Terminal

UNMATCHED_CHARACTERS = 262144
"""pexpect keeps unmatched text for ever; we keep this much."""
SEARCH_WINDOW = 32768
"""Twice a read: pexpect looks only into the last so many characters, so a read must not be longer."""
SLICE_SECONDS = 0.25
"""Longest wait before the caller looks at cancel, exit and deadlines again."""
_READ = 16384


class Listener(Protocol):
    """Whoever wants the decoded text as it passes by."""

    def write(self, text: str) -> object: ...

    def flush(self) -> object: ...


if TYPE_CHECKING:  # the stubs make generic what the library does not
    _Base = SpawnBase[str]
else:
    _Base = SpawnBase


class BufSpawn(_Base):
    """A pexpect spawn that reads a Terminal."""

    _before: io.StringIO
    _decoder: codecs.IncrementalDecoder

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(
            timeout=SLICE_SECONDS,
            maxread=_READ,
            searchwindowsize=SEARCH_WINDOW,
            encoding="utf-8",
            codec_errors="replace",
        )
        self.delayafterread = None
        self.terminal = terminal

    def read_nonblocking(self, size: int = 1, timeout: float | None = None) -> str:
        """For pexpect: some text, TIMEOUT or EOF."""
        if timeout == -1:
            timeout = self.timeout
        if self._before.tell() > UNMATCHED_CHARACTERS:
            kept = self._before.getvalue()[-UNMATCHED_CHARACTERS // 2 :]
            self._before = io.StringIO()
            self._before.write(kept)
        data = self.terminal.take(_READ, None if timeout is None else timedelta(seconds=max(timeout, 0)))
        if data is None:
            raise pexpect.TIMEOUT("nothing read in time")
        if not data:
            self.flag_eof = True
            raise pexpect.EOF("the terminal's end")
        text = self._decoder.decode(data, final=False)
        if self.logfile_read is not None:
            self.logfile_read.write(text)
        return text

    def isalive(self) -> bool:
        return not self.flag_eof


class Match:
    """Which pattern matched, and its groups."""

    __slots__ = ("groups", "index")

    def __init__(self, index: int, groups: tuple[str | None, ...]) -> None:
        self.index, self.groups = index, groups


class Ended:
    """Nobody holds the terminal any more."""


def compiled(pattern: str) -> Any:
    """An RE2 object. Raises InvalidRequest `invalid_profile` for what RE2 refuses."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        raise InvalidRequest(f"pattern {pattern!r}: {reason}", code="invalid_profile") from None


class Matcher:
    """Waits for patterns in what a terminal says."""

    def __init__(self, terminal: Terminal) -> None:
        self._spawn = BufSpawn(terminal)

    def listen(self, listener: Listener | None) -> None:
        """Who gets the text from now on. What was read beyond the last match is given at once."""
        self._spawn.logfile_read = listener
        if listener is not None and self._spawn.buffer:
            listener.write(self._spawn.buffer)

    def look(self, patterns: list[Any], *, seconds: float = SLICE_SECONDS) -> Match | Ended | None:
        """The first match within a slice; None when there is none yet (what was read is not lost)."""
        end = time.monotonic() + min(seconds, SLICE_SECONDS)
        while True:
            left = max(0.0, end - time.monotonic())
            index = self._spawn.expect_list([*patterns, pexpect.EOF, pexpect.TIMEOUT], timeout=left)
            if index < len(patterns):
                found: Any = self._spawn.match
                return Match(index, found.groups())
            if index == len(patterns):
                return Ended()
            if time.monotonic() >= end:
                return None
