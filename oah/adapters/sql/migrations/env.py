"""Run by Alembic: migrates over the connection it was given, one transaction for all steps."""

from __future__ import annotations

from alembic import context

from oah.adapters.sql import fleet_tables, governance_tables, mail_tables  # noqa: F401 - their tables are part of the metadata
from oah.adapters.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,  # the caller's transaction holds the lock and covers the steps and the version row
)
context.run_migrations()
