"""The reply of a program, read from the record that it keeps of its conversation: whole where its screen was cut.

A record is a file of JSON documents, one a line. It counts only where it is seen to be the same turn: the last text of
a user in it that is the one we gave, and after it words whose end is what the screen shows, letter for letter (how they
were wrapped, framed or coloured says nothing). Else there is nothing here, and what was read from the screen stays.

The table ``[record]`` of a profile: ``said``, ``told``: where a line has what the program said and what a user told it
(`headless.Spot`); ``file``: the record, a glob below HOME with ``{ref}`` (default: that of ``[resume]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oah.core.dialogue.headless import Spot, spot
from oah.core.dialogue.records import parsed
from oah.core.dialogue.resuming import REF
from oah.core.dialogue.screen import folded
from oah.errors import InvalidRequest

ALIKE = 40
"""Folded characters at the end that are enough to know the reply by; a shorter one must be there as a whole."""
_LINES = 20_000
"""Looked at from the end of a record."""


@dataclass(frozen=True, slots=True)
class RecordedRules:
    """See the module."""

    said: Spot
    told: Spot
    file: str = ""


def reply_in(data: bytes, text: str, shown: str, rules: RecordedRules, *, partial: bool = False) -> str | None:
    """All that was said since `text`, if its end is that of `shown`. `partial`: the first line may be the rest of
    one."""
    wanted = folded(text)
    lines = [line for line in data.split(b"\n")[1 if partial else 0 :] if line.strip()]
    said: list[str] = []
    for number, line in enumerate(reversed(lines[-_LINES:])):
        document = parsed(line)
        if document is None:
            if number == 0:
                continue  # it is being written
            return None
        told = rules.told.found([document])
        if told is not None and wanted and folded(told) == wanted:
            return _agreed(said[::-1], shown)
        words = rules.said.found([document])
        if words is not None and words.strip():
            said.append(words.strip("\n"))
    return None


def _agreed(said: list[str], shown: str) -> str | None:
    if not said:
        return None
    last, seen = folded(said[-1]), folded(shown)
    alike = 0
    for one, other in zip(reversed(last), reversed(seen), strict=False):
        if one != other:
            break
        alike += 1
    return "\n\n".join(said) if 0 < min(len(last), len(seen), ALIKE) <= alike else None


def recorded_rules(table: Mapping[str, Any], *, record: str, source: str) -> RecordedRules:
    """From the table. `record`: that of ``[resume]``. Raises InvalidRequest `invalid_profile`."""
    unknown = sorted(set(table) - {"said", "told", "file"})
    if unknown:
        raise _invalid(source, f"unknown key 'record.{unknown[0]}'")
    file = table.get("file", record)
    if not isinstance(file, str) or file.startswith("/") or ".." in file.split("/") or file.count(REF) != 1:
        raise _invalid(source, "record.file must be a glob below HOME with one {ref}")
    return RecordedRules(_spot(table, "said", source), _spot(table, "told", source), file)


def _spot(table: Mapping[str, Any], key: str, source: str) -> Spot:
    text = table.get(key)
    try:
        found = spot(text) if isinstance(text, str) else None
    except ValueError as error:
        raise _invalid(source, f"record.{key}: {error}") from None
    if found is None:
        raise _invalid(source, f"record.{key} is missing")
    return found


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"profile {source}: {reason}", code="invalid_profile")
