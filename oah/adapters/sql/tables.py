"""The tables. Names and meanings are those of the design; what only one dialect can do is said with its prefix.

No update of a run can be a heap-only one (its status stands in the predicates of the partial indexes), so only the
sessions, the owner rows and the counters leave room on their pages.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)

from oah.adapters.sql.columns import Json, Moment
from oah.core.model.run import RunClass, StopReason

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

CLASS_RANKS = {RunClass.INTERACTIVE: 0, RunClass.SUBAGENT: 1, RunClass.BACKGROUND: 2}
"""The order of the classes of runs, as ``class_rank`` has it."""
QUEUED = "status = 'queued'"
ELIGIBLE = "status = 'queued' AND NOT deferred"
ACTIVE = "status IN ('running', 'waiting_tool')"
ENDED = "status IN ('completed', 'failed', 'cancelled', 'timed_out')"
LATEST = "status = 'queued' AND start_by IS NOT NULL"
DEADLINE = "status = 'queued' AND deadline_at IS NOT NULL"
CLOSED = "state = 'closed'"
MAIL = "unsettled > 0 OR wake_run_id IS NOT NULL"
LIMITS_OF_ONE_ATTEMPT = tuple(each.value for each in StopReason if each.of_one_attempt)
"""Stop reasons that go with the attempt, and are nobody's wish about the run."""
LIMIT_OF_ONE_ATTEMPT = "stop_reason IN (" + ", ".join(f"'{each}'" for each in LIMITS_OF_ONE_ATTEMPT) + ")"
LOST = "worker_lost"
"""Outcome of an attempt whose owner went away, and the error code of a run that failed by it."""
OPEN_STEP = "ended_at IS NULL AND deadline_at IS NOT NULL"

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("weight", Integer, nullable=False, server_default="1"),
    Column("max_active_runs", Integer),
    Column("max_queued_runs", Integer),
    Column("created_at", Moment, nullable=False),
    Column("recovery_strategy", Text),
    Column("recovery_max_attempts", Integer),
    # Which questions of agents a rule answers; null: none.
    Column("answers", Json),
    Column("worktree", Json),
    # Runs that may be submitted per minute, and how many of them at once; null: any.
    Column("runs_per_minute", Integer),
    Column("runs_burst", Integer),
)

