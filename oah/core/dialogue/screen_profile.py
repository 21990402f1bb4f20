"""The part of a profile that describes a full-screen program: TOML into rules; the caller compiles patterns.

Tables of the profile (`kind = "screen"`), all but `screen.composer.start` optional:

* ``[screen]`` ``busy``: lines that are there while it works; ``busy_above``: at most so many rows above the composer,
  or below it (default: anywhere near the bottom); ``near``: how many lines count as the bottom; ``settle_seconds``,
  ``unseen_seconds``, ``unknown_seconds`` (0: never), ``still_seconds`` (default never): see `turn.TurnRules`;
  ``ready_without``: a start that is never recognised counts as ready after so many seconds.
* ``[screen.composer]`` ``start``, ``above``, ``end``, ``never``, ``hints``, ``footer``, ``at_cursor``, ``stacked``: see
  `reading.ComposerRule`.
* ``[[screen.dialogs]]`` ``name``, ``kind``, ``lines``, ``choice``, ``free``, ``offers`` (key = words), ``top``,
  ``inside``, ``end``, ``at_cursor``, ``ticks``: see `reading.DialogRule`; ``keys``: what to type for a choice (default:
  its key).
* ``[screen.submit]`` ``key``, ``clear``, ``commands``, ``words``, ``guard``, ``multiline``, ``placeholders``,
  ``blind``, ``window_seconds``, ``patience_seconds``: see `injection.InjectionRules`.
* ``[screen.reply]`` ``echo``, ``begin``, ``noise``, ``stop``, ``trim``: see `reply.ReplyRules`.
* ``[[files]]`` ``path`` (below HOME), ``text``: written before the start unless it is there; ``{cwd}`` and ``{home}``
  are replaced.
* ``[resume]``: see `resuming.py`. ``[record]``: see `recorded_reply.py`.
* ``[headless]`` ``argv``, ``resume``: one process per run that is given ``{input}``; ``reply``, ``ref``, ``error``:
  where in its JSON they stand (`headless.Spot`; without ``reply`` all it writes is the reply); ``env``: for this mode.
* ``[version]`` ``argv``, ``known``: how it says its version, and which prefixes of it the rules were made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oah.core.dialogue.headless import Spot, spot
from oah.core.dialogue.injection import InjectionRules
from oah.core.dialogue.reading import ComposerRule, DialogRule, Pattern, ScreenRules
from oah.core.dialogue.recorded_reply import RecordedRules, recorded_rules
from oah.core.dialogue.reply import ReplyRules
from oah.core.dialogue.resuming import ResumeRules, resume_rules
from oah.core.dialogue.turn import TurnRules
from oah.core.model.question import Choice, DialogKind
from oah.errors import InvalidRequest

Compile = Callable[[str], Pattern]

RELEASE = 60.0
"""Seconds after which a start that no rule recognises counts as ready (a blocked one never does)."""


@dataclass(frozen=True, slots=True)
class StartFile:
    """A file below the agent's home that lets the program start without questions."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class HeadlessRules:
    """The program without a screen: one process a run, JSON on its output. `resume`: arguments of a run that goes on
    with a conversation; without ``{ref}`` in them the program goes on with its last one."""

    argv: tuple[str, ...]
    resume: tuple[str, ...] = ()
    reply: Spot | None = None
    ref: Spot | None = None
    error: Spot | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenProfile:
    """Everything a driver of screens needs to know, compiled."""

    screen: ScreenRules
    injection: InjectionRules
    reply: ReplyRules
    turn: TurnRules
    keys: Mapping[str, Mapping[str, str]]
    """Dialog name → choice key → what to type."""
    files: tuple[StartFile, ...] = ()
    resume: ResumeRules | None = None
    recorded: RecordedRules | None = None
    headless: HeadlessRules | None = None
    version_argv: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    release: timedelta = timedelta(seconds=RELEASE)


