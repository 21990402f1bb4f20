"""Homes of sessions: where a program's own files of a conversation are, and why an attempt's agent began anew.
Workspaces: which questions of agents a rule answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from oah.adapters.sql.columns import Json

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Five columns."""
    op.add_column("sessions", sa.Column("home", Json, nullable=True))
    op.add_column("sessions", sa.Column("worktree", Json, nullable=True))
    op.add_column("workspaces", sa.Column("answers", Json, nullable=True))
    op.add_column("workspaces", sa.Column("worktree", Json, nullable=True))
    op.add_column("run_attempts", sa.Column("agent_reason", sa.Text(), nullable=True))
