"""A message as its recipient's program is given it: one line of ours, then the text.

The line says who sent it and which message it is, as we know it; nothing in the text can change that, and nothing in
the text is a mark that we act on. It also says how many lines are the message's, so that a text which contains such a
line itself is seen to.
"""

from __future__ import annotations

from oah.core.dialogue.injection import harmless
from oah.core.model.message import Sender

AGAIN = "it may have reached you before"


def spoken(message_id: str, sender: Sender, text: str, *, again: bool = False) -> str:
    """The whole text. ``again``: an earlier attempt may have given it."""
    body = harmless(text).rstrip("\n")
    lines = body.count("\n") + 1 if body else 0
    said = f"Message {message_id} from {_name(sender)}, {lines} {'line' if lines == 1 else 'lines'}"
    head = f"{said}; {AGAIN}:" if again else f"{said}:"
    return f"{head}\n{body}" if body else head


def _name(sender: Sender) -> str:
    """One line, whatever a name contains."""
    name = f"session {sender.session_id}" if sender.session_id is not None else sender.by or "somebody"
    if sender.run_id is not None:
        name += f" (run {sender.run_id})"
    return " ".join(harmless(name).split())
