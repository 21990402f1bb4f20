"""The tables of governance: what failed finally, what operators asked for, who is told of it outside."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from oah.adapters.sql.columns import Json, Moment
from oah.adapters.sql.tables import metadata

# What failed finally: quarantined runs, undeliverable messages, exhausted outbox rows, poison. ``payload`` is the whole
# of it, ``payload_bytes`` where it is no text. At most one that is dead of a subject.
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("session_id", Text),
    Column("state", Text, nullable=False, server_default="dead"),
    Column("code", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", Json, nullable=False, server_default="{}"),
    Column("payload_bytes", LargeBinary),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("first_at", Moment, nullable=False),
    Column("last_at", Moment, nullable=False),
    Column("redriven_at", Moment),
    Column("redriven_by", Text),
    Column("note", Text),
    Index("ix_dead_letters_workspace_id_kind_last_at", "workspace_id", "kind", "last_at", "id"),
    Index("ix_dead_letters_last_at", "last_at", "id"),
)
DEAD = "state = 'dead'"
Index(
    "ux_dead_letters_subject",
    dead_letters.c.kind,
    dead_letters.c.subject,
    unique=True,
    postgresql_where=text(DEAD),
    sqlite_where=text(DEAD),
)
Index(
    "ix_dead_letters_dead",
    dead_letters.c.workspace_id,
    dead_letters.c.kind,
    dead_letters.c.last_at,
    dead_letters.c.id,
    postgresql_where=text(DEAD),
    sqlite_where=text(DEAD),
)

# Maintenance jobs: this row is the truth, rq only carries it. ``cursor``: how far it came, written with what it did.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="queued"),
    Column("arguments", Json, nullable=False, server_default="{}"),
    Column("total", Integer, nullable=False, server_default="0"),
    Column("done", Integer, nullable=False, server_default="0"),
    Column("failed", Integer, nullable=False, server_default="0"),
    Column("cursor", Text),
    Column("result", Json),
    Column("error", Text),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("holder", Text),
    Column("seen_at", Moment),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("cancel_requested_at", Moment),
    Index("ix_jobs_created_at", "created_at"),
    Index("ix_jobs_ended_at", "ended_at"),
)
OPEN_JOB = "state IN ('queued', 'running')"
Index("ix_jobs_open", jobs.c.created_at, postgresql_where=text(OPEN_JOB), sqlite_where=text(OPEN_JOB))

job_items = Table(
    "job_items",
    metadata,
    Column("job_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("subject", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("detail", Text),
    PrimaryKeyConstraint("job_id", "number"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("events", Json, nullable=False, server_default="[]"),
    Column("description", Text),
    Column("active", Boolean, nullable=False, server_default=text("true")),
    Column("timeout_ms", BigInteger, nullable=False),
    # Rounds in a row that all failed, until when it is left alone for that, and why it was switched off.
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("not_before", Moment),
    Column("off_reason", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Index("ix_webhooks_workspace_id", "workspace_id"),
)
# Whether there is any at all is asked by every batch that settles.
Index("ix_webhooks_active", webhooks.c.workspace_id, postgresql_where=text("active"), sqlite_where=text("active"))

# The outbox of webhooks: written in the transaction that writes the event, once per webhook. ``body``: what was sent,
# from the first time on, so that every time says the same.
webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, nullable=False),
    Column("workspace_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("run_id", Text),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("log", Json, nullable=False, server_default="[]"),
    Column("body", Text),
    Column("next_at", Moment, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Index("ux_webhook_deliveries_event", "webhook_id", "session_id", "number", unique=True),
    Index("ix_webhook_deliveries_webhook_id_created_at", "webhook_id", "created_at", "id"),
    Index("ix_webhook_deliveries_created_at", "created_at"),
)
PENDING = "state = 'pending'"
Index(
    "ix_webhook_deliveries_pending",
    webhook_deliveries.c.webhook_id,
    webhook_deliveries.c.next_at,
    postgresql_where=text(PENDING),
    sqlite_where=text(PENDING),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("data", Json, nullable=False, server_default="{}"),
    # None: about the deployment, which only who sees all workspaces may know of.
    Column("workspace_id", Text),
    Index("ix_audit_at", "at"),
    Index("ix_audit_subject", "subject"),
    Index("ix_audit_workspace_id", "workspace_id"),
)
