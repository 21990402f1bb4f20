"""The store, put together: ``open_store`` and one object per process."""

from __future__ import annotations

from sqlalchemy import select

from oah.adapters.sql.agent_mail import AgentMail
from oah.adapters.sql.audits import Audits
from oah.adapters.sql.children import Children
from oah.adapters.sql.columns import now, to_us
from oah.adapters.sql.commands import Commands
from oah.adapters.sql.conversations import Conversations
from oah.adapters.sql.cordons import Cordons
from oah.adapters.sql.counts import Counts
from oah.adapters.sql.database import Database
from oah.adapters.sql.dead_letters import DeadLetters
from oah.adapters.sql.deliveries import Deliveries
from oah.adapters.sql.events import Events
from oah.adapters.sql.executions import Executions
from oah.adapters.sql.firings import Firings
from oah.adapters.sql.jobs import Jobs
from oah.adapters.sql.keys import Keys
from oah.adapters.sql.limits import Limits
from oah.adapters.sql.mail_groups import MailGroups
from oah.adapters.sql.mail_reads import MailReads
from oah.adapters.sql.mail_sends import MailSends
from oah.adapters.sql.mail_sweeps import MailSweeps
from oah.adapters.sql.mail_tending import MailTending
from oah.adapters.sql.mail_trace import MailTrace
from oah.adapters.sql.mailboxes import Mailboxes
from oah.adapters.sql.measured import MeasuredDatabase
from oah.adapters.sql.migrate import migrate, schema
from oah.adapters.sql.owners import Owners
from oah.adapters.sql.pauses import Pauses
from oah.adapters.sql.postgres.database import PostgresDatabase
from oah.adapters.sql.questions import Questions
from oah.adapters.sql.queues import Queues
from oah.adapters.sql.recoveries import Recoveries
from oah.adapters.sql.requeues import Requeues
from oah.adapters.sql.retention import Retention
from oah.adapters.sql.rollouts import Rollouts
from oah.adapters.sql.runs import Runs
from oah.adapters.sql.scale_decisions import ScaleDecisions
from oah.adapters.sql.schedules import Schedules
from oah.adapters.sql.sessions import Sessions
from oah.adapters.sql.sqlite.database import SqliteDatabase
from oah.adapters.sql.submits import Submits
from oah.adapters.sql.waits import Waits
from oah.adapters.sql.webhooks import Webhooks
from oah.adapters.sql.writers import TerminalWriters
from oah.errors import InvalidRequest
from oah.ports.store import Store
from oah.ports.telemetry import NullTelemetry, Telemetry


class SqlStore(
    Submits,
    Executions,
    Conversations,
    Owners,
    Recoveries,
    Queues,
    Runs,
    Requeues,
    Children,
    Sessions,
    Events,
    Keys,
    Commands,
    Counts,
    Waits,
    Questions,
    TerminalWriters,
    Limits,
    DeadLetters,
    Jobs,
    Audits,
    Webhooks,
    Deliveries,
    Retention,
    Mailboxes,
    MailSends,
    MailReads,
    MailGroups,
    MailSweeps,
    AgentMail,
    MailTending,
    MailTrace,
    ScaleDecisions,
    Rollouts,
    Pauses,
    Schedules,
    Firings,
    Cordons,
):
    """Everything the port asks for, over one database."""

    def migrate(self) -> None:
        """Bring the schema to this release's version. Raises Broken for a newer one."""
        migrate(self._database)

    def check(self) -> None:
        """Raises Unavailable where the database does not answer or has no schema."""
        with self._database.read() as connection:
            connection.exec_driver_sql("SELECT 1 FROM workspaces LIMIT 1").all()

    def now(self) -> float:
        """The database's clock in seconds since the epoch."""
        with self._database.read() as connection:
            moment = connection.execute(select(now())).scalar_one()
        return to_us(moment) / 1_000_000

    def facts(self) -> dict[str, str]:
        """What a person wants to know of the database, its schema included."""
        with self._database.read() as connection:
            versions = schema(connection)
        return {**self._database.facts(), **versions}

    def close(self) -> None:
        """Close every connection; the store may not be used afterwards."""
        self._database.close()


def open_store(url: str, *, telemetry: Telemetry | None = None, pool: int = 8) -> Store:
    """The store at ``sqlite:///path`` or ``postgresql://…``. Connects when it is used; ``migrate`` makes the schema.

    ``pool``: the most connections of a kind; further callers wait. Raises InvalidRequest for an address it cannot use.
    """
    telemetry = telemetry or NullTelemetry()
    return SqlStore(MeasuredDatabase(_database(url, pool), telemetry), telemetry)


def _database(url: str, pool: int) -> Database:
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme == "sqlite":
        return SqliteDatabase(url, pool=pool)
    if scheme in ("postgresql", "postgres"):
        return PostgresDatabase(url, pool=pool)
    raise InvalidRequest(f"'{scheme}' is no database we know", hint="sqlite:///path or postgresql://user@host/name")
