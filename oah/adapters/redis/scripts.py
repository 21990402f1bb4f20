"""The typed loader of the Lua scripts.

A script is one file in ``lua/`` with a header of comment lines that this module parses::

    -- purpose: what it does, atomically
    -- keys: shard | global
    -- epoch: required | none
    -- args: name[:type] ...           fixed arguments, after the epoch id
    -- each <group>: name[:type] ...   repeated arguments; the body says `for name, … in each_<group>() do`
    -- repeatable: whether and why a repeated call does no harm
    -- over maxmemory: yes | no
    -- returns: what the caller gets
    -- uses: library files of lua/lib/ that are prepended

so that bodies use names, never positions. Types: ``text`` (default), ``int``, ``flag``, and ``text?``, ``int?`` (nil
when absent). Real servers get a shebang: with ``allow-oom`` where the header says so, else the server refuses the whole
script up front when it is over maxmemory, so nothing is half done. fakeredis knows no shebang.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from oah.adapters.redis import keys
from oah.errors import Broken

Value = str | int | float | bool | None
HEADER = ("purpose", "keys", "epoch", "args", "repeatable", "over maxmemory", "returns", "uses")
OPTIONAL = ("epoch", "args", "uses", "keys")
TYPES = ("text", "int", "flag", "text?", "int?")
ALWAYS = ("core",)


@dataclass(frozen=True, slots=True)
class Argument:
    """A named argument and its type."""

    name: str
    type: str

    def encode(self, value: Value) -> str:
        """What goes over the wire. Raises Broken for a value of another type: that is a bug of the adapter."""
        if value is None and self.type.endswith("?"):
            return ""
        kind = self.type.rstrip("?")
        if kind == "flag" and isinstance(value, bool):
            return "1" if value else "0"
        if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if kind == "text" and isinstance(value, str) and (value or not self.type.endswith("?")):
            return value
        raise Broken(f"argument {self.name} of a script must be {self.type}, not {value!r}")

    def lua(self, text: str) -> str:
        """A Lua expression that reads it."""
        match self.type:
            case "int" | "int?":
                return f"tonumber({text})"  # '' is no number: nil
            case "flag":
                return f"({text} == '1')"
            case "text?":
                return f"({text} ~= '' and {text} or nil)"
            case _:
                return text


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed script: its header and its two bodies (with and without shebang)."""

    name: str
    header: Mapping[str, str]
    args: tuple[Argument, ...]
    groups: Mapping[str, tuple[Argument, ...]]
    shared: bool
    epoch: bool
    over_maxmemory: bool
    plain: str
    real: str

    def text(self, *, shebang: bool) -> str:
        """The body for a kind of server."""
        return self.real if shebang else self.plain

    def sha(self, *, shebang: bool) -> str:
        """Its name in the server's cache."""
        return _sha(self.text(shebang=shebang))

    @property
    def key(self) -> str:
        """The one key that is declared; it routes the call and gives the prefix."""
        return keys.WORKERS.at() if self.shared else keys.EPOCH.at()

    def argv(
        self, epoch: str | None, args: Sequence[Value], groups: Mapping[str, Sequence[Sequence[Value]]]
    ) -> list[str]:
        """Arguments on the wire. Raises Broken when they do not fit the header."""
        if (epoch is None) == self.epoch or len(args) != len(self.args) or groups.keys() != self.groups.keys():
            raise Broken(f"script {self.name} takes {self.header.get('args', '')} and {list(self.groups)}")
        sent = [] if epoch is None else [epoch]
        sent += [argument.encode(value) for argument, value in zip(self.args, args, strict=True)]
        for name, arguments in self.groups.items():
            sent.append(str(len(groups[name])))
            for item in groups[name]:
                sent += [argument.encode(value) for argument, value in zip(arguments, item, strict=True)]
        return sent


@cache
def load(name: str) -> Script:
    """Read ``lua/<name>.lua``. Raises Broken for a header or a body that does not keep the rules."""
    body = _read(f"{name}.lua")
    header, groups = _header(name, body)
    shared = header.get("keys", "shard") == "global"
    script = _Source(
        args=_arguments(name, header.get("args", "")),
        groups={group: _arguments(name, text) for group, text in groups.items()},
        shared=shared,
        epoch=header.get("epoch", "none" if shared else "required") == "required",
    )
    over = header["over maxmemory"] == "yes"
    plain = script.render(name, _libraries(name, header.get("uses", "").split()), _strip(body))
    return Script(
        name=name,
        header=header,
        args=script.args,
        groups=script.groups,
        shared=shared,
        epoch=script.epoch,
        over_maxmemory=over,
        plain=plain,
        real=("#!lua flags=allow-oom\n" if over else "#!lua\n") + plain,
    )


