"""Governance: retries, time-outs, recovery of one's own, dead letters, maintenance jobs, webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from oah.adapters.sql.columns import Json, Moment

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """New tables, then new columns and indexes of the old ones."""
    op.create_index("ix_workers_started_at", "workers", ["started_at"], unique=False)
    op.create_index("ix_worker_commands_at", "worker_commands", ["at"], unique=False)
    op.create_index(
        "ix_sessions_closed_at",
        "sessions",
        ["closed_at"],
        unique=False,
        postgresql_where=sa.text("state = 'closed'"),
        sqlite_where=sa.text("state = 'closed'"),
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="dead", nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("payload", Json, server_default="{}", nullable=False),
        sa.Column("payload_bytes", sa.LargeBinary(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("first_at", Moment(), nullable=False),
        sa.Column("last_at", Moment(), nullable=False),
        sa.Column("redriven_at", Moment(), nullable=True),
        sa.Column("redriven_by", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
    )
    op.create_index(
        "ix_dead_letters_dead",
        "dead_letters",
        ["workspace_id", "kind", "last_at", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'dead'"),
        sqlite_where=sa.text("state = 'dead'"),
    )
    op.create_index("ix_dead_letters_last_at", "dead_letters", ["last_at", "id"], unique=False)
    op.create_index(
        "ix_dead_letters_workspace_id_kind_last_at",
        "dead_letters",
        ["workspace_id", "kind", "last_at", "id"],
        unique=False,
    )
    op.create_index(
        "ux_dead_letters_subject",
        "dead_letters",
        ["kind", "subject"],
        unique=True,
        postgresql_where=sa.text("state = 'dead'"),
        sqlite_where=sa.text("state = 'dead'"),
    )
    op.create_table(
        "job_items",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_items")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("arguments", Json, server_default="{}", nullable=False),
        sa.Column("total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.Column("result", Json, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("seen_at", Moment(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("started_at", Moment(), nullable=True),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("cancel_requested_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"], unique=False)
    op.create_index("ix_jobs_ended_at", "jobs", ["ended_at"], unique=False)
    op.create_index(
        "ix_jobs_open",
        "jobs",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
        sqlite_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("log", Json, server_default="[]", nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("next_at", Moment(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
    )
    op.create_index("ix_webhook_deliveries_created_at", "webhook_deliveries", ["created_at"], unique=False)
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["webhook_id", "next_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
        sqlite_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_created_at",
        "webhook_deliveries",
        ["webhook_id", "created_at", "id"],
        unique=False,
    )
    op.create_index(
        "ux_webhook_deliveries_event", "webhook_deliveries", ["webhook_id", "session_id", "number"], unique=True
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("events", Json, server_default="[]", nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("active", sa.Boolean(), server_default=sa.text("(true)"), nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", Moment(), nullable=True),
        sa.Column("off_reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_webhooks_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(
        "ix_webhooks_active",
        "webhooks",
        ["workspace_id"],
        unique=False,
        postgresql_where=sa.text("active"),
        sqlite_where=sa.text("active"),
    )
    op.create_index("ix_webhooks_workspace_id", "webhooks", ["workspace_id"], unique=False)
    op.add_column("run_steps", sa.Column("deadline_at", Moment(), nullable=True))
    op.add_column("run_steps", sa.Column("ended_at", Moment(), nullable=True))
    op.add_column("run_steps", sa.Column("outcome", sa.Text(), nullable=True))
    op.create_index(
        "ix_run_steps_deadline_at",
        "run_steps",
        ["deadline_at"],
        unique=False,
        postgresql_where=sa.text("ended_at IS NULL AND deadline_at IS NOT NULL"),
        sqlite_where=sa.text("ended_at IS NULL AND deadline_at IS NOT NULL"),
    )
    _let_max_retries_be_null()
    op.add_column("runs", sa.Column("order_mode", sa.Text(), server_default="strict", nullable=False))
    op.add_column("runs", sa.Column("start_by", Moment(), nullable=True))
    op.add_column("runs", sa.Column("idle_timeout_ms", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("step_timeout_ms", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("retry", Json, nullable=True))
    op.add_column("runs", sa.Column("recovery_strategy", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("recovery_max_attempts", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("stop_reason", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("voided", sa.Boolean(), server_default=sa.text("(false)"), nullable=False))
    op.create_index(
        "ix_runs_deadline_at",
        "runs",
        ["deadline_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND deadline_at IS NOT NULL"),
        sqlite_where=sa.text("status = 'queued' AND deadline_at IS NOT NULL"),
    )
    op.create_index(
        "ix_runs_ended_at",
        "runs",
        ["ended_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('completed', 'failed', 'cancelled', 'timed_out')"),
        sqlite_where=sa.text("status IN ('completed', 'failed', 'cancelled', 'timed_out')"),
    )
    op.create_index(
        "ix_runs_parent_run_id",
        "runs",
        ["parent_run_id"],
        unique=False,
        postgresql_where=sa.text("parent_run_id IS NOT NULL"),
        sqlite_where=sa.text("parent_run_id IS NOT NULL"),
    )
    op.create_index(
        "ix_runs_live_children",
        "runs",
        ["parent_run_id"],
        unique=False,
        postgresql_where=sa.text("parent_run_id IS NOT NULL AND status IN ('queued', 'running', 'waiting_tool')"),
        sqlite_where=sa.text("parent_run_id IS NOT NULL AND status IN ('queued', 'running', 'waiting_tool')"),
    )
    op.create_index(
        "ix_runs_start_by",
        "runs",
        ["start_by"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND start_by IS NOT NULL"),
        sqlite_where=sa.text("status = 'queued' AND start_by IS NOT NULL"),
    )
    op.add_column("worker_commands", sa.Column("run_id", sa.Text(), nullable=True))
    op.add_column("worker_commands", sa.Column("attempt", sa.Integer(), server_default="0", nullable=False))
    op.add_column("worker_commands", sa.Column("data", Json, server_default="{}", nullable=False))
    op.add_column("worker_commands", sa.Column("answer", Json, nullable=True))
    op.add_column("worker_commands", sa.Column("answered_at", Moment(), nullable=True))
    op.add_column("worker_commands", sa.Column("request_id", sa.Text(), nullable=True))
    op.create_index(
        "ux_worker_commands_request_id",
        "worker_commands",
        ["request_id"],
        unique=True,
        postgresql_where=sa.text("request_id IS NOT NULL"),
        sqlite_where=sa.text("request_id IS NOT NULL"),
    )
    op.create_index(
        "ix_sessions_held",
        "sessions",
        ["id"],
        unique=False,
        postgresql_where=sa.text("held = 1"),
        sqlite_where=sa.text("held = 1"),
    )
    op.add_column("sessions", sa.Column("front_position", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("session_owners", sa.Column("heard_at", Moment(), nullable=True))
    op.create_index(
        "ix_runs_recovery_state",
        "runs",
        ["recovery_state", "created_at"],
        unique=False,
        postgresql_where=sa.text("recovery_state IS NOT NULL"),
        sqlite_where=sa.text("recovery_state IS NOT NULL"),
    )
    op.add_column("audit", sa.Column("workspace_id", sa.Text(), nullable=True))
    op.create_index("ix_audit_subject", "audit", ["subject"], unique=False)
    op.create_index("ix_audit_workspace_id", "audit", ["workspace_id"], unique=False)
    op.add_column("workspaces", sa.Column("recovery_strategy", sa.Text(), nullable=True))
    op.add_column("workspaces", sa.Column("recovery_max_attempts", sa.Integer(), nullable=True))


def _let_max_retries_be_null() -> None:
    """Null: the profile's. What is there said 0 and keeps it. SQLite cannot change a column: a new one takes over."""
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column("runs", "max_retries", nullable=True, server_default=None)
        return
    op.execute("ALTER TABLE runs ADD COLUMN retries INTEGER")
    op.execute("UPDATE runs SET retries = max_retries")
    op.execute("ALTER TABLE runs DROP COLUMN max_retries")
    op.execute("ALTER TABLE runs RENAME COLUMN retries TO max_retries")
