"""A profile: what OAH knows about driving one agent program, as data. Parsed from TOML; reading the file is the
adapters' part.

Keys of the TOML (all but `name`, `kind` optional):

* ``kind``: ``screen`` = a full-screen program, driven by what it shows (screen_profile.py; with a ``[headless]`` table
  the profile gives a second agent, NAME-headless: one process per run); ``marker`` = an interpreter that stays, told by
  `inject` to run the input file, and says by markers when a turn begins and ends; ``command`` = one program per run,
  its exit is the outcome; ``noop`` = in process, answers at once.
* ``argv``: the command. ``{python}`` is OAH's interpreter, ``{scratch}`` a private directory of the agent, ``{input}``
  (command only) the run's input.
* ``boot``: text written to ``{scratch}/boot`` before the start. ``inject``: the line typed for a turn (see
`marker.injection`).
* ``interrupt_key``, ``quit``: what to type to interrupt a turn, to leave; ``interrupt_again_seconds``: the key is
  pressed once more after so long, for programs that want to be sure. ``ready_seconds``: how long the start may
take.
* ``[recovery]`` ``strategy``, ``max_attempts``: what becomes of a run whose worker is lost; a run may say otherwise.
* ``[retry]`` ``max_retries``, ``initial_seconds``, ``factor``, ``max_seconds``, ``jitter``, ``on``: whether and when a
  failed attempt is followed by another; a run may say otherwise.
* ``[[hooks]]`` ``name``, ``when``, ``command`` or ``url``, ``timeout_seconds``: called around its runs (hooks.py).
* ``idle_timeout_seconds``: how long a turn may go without progress (no limit when left out); ``cpu_is_progress``:
whether the processor time of its tree counts as progress.
* ``slot_weight``: how many slots of a worker one of its agents takes (1): an agent of 700 MB is not one of 50 MB.
* ``[home]``, ``[limits]``: see housing.py. ``[resume]``: see resuming.py. ``[record]``: see recorded_reply.py.
* ``steer``: whether a text may be typed to it while it works; it drops at the end of a turn what it did not read.
* ``messages``: whether messages for its sessions may be given to it as texts; without the key to all but interpreters
  and commands, which would execute what anybody sends.
* ``[[answers]]`` ``action``, ``names``, ``kinds``, ``matches``, ``answer``: which of its questions are answered without
  a person (core/policy/answers.py); ``wait_timeout_seconds``: how long a question stands.
* ``env``, ``rows``, ``cols``; ``failed_code``: error code of a turn whose status is not 0.

A turn that its interrupt key has interrupted ends with a status other than 0: with 0 it was faster than the cancel.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from oah.core.dialogue.hooks import hooks_from
from oah.core.dialogue.housing import check_housing
from oah.core.model.hook import Hook
from oah.core.model.retry import NO_WISH, RetryWish, retry_wish
from oah.core.model.run import RecoveryStrategy
from oah.errors import InvalidRequest

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")


HEADLESS = "-headless"
"""After the name of a profile: its program without a screen."""


class Kind(StrEnum):
    """How a profile is driven."""

    MARKER = "marker"
    COMMAND = "command"
    NOOP = "noop"
    SCREEN = "screen"
    HEADLESS = "headless"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """See the module. `source` says where it came from, for messages."""

    name: str
    kind: Kind
    argv: tuple[str, ...] = ()
    boot: str = ""
    inject: str = ""
    interrupt_key: str = "\x03"
    interrupt_again: timedelta | None = None
    quit: str = ""
    ready: timedelta = timedelta(seconds=30)
    env: Mapping[str, str] = field(default_factory=dict)
    rows: int = 40
    cols: int = 100
    failed_code: str = "exit_nonzero"
    idle: timedelta | None = None
    cpu_is_progress: bool = False
    hooks: tuple[Hook, ...] = ()
    steer: bool = False
    messages: bool | None = None
    recovery_strategy: RecoveryStrategy | None = None
    recovery_max_attempts: int | None = None
    retry: RetryWish = NO_WISH
    answers: tuple[Mapping[str, Any], ...] = ()
    wait: timedelta | None = None
    slot_weight: int = 1
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What others read (`screen_profile.py`, `resuming.py`, `housing.py`)."""
    source: str = ""

    @property
    def takes_messages(self) -> bool:
        """Whether messages may be given to it: what an interpreter is given it executes."""
        return self.kind not in (Kind.MARKER, Kind.COMMAND) if self.messages is None else self.messages


