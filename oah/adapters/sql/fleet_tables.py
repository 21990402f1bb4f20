"""The tables of the fleet: what scaling decided, rolling restarts, what is paused or capped, who is cordoned,
schedules and their firings."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, PrimaryKeyConstraint, Table, Text, text

from oah.adapters.sql.columns import Json, Moment
from oah.adapters.sql.tables import metadata

# Why the fleet has the size that it has: one row per decision that differs from the last. Bounded by retention.
# ``inputs``: what the policy was shown. ``outcome``: what came of it at the target. ``going``: name of a worker that
# will go → since when, which incarnation. ``version``: for compare-and-set.
scale_decisions = Table(
    "scale_decisions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Moment, nullable=False),
    Column("pool", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("current", Integer, nullable=False),
    Column("desired", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("inputs", Json, nullable=False, server_default="{}"),
    Column("outcome", Text, nullable=False),
    Column("detail", Json, nullable=False, server_default="{}"),
    Column("going", Json, nullable=False, server_default="{}"),
    Column("version", Integer, nullable=False, server_default="0"),
    Index("ix_scale_decisions_at", "at", "id"),
    Index("ix_scale_decisions_pool_at", "pool", "at", "id"),
)
OPEN_DECISION = "outcome IN ('begun', 'draining')"
Index(
    "ux_scale_decisions_open",
    scale_decisions.c.pool,
    unique=True,
    postgresql_where=text(OPEN_DECISION),
    sqlite_where=text(OPEN_DECISION),
)

# A rolling restart of a pool: this row is the truth, whoever leads goes on with it. ``members``: worker id → where it
# stands.
rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="running"),
    Column("batch", Integer, nullable=False, server_default="1"),
    Column("arguments", Json, nullable=False, server_default="{}"),
    Column("members", Json, nullable=False, server_default="{}"),
    Column("reason", Text),
    Column("error", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("revision", Integer, nullable=False, server_default="0"),
    Index("ix_rollouts_created_at", "created_at", "id"),
)
OPEN_ROLLOUT = "ended_at IS NULL"
Index(
    "ux_rollouts_open",
    rollouts.c.pool,
    unique=True,
    postgresql_where=text(OPEN_ROLLOUT),
    sqlite_where=text(OPEN_ROLLOUT),
)

# What takes no new runs: a workspace, a pool, a profile. (A session is held: sessions.holds.)
pauses = Table(
    "pauses",
    metadata,
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text),
    Column("at", Moment, nullable=False),
    PrimaryKeyConstraint("kind", "subject"),
)

# Workers that an operator has cordoned, through all their lives: by the name that a host knows them by.
worker_cordons = Table(
    "worker_cordons",
    metadata,
    Column("host", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("until", Moment),
    PrimaryKeyConstraint("host", "name"),
)

# How many runs may be active at once: of a profile, or ("all", "") altogether. A workspace's stand with it.
caps = Table(
    "caps",
    metadata,
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("max_active_runs", Integer, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Moment, nullable=False),
    PrimaryKeyConstraint("kind", "subject"),
)

# How far ahead the submits of a workspace with a rate are, in microseconds of the database (core/policy/rate.py).
workspace_rates = Table(
    "workspace_rates",
    metadata,
    Column("workspace_id", Text, primary_key=True),
    Column("full_at", BigInteger, nullable=False, server_default="0"),
)

# ``next_at``: when it fires next, moved in the transaction that submits the run of the last time.
schedules = Table(
    "schedules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False, server_default="UTC"),
    Column("overlap", Text, nullable=False, server_default="skip"),
    # The session that its runs go to; null: each run gets a session of its own, made as ``template.session`` says.
    Column("session_id", Text),
    Column("template", Json, nullable=False, server_default="{}"),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("next_at", Moment),
    Column("last_at", Moment),
    Column("created_by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index("ux_schedules_workspace_id_name", "workspace_id", "name", unique=True),
)
FIRING = "NOT paused AND next_at IS NOT NULL"
Index("ix_schedules_next_at", schedules.c.next_at, postgresql_where=text(FIRING), sqlite_where=text(FIRING))

# One row per fire time, whoever fired: its primary key is what makes it once.
schedule_firings = Table(
    "schedule_firings",
    metadata,
    Column("schedule_id", Text, nullable=False),
    Column("fire_at", Moment, nullable=False),
    Column("at", Moment, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("run_id", Text),
    Column("detail", Text),
    PrimaryKeyConstraint("schedule_id", "fire_at"),
    Index("ix_schedule_firings_at", "at"),
)