def names() -> list[str]:
    """All scripts there are."""
    folder = resources.files("oah.adapters.redis").joinpath("lua")
    return sorted(entry.name.removesuffix(".lua") for entry in folder.iterdir() if entry.name.endswith(".lua"))


@dataclass(frozen=True, slots=True)
class _Source:
    args: tuple[Argument, ...]
    groups: Mapping[str, tuple[Argument, ...]]
    shared: bool
    epoch: bool

    def render(self, name: str, libraries: str, body: str) -> str:
        lines = ["local PREFIX = string.match(KEYS[1], '^.-}:')"]
        position = 1
        if self.epoch:
            lines.append("local epoch = ARGV[1]")
            position = 2
        for argument in self.args:
            lines.append(f"local {argument.name} = {argument.lua(f'ARGV[{position}]')}")
            position += 1
        count = str(position)
        for group, arguments in self.groups.items():
            lines += _group(group, arguments, count)
            count = f"{group}_end"
        check = [
            "local believed = call('HMGET', key_epoch(), 'id', 'state')",
            "if believed[1] ~= epoch then return {'EPOCH', believed[1] or ''} end",
            "local epoch_state = believed[2]",
        ]
        core, rest = libraries.split("-- end of core\n", 1)
        text = "\n".join([*lines, core, *(check if self.epoch else []), rest, body])
        try:
            return keys.in_lua(text, shared=self.shared)
        except LookupError as error:
            raise Broken(f"script {name}: {error}") from error


def _group(group: str, arguments: Sequence[Argument], count: str) -> list[str]:
    width = len(arguments)
    reads = ", ".join(argument.lua("ARGV[at]" if n == 0 else f"ARGV[at + {n}]") for n, argument in enumerate(arguments))
    return [
        f"local {group}_count = tonumber(ARGV[{count}])",
        f"local {group}_end = {count} + 1 + {group}_count * {width}",
        f"local function each_{group}()",
        f"  local at = {count} + 1 - {width}",
        f"  return function() at = at + {width}; if at < {group}_end then return {reads} end end",
        "end",
    ]


def _header(name: str, body: str) -> tuple[dict[str, str], dict[str, str]]:
    header: dict[str, str] = {}
    groups: dict[str, str] = {}
    last: tuple[dict[str, str], str] | None = None
    for line in body.splitlines():
        if not line.startswith("--"):
            break
        found = re.match(r"-- ([a-z]+(?: \w+)?): (.*)", line)
        if found is None:
            if last is None:
                raise Broken(f"script {name}: header line '{line}'")
            last[0][last[1]] += " " + line.removeprefix("--").strip()
            continue
        word, text = found.groups()
        last = (groups, word.removeprefix("each ")) if word.startswith("each ") else (header, word)
        last[0][last[1]] = text.strip()
    missing = [word for word in HEADER if word not in header and word not in OPTIONAL]
    unknown = [word for word in header if word not in HEADER]
    if missing or unknown or header["over maxmemory"] not in ("yes", "no"):
        raise Broken(f"script {name}: header lacks {missing}, does not know {unknown}")
    return header, groups


def _arguments(name: str, text: str) -> tuple[Argument, ...]:
    arguments = []
    for word in text.split():
        argument, _, kind = word.partition(":")
        if (kind or "text") not in TYPES:
            raise Broken(f"script {name}: type of '{word}'")
        arguments.append(Argument(argument, kind or "text"))
    return tuple(arguments)


def _libraries(name: str, wanted: Sequence[str]) -> str:
    """The library files in order of dependency; each says in its first lines which others it uses."""
    ordered: list[str] = []

    def add(library: str, path: tuple[str, ...]) -> None:
        if library in path:
            raise Broken(f"script {name}: libraries {path} in a circle")
        if library in ordered:
            return
        text = _read(f"lib/{library}.lua")
        uses = re.search(r"^-- uses: (.*)$", text, re.MULTILINE)
        for other in uses.group(1).split() if uses else ():
            add(other, (*path, library))
        ordered.append(library)

    for library in (*ALWAYS, *wanted):
        add(library, ())
    core, *rest = [_strip(_read(f"lib/{library}.lua")) for library in ordered]
    return core + "\n-- end of core\n" + "\n".join(rest)


def _strip(text: str) -> str:
    """Without comments: the server compiles what it gets, and error lines are found by content anyway."""
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.strip().startswith("--"))


def _read(path: str) -> str:
    try:
        return resources.files("oah.adapters.redis").joinpath("lua", *path.split("/")).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Broken(f"no script file lua/{path}") from error


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
