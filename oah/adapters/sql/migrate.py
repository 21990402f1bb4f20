"""Bringing the schema to this release's version, from inside the program."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from oah.adapters.sql.database import Database
from oah.errors import Broken

MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(database: Database) -> None:
    """To the newest version; nothing where it is there. Raises Broken when the schema is of a newer release."""
    with database.migrating() as connection:
        if refuse_newer(connection):
            return
        configuration = _configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "head")


def refuse_newer(connection: Connection) -> bool:
    """Whether the schema is the newest. Raises Broken when it is none that this release knows."""
    current = MigrationContext.configure(connection).get_current_revision()
    scripts = ScriptDirectory.from_config(_configuration())
    if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
        raise Broken(
            f"the database has schema {current}, which this release does not know",
            code="schema_too_new",
            hint="run the release that wrote it, or a newer one",
        )
    return current == scripts.get_current_head()


def schema(connection: Connection) -> dict[str, str]:
    """``schema``: what the database has (absent when nothing); ``schema_wanted``: this release's."""
    current = MigrationContext.configure(connection).get_current_revision()
    wanted = ScriptDirectory.from_config(_configuration()).get_current_head()
    versions = {"schema": current, "schema_wanted": wanted}
    return {name: version for name, version in versions.items() if version is not None}


def _configuration() -> Config:
    configuration = Config()
    configuration.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return configuration
