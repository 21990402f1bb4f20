"""``oah agent``: the programs that can be driven, and whether their profiles are right."""

from __future__ import annotations

import dataclasses
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.cli.arguments import DURATION, PAIR
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit
from oah.cli.output import cell, emit_json, field, json_option, listing, table
from oah.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from oah.core.dialogue.profile import Profile

PROFILES = "agents.d"


@click.group()
def agent() -> None:
    """The programs that can be driven."""


@agent.command("list")
@click.option(
    "--here", is_flag=True, help="Profiles of this machine instead: kind, program, version, and whether it is known."
)
@json_option
@pass_connection
def list_(connection: Connection, /, *, here: bool, as_json: bool) -> None:
    """Agents known to the API, and how many workers serve each."""
    if here:
        _show_here(connection, as_json=as_json)
        return
    listing(connection.client.agents(), (("AGENT", field("name")), ("WORKERS", field("workers"))), as_json=as_json)


@agent.command()
@click.argument("names", metavar="[NAME|FILE]...", nargs=-1)
@click.option("--converse", is_flag=True, help="Hold a conversation of two turns; that needs a model.")
@click.option("--env", "env", multiple=True, type=PAIR, metavar="NAME=VALUE", help="Environment, as a session's.")
@click.option(
    "--home", type=click.Path(file_okay=False, path_type=Path), help="HOME of the trial; a new one when left out."
)
@click.option("--timeout", type=DURATION, default=90.0, show_default=True, help="For the start, and for each turn.")
@json_option
@pass_connection
@click.pass_context
def check(
    ctx: click.Context,
    connection: Connection,
    /,
    names: tuple[str, ...],
    *,
    converse: bool,
    env: tuple[tuple[str, str], ...],
    home: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Whether agents can be used on this machine.

    A FILE is a profile that is only read. A NAME is tried: its program is found, asked for its version, started in a
    new home, must be ready, and leaves; with --converse it is talked to. Without any, all profiles of the package and
    agents.d are read and their programs looked for; it is no failure that this machine lacks a program that only the
    package speaks of. `adapter_mismatch` says that the program does not do what its profile says.
    """
    directory = connection.settings.data_dir / PROFILES
    files = [Path(name) for name in names if Path(name).is_file()]
    tried = [name for name in names if Path(name) not in files]
    items = [_judged(path) for path in files] if names else _installed(directory)
    reports = [_tried(connection, name, dict(env), home, converse=converse, timeout=timeout) for name in tried]
    if as_json:
        emit_json({"items": [*items, *reports], "more": False})
    else:
        _print(items, reports)
    wrong = any(item["fault"] and not item.get("shipped") for item in (*items, *reports))
    ctx.exit(Exit.FAILED if wrong else Exit.DONE)


def _print(items: list[dict[str, Any]], reports: list[dict[str, Any]]) -> None:
    if items:
        columns = ("AGENT", "name"), ("KIND", "kind"), ("PROGRAM", "program"), ("FAULT", "fault"), ("SOURCE", "source")
        table(items, [(head, field(name)) for head, name in columns])
    for report in reports:
        turns = ", ".join(f"{turn['status']} in {turn['seconds']:g} s" for turn in report["turns"])
        said = {
            "agent": report["profile"],
            "program": report["path"] or report["program"] or "(of OAH)",
            "version": f"{report['version'] or '-'}{' (unknown to the profile)' if report['warning'] else ''}",
            "ready": "-" if report["ready_seconds"] is None else f"after {report['ready_seconds']:g} s",
            "turns": turns or "-",
            "result": f"{report['fault']}: {report['reason']}" if report["fault"] else "ok",
        }
        for name, value in said.items():
            click.echo(f"{name:8} {cell(value)}")
        if report["screen"]:
            click.echo("\n".join(f"  | {cell(line)}" for line in report["screen"].splitlines()))


def _tried(
    connection: Connection, name: str, env: dict[str, str], home: Path | None, *, converse: bool, timeout: float
) -> dict[str, Any]:
    from oah.adapters.pty.profiles import load_profiles
    from oah.bootstrap.canary import Trial, path_here, try_agent

    settings = connection.settings
    profiles = load_profiles(settings.data_dir / PROFILES)
    if name not in profiles:
        raise NotFound(f"no agent {name!r}", code="unknown_agent", hint=f"known: {', '.join(sorted(profiles))}")
    trial = Trial(
        path=settings.worker.path or path_here(),
        env=env,
        home=home.resolve() if home is not None else None,
        converse=converse,
        patience=timedelta(seconds=timeout),
    )
    return dataclasses.asdict(try_agent(profiles[name], trial))


def _show_here(connection: Connection, *, as_json: bool) -> None:
    from oah.adapters.pty.profiles import load_profiles
    from oah.adapters.pty.programs import ASKING_SECONDS, Programs
    from oah.bootstrap.canary import path_here

    settings = connection.settings
    profiles = load_profiles(settings.data_dir / PROFILES)
    found = Programs(settings.worker.path or path_here()).look_all(profiles.values(), within=ASKING_SECONDS)
    items = [
        {
            "name": name,
            "kind": str(profile.kind),
            "program": found[name].path or found[name].program,
            "version": found[name].version,
            "known": None if found[name].version is None else found[name].mismatch is None,
            "fault": found[name].fault,
        }
        for name, profile in sorted(profiles.items())
    ]
    columns = ("AGENT", "name"), ("KIND", "kind"), ("PROGRAM", "program"), ("VERSION", "version"), ("KNOWN", "known")
    listing(items, [(head, field(key)) for head, key in (*columns, ("FAULT", "fault"))], as_json=as_json)


def _installed(directory: Path) -> list[dict[str, Any]]:
    from oah.adapters.pty.profiles import load_profiles

    found = [{**_document(profile), "shipped": True} for profile in load_profiles().values()]
    return found + [_judged(path) for path in sorted(directory.glob("*.toml"))]


def _judged(path: Path) -> dict[str, Any]:
    from oah.core.dialogue.profile import parse_profile

    try:
        return _document(parse_profile(path.read_text(encoding="utf-8"), source=str(path)))
    except (InvalidRequest, UnicodeDecodeError) as error:
        return {"name": path.stem, "kind": None, "program": None, "fault": str(error), "source": str(path)}


def _document(profile: Profile) -> dict[str, Any]:
    """A profile, with a fault when its program is not on this machine."""
    program = profile.argv[0] if profile.argv else None
    missing = program is not None and not program.startswith("{") and shutil.which(program) is None
    return {
        "name": profile.name,
        "kind": str(profile.kind),
        "program": program,
        "fault": f"no program {program!r} on the PATH" if missing else None,
        "source": profile.source,
    }