# How many runs of a workspace are queued, in parts: each process adds to a part of its own, so that a submit and a
# start of one workspace do not wait for each other's commit. The sum is the figure; reconcile recomputes it.
workspace_counters = Table(
    "workspace_counters",
    metadata,
    Column("workspace_id", Text, nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("queued", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("workspace_id", "part"),
    postgresql_with={"fillfactor": "50"},
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("pool", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="open"),
    Column("next_position", BigInteger, nullable=False, server_default="1"),
    # Of runs that go before all others (on_busy=interrupt); counts down.
    Column("front_position", BigInteger, nullable=False, server_default="0"),
    Column("event_seq", BigInteger, nullable=False, server_default="0"),
    Column("queued_count", Integer, nullable=False, server_default="0"),
    # Reason → microseconds since the epoch at which it ends by itself, or null. "held" is derived: 1 while any stands.
    Column("holds", Json, nullable=False, server_default="{}"),
    Column("held", SmallInteger, nullable=False, server_default="0"),
    Column("session_ref", Text),
    # Where the program's own files of the conversation are (core/model/home.py).
    Column("home", Json),
    Column("cwd", Text),
    Column("worktree", Json),
    Column("env", Json, nullable=False, server_default="{}"),
    Column("title", Text),
    Column("labels", Json, nullable=False, server_default="{}"),
    Column("metadata", Json, nullable=False, server_default="{}"),
    Column("created_at", Moment, nullable=False),
    Column("closed_at", Moment),
    # Whether a message starts the agent; wakes that failed in a row, when the next may be, and why there is none.
    Column("wake", Text, nullable=False, server_default="lazy"),
    Column("wake_failures", Integer, nullable=False, server_default="0"),
    Column("wake_after", Moment),
    Column("wake_stopped", Text),
    # The wake that has promised to deliver whatever is queued: cleared when it finds nothing more.
    Column("wake_run_id", Text),
    # Messages for its agent that are neither acknowledged nor given up.
    Column("unsettled", Integer, nullable=False, server_default="0"),
    # The run whose agent opened it.
    Column("parent_run_id", Text),
    Index("ix_sessions_workspace_id_created_at", "workspace_id", "created_at"),
    # By age, for retention.
    Index("ix_sessions_closed_at", "closed_at", postgresql_where=text(CLOSED), sqlite_where=text(CLOSED)),
    # Few at a time; looked through by the diagnosis.
    Index("ix_sessions_held", "id", postgresql_where=text("held = 1"), sqlite_where=text("held = 1")),
    # Those that messages wait for, and whose wake is under way.
    Index("ix_sessions_unsettled", "id", postgresql_where=text(MAIL), sqlite_where=text(MAIL)),
    postgresql_with={"fillfactor": "60"},
)

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
    Column("workspace_id", Text, nullable=False),
    Column("parent_run_id", Text),
    Column("position", BigInteger, nullable=False),
    Column("class", Text, nullable=False),
    Column("class_rank", SmallInteger, nullable=False),
    Column("input", Text, nullable=False),
    Column("metadata", Json, nullable=False, server_default="{}"),
    Column("status", Text, nullable=False),
    Column("deferred", Boolean, nullable=False, server_default=text("false")),
    Column("due_at", Moment),
    # The epoch under which the broker has heard of the run; '' = of none. This is the outbox of runs.
    Column("dispatched_epoch", Text, nullable=False, server_default=text("''")),
    Column("attempt", Integer, nullable=False, server_default="0"),
    # Why the next start happens; run_attempts gets it.
    Column("queued_reason", Text, nullable=False, server_default="first"),
    Column("claim_token", Text),
    Column("worker_id", Text),
    Column("recovery_attempts", Integer, nullable=False, server_default="0"),
    Column("failed_attempts", Integer, nullable=False, server_default="0"),
    # Null: nobody has said so for this run, the rules of its profile hold.
    Column("max_retries", Integer),
    Column("timeout_ms", BigInteger),
    Column("deadline_at", Moment),
    Column("cancel_requested_at", Moment),
    Column("cancel_requested_by", Text),
    Column("result", Text),
    Column("result_blob", Text),
    Column("exit_code", Integer),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("recovery", Json),
    Column("recovery_state", Text),
    Column("note", Text),
    Column("created_at", Moment, nullable=False),
    Column("queued_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    Column("order_mode", Text, nullable=False, server_default="strict"),
    Column("start_by", Moment),
    Column("idle_timeout_ms", BigInteger),
    Column("step_timeout_ms", BigInteger),
    Column("retry", Json),
    Column("recovery_strategy", Text),
    Column("recovery_max_attempts", Integer),
    Column("stop_reason", Text),
    Column("voided", Boolean, nullable=False, server_default=text("false")),
    # "prompt", or "wake": it gives the session's messages to its agent and has no text of its own. That one is enough
    # is a matter of sessions.wake_run_id: one that has looked for the last time may be queued again beside the next.
    Column("kind", Text, nullable=False, server_default="prompt"),
    # Within its workspace: sessions whose first run has a higher one are taken first.
    Column("priority", SmallInteger, nullable=False, server_default="0"),
)
Index("ux_runs_active", runs.c.session_id, unique=True, postgresql_where=text(ACTIVE), sqlite_where=text(ACTIVE))
Index(
    "ix_runs_eligible",
    runs.c.session_id,
    runs.c.position,
    postgresql_where=text(ELIGIBLE),
    sqlite_where=text(ELIGIBLE),
)
# The highest waiting class of a session is its first entry; also the walk over sessions with queued runs.
Index(
    "ix_runs_waiting",
    runs.c.session_id,
    runs.c.deferred,
    runs.c.class_rank,
    postgresql_where=text(QUEUED),
    sqlite_where=text(QUEUED),
)
Index(
    "ix_runs_dispatched",
    runs.c.dispatched_epoch,
    runs.c.created_at,
    postgresql_where=text(QUEUED),
    sqlite_where=text(QUEUED),
)
# Runs that wait for their time: small, walked by rehydrate and reconcile.
Index(
    "ix_runs_deferred",
    runs.c.id,
    postgresql_where=text("status = 'queued' AND deferred"),
    sqlite_where=text("status = 'queued' AND deferred"),
)
# Queued runs that may not wait for ever: small, read once a second by the leader.
Index("ix_runs_start_by", runs.c.start_by, postgresql_where=text(LATEST), sqlite_where=text(LATEST))
Index("ix_runs_deadline_at", runs.c.deadline_at, postgresql_where=text(DEADLINE), sqlite_where=text(DEADLINE))
CHILD = "parent_run_id IS NOT NULL"
Index("ix_runs_parent_run_id", runs.c.parent_run_id, postgresql_where=text(CHILD), sqlite_where=text(CHILD))
Index("ix_sessions_parent_run_id", sessions.c.parent_run_id, postgresql_where=text(CHILD), sqlite_where=text(CHILD))
# What goes with its parent: walked by the leader.
LIVE_CHILD = f"{CHILD} AND status IN ('queued', 'running', 'waiting_tool')"
Index("ix_runs_live_children", runs.c.parent_run_id, postgresql_where=text(LIVE_CHILD), sqlite_where=text(LIVE_CHILD))
# By age, for retention.
Index("ix_runs_ended_at", runs.c.ended_at, postgresql_where=text(ENDED), sqlite_where=text(ENDED))
# What recovery did, for those who look after it; most runs never meet it.
RECOVERED = "recovery_state IS NOT NULL"
Index(
    "ix_runs_recovery_state",
    runs.c.recovery_state,
    runs.c.created_at,
    postgresql_where=text(RECOVERED),
    sqlite_where=text(RECOVERED),
)
# Not by position: the eligible ones alone are found by it, or a plan could walk the history of a session.
Index("ix_runs_session_id_created_at", runs.c.session_id, runs.c.created_at)
# No index but the primary key contains the id: a plan made on an empty table could take it for a way to a run.
Index("ix_runs_workspace_id_created_at", runs.c.workspace_id, runs.c.created_at)
Index("ix_runs_workspace_id_status", runs.c.workspace_id, runs.c.status)

run_attempts = Table(
    "run_attempts",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("claim_token", Text, nullable=False),
    Column("agent", Text),
    Column("agent_reason", Text),
    Column("home", Text),
    Column("recording_blob", Text),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("outcome", Text),
    PrimaryKeyConstraint("run_id", "attempt"),
    postgresql_with={"fillfactor": "70"},
)

# Narrow on purpose: the mark rewrites every row of a worker each few seconds. seen_at stands in no index.
session_owners = Table(
    "session_owners",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("claim_token", Text, nullable=False),
    Column("parked", Boolean, nullable=False, server_default=text("false")),
    Column("seen_at", Moment, nullable=False),
    # When the run itself was last heard from (a step, progress), for its idle time-out.
    Column("heard_at", Moment),
    Index("ix_session_owners_worker_id", "worker_id"),
    postgresql_with={"fillfactor": "50"},
)

run_events = Table(
    "run_events",
    metadata,
    Column("session_id", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("run_id", Text),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("type", Text, nullable=False),
    Column("data", Json, nullable=False, server_default="{}"),
    Column("at", Moment, nullable=False),
    PrimaryKeyConstraint("session_id", "number"),
    Index("ix_run_events_run_id_number", "run_id", "number"),
)

run_steps = Table(
    "run_steps",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("data", Json, nullable=False, server_default="{}"),
    Column("at", Moment, nullable=False),
    Column("deadline_at", Moment),
    Column("ended_at", Moment),
    Column("outcome", Text),
    PrimaryKeyConstraint("run_id", "number"),
)
# Steps under way that may not take longer: read once a second by the leader.
Index(
    "ix_run_steps_deadline_at", run_steps.c.deadline_at, postgresql_where=text(OPEN_STEP), sqlite_where=text(OPEN_STEP)
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("workspace_id", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    PrimaryKeyConstraint("workspace_id", "key"),
    Index("ix_idempotency_keys_created_at", "created_at"),
)

dispatch_epochs = Table(
    "dispatch_epochs",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("created_at", Moment, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("started_at", Moment, nullable=False),
    Index("ix_workers_started_at", "started_at"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    # sha256 of the secret, hexadecimal; the secret itself is shown once and stored nowhere.
    Column("digest", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("workspace_id", Text, ForeignKey("workspaces.id")),
    Column("scopes", Json, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
)

worker_commands = Table(
    "worker_commands",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("given_by", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("taken_at", Moment),
    # Of a command about a run (input, steer): which attempt, what to say to it, and what came of it.
    Column("run_id", Text),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("data", Json, nullable=False, server_default="{}"),
    Column("answer", Json),
    Column("answered_at", Moment),
    # The run that a steer would have become, had none been active: under it a repeated request finds its command.
    Column("request_id", Text),
)
Index("ix_worker_commands_at", worker_commands.c.at)
Index(
    "ix_worker_commands_waiting",
    worker_commands.c.worker_id,
    postgresql_where=text("taken_at IS NULL"),
    sqlite_where=text("taken_at IS NULL"),
)
REQUESTED = "request_id IS NOT NULL"
Index(
    "ux_worker_commands_request_id",
    worker_commands.c.request_id,
    unique=True,
    postgresql_where=text(REQUESTED),
    sqlite_where=text(REQUESTED),
)
