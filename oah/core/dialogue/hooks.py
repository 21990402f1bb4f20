"""Hooks as people write them: tables of a profile, or of the settings of a deployment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from oah.core.model.hook import Hook, HookWhen
from oah.errors import InvalidRequest

LONGEST = 3600.0
"""Seconds: what takes longer is no hook, but a run."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_KEYS = {"name", "when", "command", "url", "timeout_seconds"}


def hooks_from(tables: Sequence[Mapping[str, Any]], *, source: str) -> tuple[Hook, ...]:
    """Raises InvalidRequest `invalid_hook` that says where and why."""
    return tuple(_hook(table, f"{source}: hook {number}") for number, table in enumerate(tables, 1))


def _hook(table: Mapping[str, Any], where: str) -> Hook:
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise _invalid(where, f"unknown key {unknown[0]!r}")
    name = table.get("name", "")
    if not isinstance(name, str) or not _NAME.match(name):
        raise _invalid(where, "name: letters, digits, '.', '_', '-', at most 64")
    command, url = table.get("command"), table.get("url")
    if (command is None) == (url is None):
        raise _invalid(where, "one of command and url is needed")
    return Hook(
        name=name,
        when=_moments(table.get("when"), where),
        command=() if command is None else _words(command, where),
        url=None if url is None else _url(url, where),
        timeout=_timeout(table.get("timeout_seconds", 10), where),
    )


def _moments(value: object, where: str) -> frozenset[HookWhen]:
    given = [value] if isinstance(value, str) else value
    known = set(HookWhen)
    if not isinstance(given, list | tuple) or not given or any(each not in known for each in given):
        raise _invalid(where, f"when: some of {', '.join(HookWhen)}")
    return frozenset(HookWhen(each) for each in given)


def _words(value: object, where: str) -> tuple[str, ...]:
    fits = isinstance(value, list | tuple) and value and all(isinstance(word, str) and word for word in value)
    if not fits or not isinstance(value, list | tuple):
        raise _invalid(where, "command is a list of words, the program first")
    return tuple(value)


def _url(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.lower().startswith(("http://", "https://")):
        raise _invalid(where, "url begins with http:// or https://")
    return value


def _timeout(value: object, where: str) -> timedelta:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LONGEST:
        raise _invalid(where, f"timeout_seconds is more than 0 and at most {LONGEST:g}")
    return timedelta(seconds=value)


def _invalid(where: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{where}: {reason}", code="invalid_hook")
