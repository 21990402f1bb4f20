"""How a program is asked to go on with a conversation: the part of a profile that says so (``[resume]``).

* ``new``, ``argv``: arguments that start a conversation under a name of our choice (``{ref}``, a UUID), and that go on
  with one. Without ``new`` the program names it itself.
* ``capture``: a pattern whose group 1 is the name, looked for on the screen.
* ``record``: the program's own file of the conversation, a glob below HOME with ``{ref}``. Where there is one, a UUID
  in its place names the conversation, and the file is judged before it is gone on with (records.py).
* ``calls``, ``answers``: where in a line of the record the ids of tool calls and of their answers are
  (``message.content[type=tool_use].id``); ``dangling``: ``cut`` where a call without an answer may be cut off, else
  (``fresh``) such a conversation is given up.
* ``refused``: lines that say that it cannot go on.
* ``root``: ``NAME=DIRECTORY``: a variable of the environment that names another place for that beginning of the
  record's path.
* ``any_cwd``: its conversations are not bound to the directory in which they began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oah.core.dialogue.reading import Pattern
from oah.core.dialogue.records import Path, RecordRules, path_of
from oah.errors import InvalidRequest

REF = "{ref}"
_UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,199}\Z")
_KEYS = frozenset({"new", "argv", "capture", "record", "calls", "answers", "dangling", "refused", "any_cwd", "root"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRules:
    """See the module."""

    argv: tuple[str, ...]
    new: tuple[str, ...] = ()
    capture: Pattern | None = None
    record: str = ""
    records: RecordRules = field(default_factory=RecordRules)
    refused: tuple[Pattern, ...] = ()
    any_cwd: bool = False
    root: tuple[str, str] = ("", "")

    def arguments(self, ref: str, *, new: bool) -> tuple[str, ...]:
        """What is added to the command."""
        return tuple(part.replace(REF, ref) for part in (self.new if new else self.argv))

    def refuses(self, text: str) -> bool:
        """Whether a screen says that the program cannot go on."""
        lines = text.splitlines()
        return any(pattern.search(line) for pattern in self.refused for line in lines)

    def captured(self, text: str) -> str | None:
        """The last name that a screen shows."""
        if self.capture is None:
            return None
        found = [match.group(1) for line in text.splitlines() if (match := self.capture.search(line)) is not None]
        return next((name for name in reversed(found) if name and is_ref(name)), None)


def is_ref(text: str) -> bool:
    """Whether it may be given to a program as a conversation's name: it comes from the program, or from its files."""
    return _SAFE.match(text) is not None


def ref_in(record: str, path: str) -> str | None:
    """The name in a record's path, relative to HOME with slashes; None where it is no record of that kind."""
    pieces = []
    for part in re.split(r"(\*\*/|\*|\{ref\})", record):
        match part:
            case "**/":
                pieces.append("(?:[^/]+/)*")
            case "*":
                pieces.append("[^/]*")
            case "{ref}":
                pieces.append(f"({_UUID})")
            case _:
                pieces.append(re.escape(part))
    found = re.match("".join(pieces) + r"\Z", path)
    return None if found is None or not found.groups() else str(found[1])


def resume_rules(table: Mapping[str, Any], compile_: Callable[[str], Pattern], *, source: str) -> ResumeRules:
    """From the table. Raises InvalidRequest `invalid_profile` that names file and key."""
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise _invalid(source, f"unknown key 'resume.{unknown[0]}'")
    argv, record, dangling = _texts(table, "argv", source), table.get("record", ""), table.get("dangling", "fresh")
    if not argv:
        raise _invalid(source, "resume.argv is missing")
    if not isinstance(record, str) or record.startswith("/") or ".." in record.split("/") or record.count(REF) > 1:
        raise _invalid(source, "resume.record must be a glob below HOME with one {ref}")
    root, _, moved = str(table.get("root", "")).partition("=")
    if root and not (moved and record.startswith(moved + "/")):
        raise _invalid(source, "resume.root must be NAME=DIRECTORY with a beginning of resume.record")
    if dangling not in ("cut", "fresh"):
        raise _invalid(source, f"resume.dangling {dangling!r}: one of cut, fresh")
    capture, any_cwd = table.get("capture", ""), table.get("any_cwd", False)
    if not isinstance(capture, str) or not isinstance(any_cwd, bool):
        raise _invalid(source, "resume.capture must be a string, resume.any_cwd a boolean")
    return ResumeRules(
        argv=argv,
        new=_texts(table, "new", source),
        capture=compile_(capture) if capture else None,
        record=record,
        records=RecordRules(
            calls=_paths(table, "calls", source), answers=_paths(table, "answers", source), cut=dangling == "cut"
        ),
        refused=tuple(compile_(each) for each in _texts(table, "refused", source)),
        any_cwd=any_cwd,
        root=(root, moved),
    )


def _texts(table: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _invalid(source, f"resume.{key} must be a list of strings")
    return tuple(value)


def _paths(table: Mapping[str, Any], key: str, source: str) -> tuple[Path, ...]:
    found: Sequence[Path | None] = [path_of(each) for each in _texts(table, key, source)]
    if None in found:
        raise _invalid(source, f"resume.{key}: a path is made of keys, dots and [field=value]")
    return tuple(path for path in found if path is not None)


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"profile {source}: {reason}", code="invalid_profile")