class _Table:
    """A TOML table that knows where it stands, and what of it was read."""

    def __init__(self, table: object, where: str, source: str) -> None:
        if not isinstance(table, Mapping):
            raise _invalid(source, f"{where} must be a table")
        self._table, self.where, self._source = dict(table), where, source

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        value = self._table.pop(key, default)
        if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise _invalid(self._source, f"{self.where}.{key} has the wrong type")
        return value

    def flag(self, key: str) -> bool:
        return bool(self.take(key, bool, default=False))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, list, [])
        if not all(isinstance(each, str) for each in value):
            raise _invalid(self._source, f"{self.where}.{key} must be a list of strings")
        return tuple(value)

    def words(self, key: str) -> Mapping[str, str]:
        value = self.take(key, Mapping, {})
        if not all(isinstance(each, str) for each in value.values()):
            raise _invalid(self._source, f"{self.where}.{key} must be a table of strings")
        return dict(value)

    def table(self, key: str) -> _Table:
        return _Table(self.take(key, Mapping, {}), f"{self.where}.{key}", self._source)

    def tables(self, key: str) -> list[_Table]:
        found = self.take(key, list, [])
        return [_Table(each, f"{self.where}.{key}[{at}]", self._source) for at, each in enumerate(found)]

    def end(self) -> None:
        if self._table:
            raise _invalid(self._source, f"unknown key '{self.where}.{min(self._table)}'")

    def missing(self, key: str) -> InvalidRequest:
        return _invalid(self._source, f"{self.where}.{key} is missing")


def screen_profile(table: Mapping[str, Any], compile_: Compile, *, source: str) -> ScreenProfile:
    """From the tables of a profile. Raises InvalidRequest `invalid_profile` that names file and key."""
    top = _Table({key: table[key] for key in _TABLES if key in table}, "profile", source)
    screen = top.table("screen")
    patterns = _Patterns(compile_)
    dialogs = screen.tables("dialogs")
    keys: dict[str, Mapping[str, str]] = {}
    rules = ScreenRules(
        composer=_composer(screen.table("composer"), patterns),
        busy=patterns.all(screen.texts("busy")),
        near=screen.take("near", int, 24),
        busy_above=screen.take("busy_above", int),
        dialogs=tuple(_dialog(each, patterns, keys) for each in dialogs),
    )
    version = top.table("version")
    resume = resume_rules(top.take("resume", Mapping), compile_, source=source) if "resume" in table else None
    found = ScreenProfile(
        screen=rules,
        injection=_injection(screen.table("submit"), patterns),
        reply=_reply(screen.table("reply"), patterns),
        turn=_turn(screen, blind=rules.composer.at_cursor),
        keys=keys,
        files=tuple(_file(each) for each in top.tables("files")),
        resume=resume,
        recorded=_recorded(top, resume, source) if "record" in table else None,
        headless=_headless(top.table("headless")) if "headless" in table else None,
        version_argv=version.texts("argv"),
        versions=version.texts("known"),
        release=timedelta(seconds=screen.take("ready_without", (int, float), RELEASE)),
    )
    for each in (screen, version, top):
        each.end()
    return found


_TABLES = ("screen", "files", "resume", "record", "headless", "version")


def _recorded(top: _Table, resume: ResumeRules | None, source: str) -> RecordedRules:
    record = "" if resume is None else resume.record
    return recorded_rules(top.take("record", Mapping), record=record, source=source)


@dataclass(frozen=True, slots=True)
class _Patterns:
    compile: Compile

    def one(self, text: str) -> Pattern | None:
        return self.compile(text) if text else None

    def all(self, texts: Sequence[str]) -> tuple[Pattern, ...]:
        return tuple(self.compile(text) for text in texts)


