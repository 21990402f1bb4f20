"""The fleet: decisions of scaling, rolling restarts, pauses and caps, schedules; priorities and rates of runs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from oah.adapters.sql.columns import Json, Moment, now

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def upgrade() -> None:
    """New tables, then new columns of the old ones."""
    op.create_table(
        "caps",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("max_active_runs", sa.Integer(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", name=op.f("pk_caps")),
    )
    op.create_table(
        "pauses",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", name=op.f("pk_pauses")),
    )
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="running", nullable=False),
        sa.Column("batch", sa.Integer(), server_default="1", nullable=False),
        sa.Column(
            "arguments",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column(
            "members",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("revision", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    op.create_index("ix_rollouts_created_at", "rollouts", ["created_at", "id"], unique=False)
    op.create_index("ux_rollouts_open", "rollouts", ["pool"], unique=True, **_where("ended_at IS NULL"))
    op.create_table(
        "scale_decisions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("current", sa.Integer(), nullable=False),
        sa.Column("desired", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column(
            "inputs",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column(
            "going",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column("version", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scale_decisions")),
    )
    op.create_index("ix_scale_decisions_at", "scale_decisions", ["at", "id"], unique=False)
    op.create_index("ix_scale_decisions_pool_at", "scale_decisions", ["pool", "at", "id"], unique=False)
    undone = _where("outcome IN ('begun', 'draining')")
    op.create_index("ux_scale_decisions_open", "scale_decisions", ["pool"], unique=True, **undone)
    op.create_table(
        "schedule_firings",
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("fire_at", Moment(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("schedule_id", "fire_at", name=op.f("pk_schedule_firings")),
    )
    op.create_index("ix_schedule_firings_at", "schedule_firings", ["at"], unique=False)
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), server_default="UTC", nullable=False),
        sa.Column("overlap", sa.Text(), server_default="skip", nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column(
            "template",
            Json,
            server_default="{}",
            nullable=False,
        ),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("next_at", Moment(), nullable=True),
        sa.Column("last_at", Moment(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("updated_at", Moment(), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_schedules_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(
        "ix_schedules_next_at", "schedules", ["next_at"], unique=False, **_where("NOT paused AND next_at IS NOT NULL")
    )
    op.create_index("ux_schedules_workspace_id_name", "schedules", ["workspace_id", "name"], unique=True)
    op.create_table(
        "worker_cordons",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", Moment(), nullable=False),
        sa.Column("until", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("host", "name", name=op.f("pk_worker_cordons")),
    )
    op.create_table(
        "workspace_rates",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("full_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", name=op.f("pk_workspace_rates")),
    )
    op.create_table(
        "mailbox_counters",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("mailboxes", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", name=op.f("pk_mailbox_counters")),
    )
    op.add_column("mailboxes", sa.Column("counted", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index("ix_mailboxes_counted", "mailboxes", ["workspace_id", "expires_at"], **_where("counted"))
    _count_mailboxes()
    op.add_column("sessions", sa.Column("parent_run_id", sa.Text(), nullable=True))
    child = _where("parent_run_id IS NOT NULL")
    op.create_index("ix_sessions_parent_run_id", "sessions", ["parent_run_id"], unique=False, **child)
    op.add_column("runs", sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("workspaces", sa.Column("runs_per_minute", sa.Integer(), nullable=True))
    op.add_column("workspaces", sa.Column("runs_burst", sa.Integer(), nullable=True))


def _count_mailboxes() -> None:
    """Those that live; one of a session is none of them."""
    boxes = sa.table("mailboxes", *map(sa.column, ("workspace_id", "session_id", "expires_at", "counted")))
    living = sa.or_(boxes.c.expires_at.is_(None), boxes.c.expires_at > now())
    op.execute(sa.update(boxes).where(boxes.c.session_id.is_(None), living).values(counted=sa.true()))
    counted = sa.select(boxes.c.workspace_id, sa.func.count()).where(sa.text("counted"))
    counters = sa.table("mailbox_counters", sa.column("workspace_id"), sa.column("mailboxes"))
    grouped = counted.group_by(boxes.c.workspace_id)
    op.execute(sa.insert(counters).from_select(["workspace_id", "mailboxes"], grouped))
