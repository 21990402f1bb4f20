"""The whole of a reply that the screen does not show, from the program's own record."""

from __future__ import annotations

import time
from contextlib import suppress

from oah.adapters.pty.resume import Conversation
from oah.adapters.pty.screen_terminal import SLICE, ScreenTerminal
from oah.errors import AgentError

RECORD_SECONDS = 1.0
"""How long it is waited for: a program may write it down a moment after it has shown it."""


def recorded_reply(screen: ScreenTerminal, conversation: Conversation, text: str, shown: str) -> str | None:
    """What the program has said to our `text`; None where its profile names no record, or none that ends in what is
    `shown`."""
    rules = screen.rules.recorded
    if rules is None:
        return None
    end = time.monotonic() + RECORD_SECONDS
    whole = conversation.said(text, shown, rules)
    with suppress(AgentError):
        while whole is None and time.monotonic() < end and screen.pump(SLICE):
            whole = conversation.said(text, shown, rules)
    return whole
