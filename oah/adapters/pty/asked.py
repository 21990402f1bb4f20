"""The question that a turn was left with: does the program still ask it?

Judged on the dialog, not on the question's text: what ticks in it is none of what it asks (core/dialogue/ticking.py).
"""

from __future__ import annotations

import time
from datetime import timedelta

from oah.adapters.pty.screen_terminal import ScreenTerminal
from oah.core.dialogue import ticking
from oah.core.dialogue.reading import Condition, Dialog, Reading, stands
from oah.core.model.question import Question
from oah.core.policy.answers import UNKNOWN

MOST_ALONE = 3
"""So many times a turn is left and gone on with because its dialog became another of its name with no key pressed;
then the question stays until the dialog has gone or somebody answers, and what does not fit is asked about anew."""


class AskedQuestion:
    """`put` by whoever drives the turn; `asks` from any thread while nobody does."""

    def __init__(self, screen: ScreenTerminal) -> None:
        self.question: Question | None = None
        self.dialog: Dialog | None = None
        """As it was seen last; None where no rule knows what is asked."""
        self._screen = screen
        self._name: str | None = None
        self._shape = ticking.Shape(())
        """Of the whole screen, where no rule knows what is asked."""
        self._changes = -1
        """What the screen had changed when it asked, or was seen to ask the same."""
        self._since = 0.0
        self._seen = 0.0
        """When the dialog was seen last."""
        self._alone = 0
        """How often in a row its dialog became another one while nobody pressed a key."""
        self._is_left = False

    def put(self, dialog: Dialog | None) -> None:
        """What it asks now; a question may come of it, unless a policy answers."""
        name = UNKNOWN if dialog is None else dialog.name
        if name != self._name or self._is_pressed():
            self._alone = 0
        elif self._is_left:
            self._alone += 1
        self._is_left = False
        self.dialog, self._name, self._shape = dialog, name, self._whole()
        self._changes, self._since = self._screen.model.changes, time.monotonic()
        self._seen = self._since

    def left(self) -> None:
        """The turn goes on though nobody has answered through us."""
        self._is_left = True

    def asks(self) -> bool:
        """Whether the question is to stay: a program that counts in a form that nobody knows is not asked about for
        ever."""
        if self.question is None or self.stands():
            return True
        return self._alone >= MOST_ALONE and _name(self._screen.read()) == self._name

    def stands(self) -> bool:
        """Whether an answer to it would be one to what the screen shows. What is seen last is what is compared next: a
        countdown only goes down."""
        now, changes = time.monotonic(), self._screen.model.changes
        if changes == self._changes:
            self._seen = now
            return True
        reading = self._screen.read()
        passed = timedelta(seconds=now - self._seen)
        if not stands(self.dialog, reading, passed=passed):
            return False
        if self.dialog is None:
            return ticking.is_typed_into(self._shape, self._whole(), passed=passed)
        if not self.dialog.free:
            self.dialog, self._seen, self._changes = reading.dialog, now, changes
        return True

    def _whole(self) -> ticking.Shape:
        return ticking.shape([line for line in self._screen.look().lines if line.strip()])

    def _is_pressed(self) -> bool:
        """Whether a key was pressed since it asked, by us or by somebody at the terminal."""
        return max(self._screen.key_at, self._screen.terminal.pressed_at) > self._since


def _name(reading: Reading) -> str | None:
    """Of what is asked; None: nothing."""
    if reading.dialog is not None:
        return reading.dialog.name
    return UNKNOWN if reading.condition is Condition.UNRECOGNISED else None
