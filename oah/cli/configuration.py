"""``oah config show``: what is in force, where it comes from, without secrets."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import env_name, load_settings
from oah.cli.output import emit_json, json_option, table

if TYPE_CHECKING:
    from oah.settings import Settings

_MASK = "***"
_URL_SECRET = re.compile(r"(?P<head>[a-z0-9+.-]+://[^/@\s]*?):(?P<secret>[^@\s]*)@", re.IGNORECASE)
_QUERY_SECRET = re.compile(r"(?P<name>[?&](?:password|secret|token|key)=)[^&\s]*", re.IGNORECASE)
NOT_SETTINGS = frozenset({"OAH_CONFIG"})
"""Names with our prefix that are read elsewhere than in the settings."""


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as it is in force."""

    name: str
    value: Any
    source: str
    """``environment``, ``oah.toml`` (the file's name) or ``default``."""


def mask_url(url: str) -> str:
    """A URL without the password in it."""
    return _QUERY_SECRET.sub(rf"\g<name>{_MASK}", _URL_SECRET.sub(rf"\g<head>:{_MASK}@", url))


def config_file() -> Path:
    """The file that ``OAH_CONFIG`` names, else ``oah.toml`` here."""
    return Path(os.environ.get("OAH_CONFIG", "oah.toml"))


def effective(settings: Settings, environment: Mapping[str, str]) -> Iterator[Effective]:
    """Every setting with its source, in the order of the sections."""
    path = config_file()
    try:
        in_file = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        in_file = {}
    environment = {name.upper(): value for name, value in environment.items()}
    for where, value in _leaves(settings):
        yield Effective(".".join(where), _shown(where, value), _source(where, environment, in_file, path.name))


def _leaves(section: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if hasattr(type(value), "model_fields"):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _shown(where: tuple[str, ...], value: Any) -> Any:
    secret = getattr(value, "get_secret_value", None)
    if secret is not None:
        return mask_url(secret()) if where[-1].endswith("_url") else _MASK
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [
            each.model_dump(exclude_none=True, mode="json") if hasattr(each, "model_dump") else each for each in value
        ]
    return value


def _source(where: tuple[str, ...], environment: Mapping[str, str], in_file: Mapping[str, Any], file_name: str) -> str:
    if _in_environment(where, environment):
        return "environment"
    inside: Any = in_file
    for part in where:
        if not isinstance(inside, Mapping) or part not in inside:
            return "default"
        inside = inside[part]
    return file_name


def _in_environment(where: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    if env_name(where) in environment:
        return True
    # A whole section may be given as JSON: OAH_WORKER='{"slots": 4}'.
    try:
        inside: Any = json.loads(environment.get(env_name(where[:1]), "null"))
    except ValueError:
        return False
    for part in where[1:]:
        if not isinstance(inside, Mapping) or part not in inside:
            return False
        inside = inside[part]
    return len(where) > 1


def unknown_names(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Names with our prefix in the environment that mean nothing: probably a typing error."""
    known = set(NOT_SETTINGS)
    for where, _ in _leaves(settings):
        known |= {env_name(where[:depth]) for depth in range(1, len(where) + 1)}
    return sorted(name for name in environment if name.upper().startswith("OAH_") and name.upper() not in known)


@click.group()
def config() -> None:
    """The settings in force."""


@config.command()
@json_option
def show(*, as_json: bool) -> None:
    """Effective values and their source; secrets are masked."""
    settings = load_settings()
    items = [
        {"name": item.name, "env": env_name(tuple(item.name.split("."))), "value": item.value, "source": item.source}
        for item in effective(settings, os.environ)
    ]
    unknown = unknown_names(settings, os.environ)
    derived = {
        "database": mask_url(settings.database),
        "broker": mask_url(settings.broker),
        "recovery_strategy": str(settings.recovery_strategy),
        "period_seconds": settings.period.total_seconds(),
        "margin_seconds": settings.margin.total_seconds(),
    }
    if as_json:
        emit_json({"items": items, "next_cursor": None, "derived": derived, "unknown": unknown})
        return
    table(
        items,
        (
            ("SETTING", lambda item: item["name"]),
            ("VALUE", lambda item: item["value"]),
            ("SOURCE", lambda item: item["source"]),
        ),
    )
    click.echo()
    for name, value in derived.items():
        click.echo(f"in force: {name} = {value}")
    for name in unknown:
        click.echo(f"warning: {name} is in the environment but means nothing", err=True)
