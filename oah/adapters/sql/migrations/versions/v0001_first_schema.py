"""The first schema: workspaces, sessions, runs and what is known of their attempts, owners, events and keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from oah.adapters.sql.columns import Json, Moment

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything, and the workspace that is always there."""
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("data", Json, server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_at", "audit", ["at"], unique=False)
    op.create_table(
        "dispatch_epochs",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_dispatch_epochs")),
        sa.UniqueConstraint("id", name=op.f("uq_dispatch_epochs_id")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "run_attempts",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("claim_token", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("home", sa.Text(), nullable=True),
        sa.Column("recording_blob", sa.Text(), nullable=True),
        sa.Column("started_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("pk_run_attempts")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_table(
        "run_events",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", Json, server_default="{}", nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_run_events")),
    )
    op.create_index("ix_run_events_run_id_number", "run_events", ["run_id", "number"], unique=False)
    op.create_table(
        "run_steps",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("data", Json, server_default="{}", nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_run_steps")),
    )
    op.create_table(
        "session_owners",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("claim_token", sa.Text(), nullable=False),
        sa.Column("parked", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("seen_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_session_owners")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index("ix_session_owners_worker_id", "session_owners", ["worker_id"], unique=False)
    op.create_table(
        "worker_commands",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("given_by", sa.Text(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("taken_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_commands")),
    )
    op.create_index(
        "ix_worker_commands_waiting",
        "worker_commands",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("taken_at IS NULL"),
        sqlite_where=sa.text("taken_at IS NULL"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("started_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "workspace_counters",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("queued", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "part", name=op.f("pk_workspace_counters")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Integer(), server_default="1", nullable=False),
        sa.Column("max_active_runs", sa.Integer(), nullable=True),
        sa.Column("max_queued_runs", sa.Integer(), nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("name", name=op.f("uq_workspaces_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=True),
        sa.Column("scopes", Json, nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("expires_at", Moment(), nullable=True),
        sa.Column("revoked_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_api_keys_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="open", nullable=False),
        sa.Column("next_position", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("event_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("queued_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("holds", Json, server_default="{}", nullable=False),
        sa.Column("held", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("session_ref", sa.Text(), nullable=True),
        sa.Column("cwd", sa.Text(), nullable=True),
        sa.Column("env", Json, server_default="{}", nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("labels", Json, server_default="{}", nullable=False),
        sa.Column("metadata", Json, server_default="{}", nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("closed_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_sessions_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        postgresql_with={"fillfactor": "60"},
    )
    op.create_index("ix_sessions_workspace_id_created_at", "sessions", ["workspace_id", "created_at"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("parent_run_id", sa.Text(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("class", sa.Text(), nullable=False),
        sa.Column("class_rank", sa.SmallInteger(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("metadata", Json, server_default="{}", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("deferred", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("due_at", Moment(), nullable=True),
        sa.Column("dispatched_epoch", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("queued_reason", sa.Text(), server_default="first", nullable=False),
        sa.Column("claim_token", sa.Text(), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("recovery_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_retries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=True),
        sa.Column("deadline_at", Moment(), nullable=True),
        sa.Column("cancel_requested_at", Moment(), nullable=True),
        sa.Column("cancel_requested_by", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("result_blob", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("recovery", Json, nullable=True),
        sa.Column("recovery_state", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("queued_at", Moment(), nullable=False),
        sa.Column("started_at", Moment(), nullable=True),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name=op.f("fk_runs_session_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(
        "ix_runs_deferred",
        "runs",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND deferred"),
        sqlite_where=sa.text("status = 'queued' AND deferred"),
    )
    op.create_index(
        "ix_runs_dispatched",
        "runs",
        ["dispatched_epoch", "created_at"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
        sqlite_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_runs_eligible",
        "runs",
        ["session_id", "position"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND NOT deferred"),
        sqlite_where=sa.text("status = 'queued' AND NOT deferred"),
    )
    op.create_index("ix_runs_session_id_created_at", "runs", ["session_id", "created_at"], unique=False)
    op.create_index(
        "ix_runs_waiting",
        "runs",
        ["session_id", "deferred", "class_rank"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
        sqlite_where=sa.text("status = 'queued'"),
    )
    op.create_index("ix_runs_workspace_id_created_at", "runs", ["workspace_id", "created_at"], unique=False)
    op.create_index("ix_runs_workspace_id_status", "runs", ["workspace_id", "status"], unique=False)
    op.create_index(
        "ux_runs_active",
        "runs",
        ["session_id"],
        unique=True,
        postgresql_where=sa.text("status IN ('running', 'waiting_tool')"),
        sqlite_where=sa.text("status IN ('running', 'waiting_tool')"),
    )
    op.execute("INSERT INTO workspaces (id, name, weight, created_at) VALUES ('default', 'default', 1, " + _now() + ")")


def _now() -> str:
    return "clock_timestamp()" if op.get_bind().dialect.name == "postgresql" else "now_us()"
