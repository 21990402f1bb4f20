"""Which version a program says it is, and whether the rules of its profile were made for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+-]*)")


def said_version(text: str) -> str | None:
    """The first version in what a program says, without the words around it."""
    found = _VERSION.search(text)
    return found.group(1).rstrip(".") if found is not None else None


def is_known(version: str, known: Sequence[str]) -> bool:
    """Whether one of these beginnings is its. Without any, every version is."""
    return not known or any(f"{version}.".startswith(prefix) for prefix in known)
