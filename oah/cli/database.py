"""``oah db``: the schema of the database. Always direct: an API of another release may be running."""

from __future__ import annotations

import click

from oah.cli.configuration import mask_url
from oah.cli.connection import load_settings
from oah.cli.direct import direct_store
from oah.cli.output import json_option, showing


@click.group()
def db() -> None:
    """The schema of the database."""


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
