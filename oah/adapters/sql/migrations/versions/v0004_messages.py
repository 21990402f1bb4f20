"""Mailboxes, messages, queue groups; messages for the agents of sessions, and runs that wake them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from oah.adapters.sql.columns import Json, Moment

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _where(condition: str) -> dict[str, Any]:
    return {"postgresql_where": sa.text(condition), "sqlite_where": sa.text(condition)}


def upgrade() -> None:
    """New tables, then new columns of the old ones."""
    op.create_table(
        "agent_messages",
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("redelivered", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("sender", Json, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("callback", sa.Text(), nullable=True),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("delivered_at", Moment(), nullable=True),
        sa.Column("expires_at", Moment(), nullable=True),
        sa.Column("ended_at", Moment(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_agent_messages")),
    )
    op.create_index("ix_agent_messages_ended_at", "agent_messages", ["ended_at"], unique=False)
    op.create_index(
        "ix_agent_messages_expires_at",
        "agent_messages",
        ["expires_at"],
        unique=False,
        **_where("state IN ('queued', 'delivered')"),
    )
    op.create_index("ix_agent_messages_session_id_seq", "agent_messages", ["session_id", "seq"], unique=False)
    op.create_index(
        "ix_agent_messages_unsettled",
        "agent_messages",
        ["session_id", "seq"],
        unique=False,
        **_where("state IN ('queued', 'delivered')"),
    )
    op.create_table(
        "group_cursors",
        sa.Column("mailbox_id", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("mailbox_id", "group_name", "priority", name=op.f("pk_group_cursors")),
    )
    op.create_index("ix_group_cursors_seen_at", "group_cursors", ["seen_at"], unique=False)
    op.create_table(
        "group_leases",
        sa.Column("mailbox_id", sa.Text(), nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("lease_id", sa.Text(), nullable=True),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("most_attempts", sa.Integer(), nullable=False),
        sa.Column("until", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("mailbox_id", "group_name", "priority", "seq", name=op.f("pk_group_leases")),
    )
    op.create_index("ix_group_leases_holder", "group_leases", ["holder"], unique=False)
    op.create_index("ix_group_leases_mailbox_id_seq", "group_leases", ["mailbox_id", "seq"], unique=False)
    op.create_index("ix_group_leases_until", "group_leases", ["until"], unique=False)
    op.create_index("ux_group_leases_lease_id", "group_leases", ["lease_id"], unique=True)
    op.create_table(
        "message_keys",
        sa.Column("mailbox_id", sa.Text(), nullable=False),
        sa.Column("dedup_key", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("until", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("mailbox_id", "dedup_key", name=op.f("pk_message_keys")),
    )
    op.create_index("ix_message_keys_until", "message_keys", ["until"], unique=False)
    op.create_table(
        "messages",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("mailbox_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("headers", sa.LargeBinary(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("tags", Json, server_default="[]", nullable=False),
        sa.Column("sent_at", Moment(), nullable=False),
        sa.Column("due_at", Moment(), nullable=True),
        sa.Column("expires_at", Moment(), nullable=True),
        sa.Column("settled_at", Moment(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    op.create_index(
        "ix_messages_due_at", "messages", ["due_at"], unique=False, **_where("seq IS NULL AND settled_at IS NULL")
    )
    op.create_index(
        "ix_messages_expires_at",
        "messages",
        ["expires_at"],
        unique=False,
        **_where("expires_at IS NOT NULL AND settled_at IS NULL"),
    )
    op.create_index(
        "ix_messages_mailbox_id_key", "messages", ["mailbox_id", "key"], unique=False, **_where("key IS NOT NULL")
    )
    op.create_index("ix_messages_mailbox_id_seq", "messages", ["mailbox_id", "seq"], unique=False)
    op.create_index(
        "ux_messages_mailbox_id_priority_seq",
        "messages",
        ["mailbox_id", "priority", "seq"],
        unique=True,
        **_where("seq IS NOT NULL AND settled_at IS NULL"),
    )
    op.create_table(
        "mailboxes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("public", sa.Boolean(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("ttl_ms", sa.BigInteger(), nullable=True),
        sa.Column("max_messages", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("messages", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", Moment(), nullable=False),
        sa.Column("expires_at", Moment(), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_mailboxes_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mailboxes")),
    )
    op.create_index("ix_mailboxes_expires_at", "mailboxes", ["expires_at"], unique=False)
    op.create_index("ix_mailboxes_session_id", "mailboxes", ["session_id"], unique=False)
    op.create_index("ux_mailboxes_workspace_id_address", "mailboxes", ["workspace_id", "address"], unique=True)
    op.add_column("runs", sa.Column("kind", sa.Text(), server_default="prompt", nullable=False))
    op.add_column("sessions", sa.Column("wake", sa.Text(), server_default="lazy", nullable=False))
    op.add_column("sessions", sa.Column("wake_failures", sa.Integer(), server_default="0", nullable=False))
    op.add_column("sessions", sa.Column("wake_after", Moment(), nullable=True))
    op.add_column("sessions", sa.Column("wake_stopped", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("wake_run_id", sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("unsettled", sa.Integer(), server_default="0", nullable=False))
    op.create_index(
        "ix_sessions_unsettled",
        "sessions",
        ["id"],
        unique=False,
        **_where("unsettled > 0 OR wake_run_id IS NOT NULL"),
    )
