"""Types of arguments and options that several commands share."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Duration(click.ParamType[float]):
    """``90``, ``90s``, ``5m``, ``1h30m``: seconds as a float."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds; fails with the forms that are understood."""
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip().lower()
        try:
            seconds = float(text)
        except ValueError:
            parts = _PART.findall(text)
            if not parts or "".join(number + unit for number, unit in parts) != text:
                self.fail(f"{value!r} is not a duration; write 90, 90s, 5m or 1h30m", param, ctx)
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if not 0 <= seconds < float("inf"):
            self.fail(f"{value!r} is not a duration; it must not be negative or endless", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """The two parts; the value may hold further ``=``."""
        if isinstance(value, tuple):
            return value
        name, separator, rest = str(value).partition("=")
        if not separator or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, rest


class Worktree(click.ParamType[dict[str, str]]):
    """``REPO[@REF]``; an ``@`` within the path needs a REF behind it."""

    name = "repo[@ref]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """As the interface takes it."""
        if isinstance(value, dict):
            return value
        repo, at, ref = str(value).rpartition("@")
        return {"repo": repo, "ref": ref} if at and repo else {"repo": str(value)}


DURATION = Duration()
PAIR = Pair()
WORKTREE = Worktree()


limit_option = click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Items at most."
)
workspace_option = click.option("--workspace", help="Name or id; only a key of all workspaces needs it.")


def read_text(text: str) -> str:
    """The text given, or standard input for ``-`` (bytes that are not UTF-8 are a usage error)."""
    if text != "-":
        return text
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not UTF-8 text (byte {error.start})") from error


def given(**values: Any) -> dict[str, Any]:
    """Only the arguments that were given: what is left out keeps the callee's default."""
    return {name: value for name, value in values.items() if value is not None and value not in ((), {})}
