"""A terminal together with its screen: what the program writes is drawn and answered, what we press is remembered.

Used by one thread at a time: the slot thread during a turn, the attendant otherwise. Only that thread takes and types,
so that no answer of the terminal lands in the middle of a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from oah.adapters.pty.screen import ScreenModel
from oah.adapters.pty.terminal import PtyTerminal
from oah.core.dialogue import turn
from oah.core.dialogue.reading import Reading, read
from oah.core.dialogue.screen import Screen
from oah.core.dialogue.screen_profile import ScreenProfile
from oah.errors import AgentError

SLICE = timedelta(seconds=0.1)
"""Longest wait before a deadline or a cancel is looked at again."""

KEY = timedelta(seconds=2)
"""How long a program may take to read a key."""

_SHOWN = 0.3
"""Seconds within which a program shows a key."""
_READ = 65_536
_ANSWER = timedelta(seconds=0.2)
_REST = 3.0
"""While a program floods, looking costs at most a quarter of the time: after a look it is only read for three times as
long as the look took."""
_DEAR = 0.005
_LATE = 0.2
_LONGEST_REST = 0.5
_ROUNDS = 64


class ScreenTerminal:
    """See the module."""

    def __init__(self, terminal: PtyTerminal, model: ScreenModel, rules: ScreenProfile) -> None:
        self.terminal = terminal
        self.model = model
        self.rules = rules
        self.output_at = self.key_at = time.monotonic()
        """When the program last wrote, and when we last pressed something (monotonic seconds)."""
        self.heard_at = self.output_at
        """When we last listened to it. What we do between two times of listening, and what others do with our
        processor meanwhile, is no silence of the program."""
        self._lost = 0
        self._standing: turn.Standing | None = None
        self._left_at = time.monotonic()

    @property
    def quiet(self) -> float:
        """Seconds since the last output or key, as far as we have listened."""
        return max(self.heard_at - max(self.output_at, self.key_at), 0.0)

    def stood(self, reading: Reading) -> float:
        """Seconds for which the dialog that it shows has stood, though something in it ticks; without one as `quiet`.
        For whoever drives the terminal."""
        if reading.dialog is None:
            self._standing = None
            return self.quiet
        before = self._standing
        self._standing = turn.standing(before, reading.dialog, output_at=self.output_at, key_at=self.key_at)
        return self._standing.stood(self.heard_at, self.rules.turn)

    @property
    def keys_unseen(self) -> bool:
        """Whether a person pressed a key so lately that the screen may not show it yet."""
        return time.monotonic() - self.terminal.pressed_at < _SHOWN

    def pump(self, timeout: timedelta) -> bool:
        """Take what the program wrote, answer what it asks. False at the terminal's end. Raises AgentError when it
        does not read the answers."""
        begun = time.monotonic()
        cost = begun - self._left_at
        alive, took = self._take(timeout, KEY)
        if alive and took and cost > _DEAR:
            end = begun + min(cost * _REST, _LONGEST_REST)
            while alive and (left := end - time.monotonic()) > 0:
                alive, _ = self._take(timedelta(seconds=left), KEY)
        self._left_at = time.monotonic()
        return alive

    def catch_up(self) -> bool:
        """Take what waits, without waiting. False at the terminal's end."""
        alive = True
        for _ in range(_ROUNDS):
            alive, took = self._take(timedelta(0), _ANSWER)
            if not alive or not took:
                break
        self._left_at = time.monotonic()
        return alive

    def drain(self, seconds: float) -> None:
        """After an exit: what was still on its way, up to the terminal's end."""
        end = time.monotonic() + seconds
        with suppress(AgentError):
            while self.pump(timedelta(seconds=0.05)) and time.monotonic() < end:
                pass

    def _take(self, timeout: timedelta, patience: timedelta) -> tuple[bool, bool]:
        """(the terminal has not ended, something was there)."""
        begun = time.monotonic()
        data = self.terminal.take(_READ, timeout)
        if data is None and time.monotonic() - begun > timeout.total_seconds() + _LATE:
            data = self.terminal.take(_READ, SLICE)  # who reads for us did not get the processor either
        self.heard_at = time.monotonic()
        if data is None:
            return True, False
        if not data:
            return False, False
        if self.terminal.dropped != self._lost:
            self._lost = self.terminal.dropped
            self.model.skipped()
        self.output_at = self.heard_at
        answers = self.model.feed(data, upto=self.terminal.position)
        if answers:
            self.terminal.write(answers, patience)
        return True, True

    def press(self, key: bytes) -> None:
        """Type a key. Raises AgentError."""
        self.terminal.write(key, KEY)
        self.key_at = time.monotonic()

    def write(self, data: bytes, timeout: timedelta, *, stop: Callable[[], bool]) -> None:
        """Type a text, in one piece. Raises AgentError; `stop` ends it at once."""
        self.terminal.write(data, timeout, stop=stop)
        self.key_at = time.monotonic()

    def look(self) -> Screen:
        """The screen as it is."""
        return self.model.look()

    def read(self) -> Reading:
        """The judgement about it."""
        return read(self.look(), self.rules.screen)
