"""``oah db``: the database itself. Always direct: an API of another release may be running."""

from __future__ import annotations

import click

from oah.cli.configuration import mask_url
from oah.cli.connection import load_settings
from oah.cli.direct import direct_store
from oah.cli.output import emit_json, json_option, showing


@click.group()
def db() -> None:
    """The database: its schema, and letting go of what has aged out."""


@db.command()
@json_option
def upgrade(*, as_json: bool) -> None:
    """Bring the schema to this release's; changes nothing when it is there already."""
    settings = load_settings()
    with direct_store(settings) as store:
        store.migrate()
        showing({"url": mask_url(settings.database), **store.facts()}, as_json=as_json)


@db.command()
@json_option
def current(*, as_json: bool) -> None:
    """Which schema the database has, and which this release wants."""
    settings = load_settings()
    with direct_store(settings) as store:
        store.check()
        showing({"url": mask_url(settings.database), **store.facts()}, as_json=as_json)


@db.command()
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@json_option
def prune(*, dry_run: bool, as_json: bool) -> None:
    """Delete what has aged out by the settings of `retention`; the leader does the same all the time.

    A dry run counts what is old enough; what something else still needs may be among it.
    """
    from oah.bootstrap.pruning import open_prune

    settings = load_settings()
    with open_prune(settings) as keeper:
        counts = keeper(dry_run=dry_run)
    if as_json:
        emit_json({"dry_run": dry_run, "pruned": {str(what): count for what, count in counts.items()}})
        return
    for what, count in counts.items():
        click.echo(f"{what}: {count}{' would go' if dry_run else ''}")
