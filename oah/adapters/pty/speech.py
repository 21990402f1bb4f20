"""What others say to an agent while its turn runs: typed by the slot thread, once, and proved by what comes back.

The slot thread owns the terminal during a turn. Whoever speaks leaves the text here and waits; between two slices of
listening the slot thread types it, and what the terminal shows afterwards is searched for it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from datetime import timedelta

from oah.core.dialogue.text import strip_escapes
from oah.errors import AgentError
from oah.ports.commands import Delivery
from oah.ports.terminal import Terminal

PROOF_CHARACTERS = 80
"""The end of a text is looked for: screens wrap and cut."""
LOOSE_SECONDS = 2.0
"""A program that leaves its turn has dropped what it did not read by then; what was typed later may still lie there."""
_TYPING = timedelta(seconds=2)
_SEEN_CHARACTERS = 65536
_BLANK = re.compile(r"\s+")


class Said:
    """One text, `typed_at` (monotonic seconds) and what became of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.proof = _BLANK.sub("", text)[-PROOF_CHARACTERS:]
        self.seen = ""
        self.typed_at: float | None = None
        self.delivery: Delivery | None = None


class Speech:
    """Between one slot thread (`begin`, `step`, `heard`, `end`) and any other (`say`)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listens = False
        self._waiting: deque[Said] = deque()
        self._typed: list[Said] = []
        self.loose = False
        """Of the last turn: a text may lie unread in the terminal."""

    # -- any thread -------------------------------------------------------------------------------------------------

    def say(self, text: str, timeout: timedelta) -> Delivery:
        """See ports.agent.Agent."""
        said = Said(text)
        with self._changed:
            if not self._changed.wait_for(lambda: self._listens, timeout.total_seconds()):
                return Delivery.MISSED
            self._waiting.append(said)
            self._changed.wait_for(lambda: said.delivery is not None, timeout.total_seconds())
            if said.delivery is None:
                if said in self._waiting:
                    self._waiting.remove(said)
                    said.delivery = Delivery.MISSED
                else:
                    said.delivery = Delivery.UNVERIFIED
            return said.delivery

    # -- the slot thread --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The turn listens from now on."""
        with self._changed:
            self._listens, self.loose = True, False
            self._changed.notify_all()

    def step(self, terminal: Terminal) -> None:
        """Type what waits. Blocks for as long as the program does not read, at most two seconds a text."""
        while (said := self.next()) is not None:
            try:
                terminal.write(_line(said.text, canonical=terminal.canonical()), _TYPING)
            except AgentError as error:
                gone = error.code in ("agent_gone", "line_too_long")
                self.settle(said, Delivery.MISSED if gone else Delivery.UNVERIFIED)

    @property
    def waits(self) -> bool:
        """Whether a text waits to be typed."""
        return bool(self._waiting)

    def next(self) -> Said | None:
        """The next text to type; whoever takes it types it, or settles it as missed."""
        with self._changed:
            if not self._waiting:
                return None
            said = self._waiting.popleft()
            said.typed_at = time.monotonic()
            self._typed.append(said)
            return said

    def heard(self, text: str) -> None:
        """What the terminal shows."""
        if not self._typed:
            return
        shown = _BLANK.sub("", strip_escapes(text))
        for said in self._typed:
            if said.delivery is None and said.proof:
                said.seen = (said.seen + shown)[-_SEEN_CHARACTERS:]
                if said.proof in said.seen:
                    self.settle(said, Delivery.DELIVERED)

    def end(self) -> None:
        """The turn is over: what was not typed was missed."""
        now = time.monotonic()
        with self._changed:
            self._listens = False
            for said in self._waiting:
                said.delivery = Delivery.MISSED
            self._waiting.clear()
            for said in self._typed:
                if said.delivery is not Delivery.DELIVERED:
                    said.delivery = said.delivery or Delivery.UNVERIFIED
                    self.loose = self.loose or now - (said.typed_at or now) < LOOSE_SECONDS
            self._typed.clear()
            self._changed.notify_all()

    def settle(self, said: Said, delivery: Delivery) -> None:
        """What became of it. A text that was missed was never typed."""
        with self._changed:
            said.delivery = said.delivery or delivery
            if delivery is Delivery.MISSED:
                self._typed.remove(said)
            self._changed.notify_all()


def _line(text: str, *, canonical: bool) -> bytes:
    """As typed: lines end by the return key, which a program that reads by lines gets as a newline."""
    line = text if text.endswith("\n") else text + "\n"
    return line.encode("utf-8", "replace") if canonical else line.replace("\n", "\r").encode("utf-8", "replace")
