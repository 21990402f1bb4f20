"""Bringing the schema to this release's version, from inside the program.

Alembic is loaded only by who has something to migrate: every process looks at the schema when it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from oah.adapters.sql.database import Database
from oah.errors import Broken

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS = Path(__file__).with_name("migrations")
_VERSIONS = "alembic_version"


def migrate(database: Database) -> None:
    """To the newest version; nothing where it is there. Raises Broken when the schema is of a newer release."""
    with database.migrating() as connection:
        if not refuse_newer(connection):
            _upgrade(connection)


def refuse_newer(connection: Connection) -> bool:
    """Whether the schema is the newest. Raises Broken when it is none that this release knows."""
    current, known = _current(connection), revisions()
    if current is not None and current not in known:
        raise Broken(
            f"the database has schema {current}, which this release does not know",
            code="schema_too_new",
            hint="run the release that wrote it, or a newer one",
        )
    return current == known[-1]


def schema(connection: Connection) -> dict[str, str]:
    """``schema``: what the database has (absent when nothing); ``schema_wanted``: this release's."""
    current = _current(connection)
    return {"schema_wanted": revisions()[-1]} | ({} if current is None else {"schema": current})


def revisions() -> tuple[str, ...]:
    """What this release knows, the oldest first: the file of 0001 is called v0001_what_it_does.py."""
    return tuple(sorted(path.stem[1:].partition("_")[0] for path in (MIGRATIONS / "versions").glob("v*.py")))


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSIONS):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {_VERSIONS}")).scalar()
    return None if found is None else str(found)


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415

    configuration = alembic_configuration()
    configuration.attributes["connection"] = connection
    command.upgrade(configuration, "head")


def alembic_configuration() -> Config:
    """What Alembic has to know."""
    from alembic.config import Config  # noqa: PLC0415

    configuration = Config()
    configuration.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return configuration
