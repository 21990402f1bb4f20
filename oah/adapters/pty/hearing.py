"""What a slot thread does with an agent's text: the answer, progress events, and a blob for what does not fit into the
row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from oah.core.dialogue.text import Answer, Live, strip_escapes
from oah.errors import OahError
from oah.ports.agent import MAX_RESULT_BYTES
from oah.ports.blobs import Blobs

PROGRESS_SECONDS = 0.25
PROGRESS_CHARACTERS = 1024 * 1024
"""Progress events: at most four a second and 1 MiB in all; source: architecture, Bounds."""
SPOOL_CHARACTERS = 64 * 1024 * 1024
_SPOOL_PIECE = 262144

_log = logging.getLogger(__name__)


class Hearing:
    """Listens to one turn. Used by the slot thread only."""

    def __init__(
        self, on_output: Callable[[str], None], blobs: Blobs, key: str, *, heard: Callable[[str], None]
    ) -> None:
        self._on_output = on_output
        self._heard = heard
        self._blobs = blobs
        self._key = key
        self._answer = Answer(MAX_RESULT_BYTES)
        self._live = Live()
        self._shown: list[str] = []
        self._shown_characters = 0
        self._last = 0.0
        self._spool: list[str] = []
        self._spooled = 0
        self._waiting = 0
        self._spooling = False

    def write(self, text: str) -> None:
        """The next piece of decoded output: answer and progress at once."""
        self._heard(text)
        self.keep(text)
        self.show(self._live.feed(text))

    def keep(self, text: str) -> None:
        """The next piece of the answer."""
        if not self._spooling and self._answer.characters + len(text) > MAX_RESULT_BYTES:
            self._spooling = True
            self._keep(self._answer.text())
        self._answer.feed(text)
        if self._spooling and self._spooled < SPOOL_CHARACTERS:
            self._keep(strip_escapes(text))

    def show(self, text: str) -> None:
        """Progress, as a person reads it."""
        shown = text[: PROGRESS_CHARACTERS - self._shown_characters]
        self._shown_characters += len(shown)
        self._shown.append(shown)
        self.tick()

    def goes_to(self, on_output: Callable[[str], None]) -> None:
        """Who is told of progress from now on."""
        self._on_output = on_output

    def flush(self) -> None:
        """For pexpect."""

    def tick(self) -> None:
        """Show what is new, when it is time."""
        if self._shown and time.monotonic() - self._last >= PROGRESS_SECONDS:
            self._show()

    def _show(self) -> None:
        text, self._shown = "".join(self._shown), []
        self._last = time.monotonic()
        if text:
            self._on_output(text)

    def finish(self) -> tuple[str, str | None]:
        """(the answer's text, the blob's key when it was longer)."""
        self._show()
        if self._spooling:
            self._store()
        return self._answer.text(), self._key if self._spooling and self._spooled else None

    def _keep(self, text: str) -> None:
        self._spool.append(text)
        self._waiting += len(text)
        if self._waiting >= _SPOOL_PIECE:
            self._store()

    def _store(self) -> None:
        data, self._spool, self._waiting = "".join(self._spool), [], 0
        try:
            self._blobs.append(self._key, data.encode(errors="replace"))
            self._spooled += len(data)
        except OahError as error:
            _log.warning("the rest of a long answer is lost: %s", error)
            self._spooled = max(self._spooled, SPOOL_CHARACTERS) if self._spooled else 0
