"""Text that both databases take: no NUL (PostgreSQL refuses it), no lone surrogates (no encoding has them).

Cleaned or refused before a batch is built, so that one member's bad text never fails its neighbours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from oah.errors import InvalidRequest

ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL as JSON writes it, and not the text of that escape."""
HINT = "send valid Unicode text without NUL"
REPLACEMENT = "\ufffd"


def sound(text: str) -> bool:
    """Whether both databases store the text as it is."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cleaned(text: str) -> str:
    """The text with what cannot be stored replaced: for what agents print, which is never refused."""
    if sound(text):
        return text
    return text.replace("\0", REPLACEMENT).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cleaned_or_none(text: str | None) -> str | None:
    """``cleaned``, and None stays None."""
    return None if text is None else cleaned(text)


def require_sound(**texts: str | None) -> None:
    """Raise InvalidRequest that names the first text which cannot be stored: for what people send."""
    for name, text in texts.items():
        if text is not None and not sound(text):
            raise InvalidRequest(
                f"{name} contains a NUL or a lone surrogate", hint="send valid Unicode text without NUL"
            )


def dumped(name: str, value: Mapping[str, Any] | None) -> str:
    """JSON text of a mapping. Raises InvalidRequest where it cannot be stored."""
    if not value:
        return "{}"
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name} is no JSON object: {error}") from error
    if ESCAPED_NUL.search(text):
        raise InvalidRequest(f"{name} contains a NUL", hint=HINT)
    require_sound(**{name: text})
    return text
