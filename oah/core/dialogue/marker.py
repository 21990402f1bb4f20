"""How a program tells us, beside its text, that it began and ended a turn.

The marker is an operating system command that terminals ignore: ``ESC ] 7337 ; <nonce> ; <turn> ; <word> [; <hex>]
BEL``. The nonce
is drawn when the agent is opened and the escape character is made by the program, so neither an echo of the input, nor
the input
shown as text, nor the output of another session can be taken for one. Word is ``begin``, or the status of the turn in
decimal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAFE = re.compile(r"[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn is over: its status, and what the program says about it."""

    status: int
    message: str


def begin_pattern(nonce: str, turn: int) -> str:
    """Pattern (RE2 and re) of the marker before the first output of a turn."""
    return f"\\x1b\\]7337;{_safe(nonce)};{turn};begin\\x07"


def end_pattern(nonce: str, turn: int) -> str:
    """Pattern of the marker after the last output of a turn; group 1 the status, group 2 the message in hex."""
    return f"\\x1b\\]7337;{_safe(nonce)};{turn};([0-9]{{1,3}})(?:;([0-9a-f]*))?\\x07"


def prompt_pattern(nonce: str) -> str:
    """Pattern of any marker that says that the program has read nothing yet of what comes next."""
    return f"\\x1b\\]7337;{_safe(nonce)};[0-9]+;[0-9]{{1,3}}(?:;[0-9a-f]*)?\\x07"


def ended(status: str, message: str | None) -> Ended:
    """From the groups of `end_pattern`."""
    try:
        text = bytes.fromhex(message or "").decode(errors="replace")
    except ValueError:
        text = ""
    return Ended(int(status), text)


def _safe(nonce: str) -> str:
    if not _SAFE.match(nonce):
        raise ValueError(f"not a nonce: {nonce!r}")
    return re.escape(nonce)


def injection(template: str, *, nonce: str, turn: int, status: int, run_id: str, attempt: int) -> str:
    """The line to type for this turn. Everything that goes in is a number or a plain name, so nothing needs quoting."""
    run = run_id if _SAFE.match(run_id) else re.sub(r"[^A-Za-z0-9_.-]", "_", run_id) or "_"
    values = {"nonce": nonce, "turn": str(turn), "status": str(status), "run": run, "attempt": str(attempt)}
    line = template
    for name, value in values.items():
        line = line.replace("{" + name + "}", value)
    return line


def input_fault(text: str, *, limit: int) -> tuple[str, str] | None:
    """(code, reason) why an input cannot be given to a program in a terminal, None when it can."""
    position = text.find("\0")
    if position >= 0:
        return "input_rejected", f"the input has a NUL character at position {position}"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return "input_rejected", f"the input has a lone surrogate at position {error.start}"
    if size > limit:
        return "input_too_large", f"the input has {size} bytes, more than {limit}"
    return None