def parse_profile(text: str, *, source: str) -> Profile:
    """One profile from the text of its file. Raises InvalidRequest `invalid_profile` that names file and key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(source, str(error)) from None
    return profile_from(table, source=source)


def profile_from(table: Mapping[str, Any], *, source: str) -> Profile:
    """One profile from an already parsed table (a file, or a section of `oah.toml`)."""
    unknown = sorted(set(table) - set(_TYPES))
    if unknown:
        raise _invalid(source, f"unknown key {unknown[0]!r}")
    for key, value in table.items():
        if not _fits(value, _TYPES[key]):
            raise _invalid(source, f"{key} must be a {_TYPES[key]}")
    name, kind = table.get("name", ""), table.get("kind", "")
    if not _NAME.match(name):
        raise _invalid(source, f"name {name!r}: lower case letters, digits, '.', '_', '-', at most 64")
    if kind not in set(Kind):
        raise _invalid(source, f"kind {kind!r}: one of {', '.join(Kind)}")
    plain = {
        key: table[key]
        for key in (
            "boot",
            "inject",
            "interrupt_key",
            "quit",
            "rows",
            "cols",
            "failed_code",
            "cpu_is_progress",
            "steer",
            "messages",
            "slot_weight",
        )
        if key in table
    }
    strategy, max_attempts = _recovery(table.get("recovery", {}), source=source)
    profile = Profile(
        name=name,
        kind=Kind(kind),
        argv=tuple(table.get("argv", ())),
        env=dict(table.get("env", {})),
        ready=timedelta(seconds=table.get("ready_seconds", 30)),
        hooks=hooks_from(table.get("hooks", ()), source=f"profile {source}"),
        idle=_seconds(table, "idle_timeout_seconds"),
        interrupt_again=_seconds(table, "interrupt_again_seconds"),
        answers=tuple(table.get("answers", ())),
        wait=_seconds(table, "wait_timeout_seconds"),
        recovery_strategy=strategy,
        recovery_max_attempts=max_attempts,
        retry=_retry(table.get("retry", {}), source=source),
        tables={key: table[key] for key in _SCREEN_TABLES if key in table},
        source=source,
        **plain,
    )
    _check(profile)
    return profile


def _seconds(table: Mapping[str, Any], key: str) -> timedelta | None:
    return timedelta(seconds=table[key]) if key in table else None


def headless(profile: Profile) -> Profile | None:
    """The same program without its screen, under a name of its own; None when the profile does not say how."""
    section = profile.tables.get("headless")
    if profile.kind is not Kind.SCREEN or not isinstance(section, Mapping):
        return None
    return replace(profile, name=profile.name + HEADLESS, kind=Kind.HEADLESS, quit="", steer=False)


def _recovery(section: Mapping[str, Any], *, source: str) -> tuple[RecoveryStrategy | None, int | None]:
    """The ``[recovery]`` table."""
    unknown = sorted(set(section) - {"strategy", "max_attempts"})
    if unknown:
        raise _invalid(source, f"unknown key 'recovery.{unknown[0]}'")
    strategy, attempts = section.get("strategy"), section.get("max_attempts")
    if strategy is not None and strategy not in set(RecoveryStrategy):
        raise _invalid(source, f"recovery.strategy {strategy!r}: one of {', '.join(RecoveryStrategy)}")
    if attempts is not None and (not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 0):
        raise _invalid(source, "recovery.max_attempts must be a whole number, 0 for never again")
    return None if strategy is None else RecoveryStrategy(strategy), attempts


def _retry(section: Mapping[str, Any], *, source: str) -> RetryWish:
    """The ``[retry]`` table."""
    try:
        return retry_wish(section)
    except InvalidRequest as error:
        raise _invalid(source, error.message) from None


_SCREEN_TABLES = ("screen", "files", "resume", "record", "headless", "version", "home", "limits", "worktree")
_TYPES = {
    "name": "string",
    "kind": "string",
    "argv": "list of strings",
    "boot": "string",
    "inject": "string",
    "interrupt_key": "string",
    "interrupt_again_seconds": "number",
    "quit": "string",
    "ready_seconds": "number",
    "env": "table of strings",
    "rows": "number",
    "cols": "number",
    "failed_code": "string",
    "idle_timeout_seconds": "number",
    "cpu_is_progress": "boolean",
    "hooks": "list of tables",
    "answers": "list of tables",
    "wait_timeout_seconds": "number",
    "steer": "boolean",
    "slot_weight": "whole number",
    "messages": "boolean",
    "recovery": "table",
    "retry": "table",
    "screen": "table",
    "resume": "table",
    "record": "table",
    "home": "table",
    "worktree": "table",
    "limits": "table",
    "headless": "table",
    "version": "table",
    "files": "list of tables",
}


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "list of strings":
            return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        case "table of strings":
            return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())
        case "table":
            return isinstance(value, dict)
        case "list of tables":
            return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
        case "boolean":
            return isinstance(value, bool)
        case "whole number":
            return isinstance(value, int) and not isinstance(value, bool) and value > 0
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        case _:
            return isinstance(value, str)


def _check(profile: Profile) -> None:
    check_housing(profile.tables, source=profile.source)
    if profile.kind is Kind.NOOP:
        return
    if not profile.argv:
        raise _invalid(profile.source, "argv is missing")
    if profile.kind is Kind.MARKER and "{turn}" not in profile.inject:
        raise _invalid(profile.source, "inject must contain {turn}: the marker that ends the turn has to name it")


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"profile {source}: {reason}", code="invalid_profile")
