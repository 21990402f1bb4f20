"""The tables of mailboxes and messages."""

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
    SmallInteger,
    Table,
    Text,
    text,
)

from oah.adapters.sql.columns import Json, Moment
from oah.adapters.sql.tables import metadata

# One life of a mailbox. A row whose time has passed is as good as gone: the next create replaces it.
mailboxes = Table(
    "mailboxes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("address", Text, nullable=False),
    Column("public", Boolean, nullable=False),
    Column("description", Text, nullable=False),
    Column("session_id", Text),
    Column("ttl_ms", BigInteger),
    Column("max_messages", Integer, nullable=False),
    Column("last_seq", BigInteger, nullable=False, server_default="0"),
    Column("messages", BigInteger, nullable=False, server_default="0"),
    Column("turn", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("counted", Boolean, nullable=False, server_default=text("false")),
    Index("ux_mailboxes_workspace_id_address", "workspace_id", "address", unique=True),
    Index("ix_mailboxes_expires_at", "expires_at"),
    Index("ix_mailboxes_session_id", "session_id"),
)
COUNTED = "counted"
Index(
    "ix_mailboxes_counted",
    mailboxes.c.workspace_id,
    mailboxes.c.expires_at,
    postgresql_where=text(COUNTED),
    sqlite_where=text(COUNTED),
)

# How many mailboxes of a workspace have ``counted``: against their limit.
mailbox_counters = Table(
    "mailbox_counters",
    metadata,
    Column("workspace_id", Text, primary_key=True),
    Column("mailboxes", BigInteger, nullable=False, server_default="0"),
)

# ``seq`` is null while a message is delayed. ``settled_at``: nothing reads it any more but a trace (messages of
# sessions stay for a while; those of other mailboxes are deleted).
messages = Table(
    "messages",
    metadata,
    Column("id", Text, primary_key=True),
    Column("mailbox_id", Text, nullable=False),
    Column("seq", BigInteger),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    Column("payload", LargeBinary, nullable=False),
    Column("headers", LargeBinary, nullable=False),
    Column("sender", Text),
    Column("key", Text),
    Column("tags", Json, nullable=False, server_default="[]"),
    Column("sent_at", Moment, nullable=False),
    Column("due_at", Moment),
    Column("expires_at", Moment),
    Column("settled_at", Moment),
)
LIVE = "seq IS NOT NULL AND settled_at IS NULL"
DELAYED = "seq IS NULL AND settled_at IS NULL"
MORTAL = "expires_at IS NOT NULL AND settled_at IS NULL"
Index(
    "ux_messages_mailbox_id_priority_seq",
    messages.c.mailbox_id,
    messages.c.priority,
    messages.c.seq,
    unique=True,
    postgresql_where=text(LIVE),
    sqlite_where=text(LIVE),
)
Index("ix_messages_mailbox_id_seq", messages.c.mailbox_id, messages.c.seq)
Index(
    "ix_messages_due_at",
    messages.c.due_at,
    postgresql_where=text(DELAYED),
    sqlite_where=text(DELAYED),
)
Index(
    "ix_messages_expires_at",
    messages.c.expires_at,
    postgresql_where=text(MORTAL),
    sqlite_where=text(MORTAL),
)
Index(
    "ix_messages_mailbox_id_key",
    messages.c.mailbox_id,
    messages.c.key,
    postgresql_where=text("key IS NOT NULL"),
    sqlite_where=text("key IS NOT NULL"),
)

# A sender's own keys, remembered longer than the messages.
message_keys = Table(
    "message_keys",
    metadata,
    Column("mailbox_id", Text, nullable=False),
    Column("dedup_key", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("seq", BigInteger),
    Column("until", Moment, nullable=False),
    PrimaryKeyConstraint("mailbox_id", "dedup_key"),
    Index("ix_message_keys_until", "until"),
)

# How far each queue group has been handed messages, by priority; ``seen_at``: of groups that nobody asks for any more
# nothing is remembered.
group_cursors = Table(
    "group_cursors",
    metadata,
    Column("mailbox_id", Text, nullable=False),
    Column("group_name", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("seen_at", Moment, nullable=False),
    PrimaryKeyConstraint("mailbox_id", "group_name", "priority"),
    Index("ix_group_cursors_seen_at", "seen_at"),
)

# What is below a group's cursor and not done: held until then (``lease_id``), kept back until then (none), or free
# (``until`` null). No row: the group is through with it.
group_leases = Table(
    "group_leases",
    metadata,
    Column("mailbox_id", Text, nullable=False),
    Column("group_name", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("lease_id", Text),
    Column("holder", Text),
    Column("attempts", Integer, nullable=False),
    Column("most_attempts", Integer, nullable=False),
    Column("until", Moment),
    PrimaryKeyConstraint("mailbox_id", "group_name", "priority", "seq"),
    Index("ix_group_leases_mailbox_id_seq", "mailbox_id", "seq"),
    Index("ux_group_leases_lease_id", "lease_id", unique=True),
    Index("ix_group_leases_holder", "holder"),
    Index("ix_group_leases_until", "until"),
)

# Messages for the agents of sessions, by (session, number): the truth of what became of each.
agent_messages = Table(
    "agent_messages",
    metadata,
    Column("message_id", Text, primary_key=True),
    Column("workspace_id", Text, nullable=False),
    Column("session_id", Text, nullable=False),
    Column("seq", BigInteger),
    Column("mode", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="queued"),
    Column("delivery_id", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("outcome", Text),
    Column("redelivered", Boolean, nullable=False, server_default=text("false")),
    Column("sender", Json, nullable=False),
    Column("run_id", Text),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("callback", Text),
    Column("created_at", Moment, nullable=False),
    Column("delivered_at", Moment),
    Column("expires_at", Moment),
    Column("ended_at", Moment),
    Column("reason", Text),
)
UNSETTLED = "state IN ('queued', 'delivered')"
Index(
    "ix_agent_messages_unsettled",
    agent_messages.c.session_id,
    agent_messages.c.seq,
    postgresql_where=text(UNSETTLED),
    sqlite_where=text(UNSETTLED),
)
Index("ix_agent_messages_session_id_seq", agent_messages.c.session_id, agent_messages.c.seq)
Index(
    "ix_agent_messages_expires_at",
    agent_messages.c.expires_at,
    postgresql_where=text(UNSETTLED),
    sqlite_where=text(UNSETTLED),
)
Index("ix_agent_messages_ended_at", agent_messages.c.ended_at)
