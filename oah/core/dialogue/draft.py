"""Whether somebody's half-typed line stands in a line-wise program: judged by the keys, for such a program shows no
composer."""

from __future__ import annotations

import re

_ENDS = b"\r\n\x03\x04\x15"
"""Return, newline, ^C, ^D, ^U: afterwards the line is empty."""
_BACK = b"\x08\x7f"
_GIVEN = re.compile(rb"[\r\n\x03]")


def gives(keys: bytes) -> bool:
    """Whether a line-wise program gets something to do by these keys. It asks for the next line when that is done, and
    may throw away what it was sent before."""
    return _GIVEN.search(keys) is not None


def draft_after(draft: int, data: bytes) -> int:
    """How many characters may stand in the line after these keys; `draft`: before them. Anything that is no known end
    counts, a key for history too."""
    for byte in data:
        if byte in _ENDS:
            draft = 0
        elif byte in _BACK:
            draft = max(draft - 1, 0)
        else:
            draft += 1
    return draft
