"""``oah agent``: the programs that can be driven, and whether their profiles are right."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit
from oah.cli.output import emit_json, field, json_option, listing, table
from oah.errors import InvalidRequest

if TYPE_CHECKING:
    from oah.core.dialogue.profile import Profile

PROFILES = "agents.d"


@click.group()
def agent() -> None:
    """The programs that can be driven."""


@agent.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Agents known to the API, and how many workers serve each."""
    listing(connection.client.agents(), (("AGENT", field("name")), ("WORKERS", field("workers"))), as_json=as_json)


@agent.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@pass_connection
@click.pass_context
def check(ctx: click.Context, connection: Connection, /, files: tuple[Path, ...], *, as_json: bool) -> None:
    """Whether profiles can be used on this machine: those of the package and agents.d, or the files given."""
    items = [_judged(path) for path in files] if files else _installed(connection.settings.data_dir / PROFILES)
    wrong = any(item["fault"] for item in items)
    if as_json:
        emit_json({"items": items, "more": False})
    else:
        columns = ("AGENT", "name"), ("KIND", "kind"), ("PROGRAM", "program"), ("FAULT", "fault"), ("SOURCE", "source")
        table(items, [(head, field(name)) for head, name in columns])
    ctx.exit(Exit.FAILED if wrong else Exit.DONE)


def _installed(directory: Path) -> list[dict[str, Any]]:
    from oah.adapters.pty.profiles import load_profiles

    found = [_document(profile) for profile in load_profiles().values()]
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
