"""Whether somebody's half-typed line stands in a line-wise program: judged by the keys, for such a program shows no
composer."""

from __future__ import annotations

_ENDS = b"\r\n\x03\x04\x15"
"""Return, newline, ^C, ^D, ^U: afterwards the line is empty."""
_BACK = b"\x08\x7f"


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