def _composer(table: _Table, patterns: _Patterns) -> ComposerRule:
    start = patterns.one(table.take("start", str, ""))
    if start is None:
        raise table.missing("start")
    rule = ComposerRule(
        start=start,
        above=patterns.one(table.take("above", str, "")),
        end=patterns.one(table.take("end", str, "")),
        never=patterns.one(table.take("never", str, "")),
        hints=patterns.all(table.texts("hints")),
        footer=table.take("footer", int, 4),
        at_cursor=table.flag("at_cursor"),
        stacked=table.flag("stacked"),
    )
    table.end()
    return rule


def _dialog(table: _Table, patterns: _Patterns, keys: dict[str, Mapping[str, str]]) -> DialogRule:
    name = table.take("name", str, "")
    kind = table.take("kind", str, "question")
    if not name or kind not in set(DialogKind):
        raise table.missing("name" if not name else f"kind: one of {', '.join(DialogKind)}")
    typed = table.table("keys")
    keys[name] = {key: typed.take(key, str, "") for key in list(typed._table)}
    rule = DialogRule(
        name=name,
        kind=DialogKind(kind),
        lines=patterns.all(table.texts("lines")),
        choice=patterns.one(table.take("choice", str, "")),
        offers=tuple(Choice(key, words) for key, words in table.words("offers").items()),
        free=table.flag("free"),
        top=patterns.one(table.take("top", str, "")),
        inside=patterns.one(table.take("inside", str, "")),
        end=patterns.one(table.take("end", str, "")),
        at_cursor=table.flag("at_cursor"),
        ticks=patterns.all(table.texts("ticks")),
    )
    if not rule.lines:
        raise table.missing("lines")
    table.end()
    return rule


def _turn(table: _Table, *, blind: bool) -> TurnRules:
    unknown = table.take("unknown_seconds", (int, float), 0 if blind else 20)
    still = table.take("still_seconds", (int, float), 0)
    return TurnRules(
        settle=timedelta(seconds=table.take("settle_seconds", (int, float), 0.8)),
        unseen=timedelta(seconds=table.take("unseen_seconds", (int, float), 10)),
        unknown=timedelta(seconds=unknown) if unknown > 0 else None,
        still=timedelta(seconds=still) if still > 0 else None,
    )


def _injection(table: _Table, patterns: _Patterns) -> InjectionRules:
    rules = InjectionRules(
        submit=table.take("key", str, "\r").encode(),
        clear=table.take("clear", str, "\x15").encode(),
        commands=table.take("commands", str, ""),
        words=table.texts("words"),
        guard=table.take("guard", str, ""),
        multiline=table.flag("multiline"),
        placeholders=patterns.all(table.texts("placeholders")),
        blind=table.flag("blind"),
        window=timedelta(seconds=table.take("window_seconds", (int, float), 5)),
        patience=timedelta(seconds=table.take("patience_seconds", (int, float), 10)),
    )
    table.end()
    return rules


def _reply(table: _Table, patterns: _Patterns) -> ReplyRules:
    rules = ReplyRules(
        echo=patterns.one(table.take("echo", str, "")),
        begin=patterns.one(table.take("begin", str, "")),
        noise=patterns.all(table.texts("noise")),
        stop=patterns.all(table.texts("stop")),
        trim=patterns.one(table.take("trim", str, "")),
    )
    table.end()
    return rules


def _file(table: _Table) -> StartFile:
    path = table.take("path", str, "")
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise table.missing("path (below HOME)")
    found = StartFile(path, table.take("text", str, ""))
    table.end()
    return found


def _spot(table: _Table, key: str) -> Spot | None:
    try:
        return spot(table.take(key, str, ""))
    except ValueError as error:
        raise table.missing(f"{key}: {error}") from None


def _headless(table: _Table) -> HeadlessRules:
    rules = HeadlessRules(
        argv=table.texts("argv"),
        resume=table.texts("resume"),
        reply=_spot(table, "reply"),
        ref=_spot(table, "ref"),
        error=_spot(table, "error"),
        env=table.words("env"),
    )
    if not rules.argv:
        raise table.missing("argv")
    table.end()
    return rules


def _invalid(source: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"profile {source}: {reason}", code="invalid_profile")
