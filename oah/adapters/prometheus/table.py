"""Every metric of OAH, in one table. What is not here does not exist.

Labels are closed sets, or *open*: bounded by configuration (lanes, route templates) and cut off at `OPEN_VALUES`, after
which further values are counted as `other`. Ids are never labels. Durations are seconds, sizes bytes.

Gauges marked "leader" are measured in the stores by the leader alone; no other process shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oah.adapters.prometheus.metric import Kind, Metric
from oah.adapters.prometheus.metric import counter as _counter
from oah.adapters.prometheus.metric import gauge as _gauge
from oah.adapters.prometheus.metric import histogram as _histogram
from oah.adapters.prometheus.metric import of as _of
from oah.adapters.prometheus.pool_table import CLASS, POOLS
from oah.adapters.prometheus.scale_table import SCALING
from oah.core.model.question import DialogKind
from oah.core.policy.retry import LABELS
from oah.core.policy.waiting import WaitCode

OPEN_VALUES = 200
"""Distinct values an open label may take in one process before the rest becomes `other`."""

OTHER = "other"


_CLASS = CLASS
_READY_CLASS = _CLASS | {"resume", "suspect"}
_STATUS = _of("completed", "failed", "cancelled", "timed_out")
_WAITS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
_DURATIONS = (0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
_CALLS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


_RUNS = (
    _counter("oah_runs_submitted_total", "Runs accepted: their rows are committed", class_=_CLASS),
    _counter("oah_submits_refused_total", "Submits refused, by the code of the problem", code=None),
    _counter(
        "oah_cancels_total", "Cancels asked for, by what they found", result=_of("removed", "signalled", "too_late")
    ),
    _counter(
        "oah_steers_total",
        "Texts said to working agents, by what became of them",
        delivery=_of("delivered", "unverified", "unsupported", "missed"),
    ),
    _counter("oah_runs_stopped_total", "Active runs asked to stop for another", on_busy=_of("interrupt", "rollback")),
    _counter(
        "oah_runs_started_total",
        "Attempts started, by why",
        class_=_READY_CLASS,
        reason=_of("first", "recovered", "released", "retried", "requeued", "resumed"),
    ),
    _counter("oah_runs_settled_total", "Runs that reached a terminal status", status=_STATUS, class_=_READY_CLASS),
    _counter(
        "oah_retries_total", "Failed attempts that are followed by another, by the error of the attempt", reason=LABELS
    ),
    _histogram("oah_run_wait_seconds", "Eligible to started", _WAITS, class_=_READY_CLASS),
    _histogram("oah_run_duration_seconds", "Started to settled, one attempt", _DURATIONS, status=_STATUS),
    _counter(
        "oah_recoveries_total",
        "Decisions about runs whose owner is gone",
        decision=_of("requeued", "failed", "quarantined", "cancelled", "freed"),
    ),
    _counter(
        "oah_timeouts_total",
        "Attempts and queued runs that a limit ended, by its code",
        code=_of(
            *("run_timeout", "deadline_exceeded", "start_timeout", "idle_timeout", "step_timeout", "model_timeout"),
            "wait_timeout",
        ),
    ),
    _counter(
        "oah_questions_total",
        "Questions of agents, by kind: asked of people, answered by them, allowed or denied by a policy",
        kind=_of(*DialogKind),
        outcome=_of("asked", "answered", "allowed", "denied"),
    ),
    _counter(
        "oah_hooks_total",
        "Hooks called around runs, by moment and how it went",
        when=_of(
            *("before_run", "after_run", "on_cancel", "on_completed", "on_failed", "on_cancelled", "on_timed_out")
        ),
        outcome=_of("ok", "failed", "timeout", "dropped"),
    ),
    _counter("oah_runs_quarantined_total", "Runs set aside after their recovery attempts were spent"),
    _counter(
        "oah_writes_refused_total",
        "Writes that the fence in SQL refused; they changed nothing",
        write=_of("start", "settle", "release", "event", "step", "wait", "resume", "mark", "recover", "cancel"),
    ),
    _gauge("oah_viewers", "Who watches terminals at this process, or types into them", kind=_of("read", "write")),
    _counter("oah_terminal_skipped_bytes_total", "Terminal output that was left out for slow viewers"),
    _counter(
        "oah_output_truncated_total",
        "Output cut at its bound, or by a screen",
        what=_of("buffer", "result", "screen"),
    ),
)

_LETTERS = (
    _counter(
        "oah_dead_letters_total",
        "Dead letters written, and what became of them",
        kind=_of("run", "message", "outbox", "poison"),
        what=_of("added", "evicted", "redriven", "purged"),
    ),
    _gauge("oah_jobs_queued", "Maintenance jobs that nobody has begun (leader)"),
    _gauge("oah_jobs_running", "Maintenance jobs that were begun and are not over (leader)"),
    _counter(
        "oah_jobs_total",
        "Maintenance jobs that ended (leader)",
        kind=None,
        outcome=_of("completed", "failed", "cancelled"),
    ),
    _gauge("oah_dead_letters_now", "Letters that are dead (leader)", kind=_of("run", "message", "outbox", "poison")),
    _counter(
        "oah_pruned_total",
        "Rows (and recordings) that aged out",
        what=_of(
            "dead_letters", "idempotency_keys", "events", "recordings", "runs", "sessions", "audit", "jobs",
            "webhook_deliveries", "commands", "workers", "messages", "homes", "directories",
        ),
    ),
)  # fmt: skip

_DISPATCH = (
    _counter("oah_claims_total", "Claims sent, by answer", answer=_of("ok", "empty", "epoch", "rebuilding", "error")),
    _counter("oah_sessions_claimed_total", "Sessions that claims handed out", kind=_of("new", "parked")),
    _counter(
        "oah_starts_total",
        "What the start statement answered per session",
        answer=_of(
            "started", "resumed", "active", "held", "paused", "suspect", "elsewhere", "none", "late", "in_doubt"
        ),
    ),
    _counter(
        "oah_reconcile_repairs_total",
        "Sessions and runs found without their place on two looks",
        repair=_of("ready", "held", "restored", "freed", "cap", "due", "stale_key"),
    ),
    _counter("oah_relay_enqueued_total", "Runs enqueued by the relay instead of by their submit"),
    _counter(
        "oah_epochs_minted_total",
        "New epochs, by what made the old one suspect",
        reason=_of("first", "missing", "older", "unknown", "server_changed", "slot", "asked"),
    ),
    _gauge("oah_epoch_state", "1 for the state the shard is in (leader)", state=_of("open", "rebuilding", "suspect")),
    _gauge("oah_ready_sessions", "Ready sessions (leader)", lane=None, class_=_READY_CLASS),
    _gauge("oah_oldest_ready_age_seconds", "Age of the longest ready session, 0 when none is (leader)"),
    _gauge(
        "oah_poison_values", "Values in Redis that could not be read and were set aside, at most 100 a shard (leader)"
    ),
    _gauge("oah_queued_runs", "Queued runs, counted in SQL (leader)"),
    _gauge("oah_deferred_runs", "Queued runs that wait for their due time (leader)"),
    _gauge(
        "oah_active_runs", "Running and waiting runs, counted in SQL (leader)", status=_of("running", "waiting_tool")
    ),
    _gauge("oah_running_runs_without_heartbeat", "Active runs whose mark is older than a lease (leader)"),
    _gauge("oah_cancels_unheeded", "Active runs asked to stop longer ago than killing takes, at most 100 (leader)"),
    _gauge("oah_unkillable_sessions", "Sessions held for a process that could not be killed, at most 100 (leader)"),
    _gauge(
        "oah_long_waiting_runs",
        "Why the longest waiting of the runs that have been eligible for more than a minute wait, at most 100 (leader)",
        reason=_of(*(str(code) for code in WaitCode)),
    ),
    _gauge("oah_oldest_waiting_age_seconds", "Age of the longest eligible run, 0 below a minute (leader)"),
    _gauge("oah_sessions_without_place", "Of their sessions, those that the broker does not know (leader)"),
    _gauge("oah_lane_without_worker_sessions", "Ready sessions of lanes that no live worker takes (leader)", lane=None),
    _gauge("oah_leader", "1 in the process that holds the leader lease"),
    _gauge("oah_recovery_on_hold", "1 while a stepped clock, a new leader or a returned database holds recovery"),
    _gauge("oah_clock_step_seconds", "Last step seen, against CLOCK_BOOTTIME (leader)", clock=_of("redis", "database")),
)

_WORKERS = (
    _gauge(
        "oah_workers_active",
        "Workers whose heartbeat is fresh (leader)",
        state=_of("starting", "idle", "busy", "stopping"),
    ),
    _gauge("oah_worker_state", "1 for the state of this worker", state=_of("starting", "idle", "busy", "stopping")),
    _gauge("oah_worker_cordoned", "1 while this worker takes no new runs"),
    _gauge("oah_rollouts_open", "Rolling restarts that go on (leader)"),
    _counter("oah_rollouts_total", "Rolling restarts that went to their end", state=_of("completed", "failed")),
    _gauge("oah_worker_slots", "Slots of this worker that are open"),
    _gauge("oah_worker_slots_max", "Slots that it may open: its capacity"),
    _gauge("oah_worker_slots_busy", "Slots whose agent is at work"),
    _gauge("oah_worker_slots_weight", "Slots that they take, by the weights of their profiles"),
    _counter("oah_worker_slots_changes_total", "Slots were opened or closed", direction=_of("up", "down")),
    _gauge(
        "oah_worker_pressure",
        "1 while the resource is under pressure: no new runs meanwhile",
        resource=_of("memory", "load", "disk"),
    ),
    _gauge(
        "oah_worker_usage",
        "Memory and disk in use, of what there is; processes that run or want to, per core",
        resource=_of("memory", "load", "disk"),
    ),
    _gauge("oah_worker_parked", "Parked sessions of this worker"),
    _gauge("oah_worker_waiting", "Runs of this worker that wait for an answer, without a slot"),
    _gauge("oah_outcomes_unsettled", "Outcomes of ended attempts that are not committed yet"),
    _counter(
        "oah_renewals_total",
        "Leases in Redis, per renewal",
        outcome=_of("extended", "expired", "lost", "epoch", "error"),
    ),
    _counter("oah_marks_total", "Owner rows in SQL, per mark", outcome=_of("kept", "lost", "error")),
    _gauge("oah_witness_age_seconds", "Age of the last confirmation of this worker", witness=_of("renew", "mark")),
    _counter("oah_leases_lost_total", "Sessions this worker lost the right to", how=_of("told", "deadline", "fenced")),
    _counter("oah_leases_returned_total", "Leases of this worker that it did not know and gave back"),
    _counter(
        "oah_agents_opened_total",
        "Agents a slot got for an attempt",
        agent=_of("warm", "resumed", "fresh", "repaired"),
    ),
    _counter(
        "oah_agents_killed_total",
        "Agents whose tree was killed",
        reason=_of("deadman", "lost", "cancel", "timeout", "drain", "close", "host_lost", "swept", "unkillable"),
    ),
    _counter("oah_agent_host_restarts_total", "PTY hosts started again after they failed"),
)

_EDGES = (
    _counter(
        "oah_http_requests_total",
        "HTTP requests answered",
        route=None,
        method=_of("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"),
        status=None,
    ),
    _histogram("oah_http_request_seconds", "Time to the answer's last byte, streams excepted", _CALLS, route=None),
    _gauge("oah_streams_open", "Event streams held open"),
    _gauge("oah_mail_readers", "Streams of mailboxes held open, and receives that wait for a message"),
    _counter(
        "oah_redis_errors_total",
        "Calls that Redis did not answer well",
        kind=_of("timeout", "connection", "backpressure", "noscript", "loading", "moved", "other"),
    ),
    _counter(
        "oah_sql_errors_total",
        "Transactions that the database did not commit well",
        kind=_of("unavailable", "in_doubt", "broken"),
    ),
    _counter(
        "oah_webhook_deliveries_total",
        "Tries of webhook deliveries, in the process that sends them",
        outcome=_of("delivered", "retried", "failed"),
    ),
    _counter(
        "oah_schedule_firings_total",
        "Fire times of schedules, by what came of them (leader)",
        outcome=_of("submitted", "skipped", "missed", "refused"),
    ),
    _counter(
        "oah_messages_delivered_total",
        "Messages given to agents, by what their terminals showed of it",
        outcome=_of("confirmed", "unverified", "failed"),
    ),
    _counter(
        "oah_agent_messages_ended_total",
        "What the sweep did to messages for agents (leader)",
        what=_of("expired", "dead", "returned"),
    ),
    _counter("oah_wakes_repaired_total", "Wakes that were missing, or due again after one that failed (leader)"),
    _counter("oah_wakes_stopped_total", "Sessions whose agents messages start no more: too many wakes failed (leader)"),
    _gauge("oah_messages_overdue", "Messages queued for long although their recipient is ready (leader)"),
    _counter("oah_webhooks_switched_off_total", "Webhooks whose receiver took nothing"),
    _gauge("oah_webhook_deliveries_pending", "Deliveries that have not arrived yet (leader)"),
    _gauge("oah_webhook_oldest_pending_age_seconds", "Age of the oldest delivery that is pending (leader)"),
    _gauge("oah_webhooks_off", "Webhooks that were switched off because nothing was taken (leader)"),
    _histogram("oah_script_seconds", "Redis scripts, as the caller waits for them", _CALLS, script=None),
    _histogram(
        "oah_sql_seconds",
        "Transactions, as the caller waits for them",
        _CALLS,
        work=_of("hot", "write", "read", "mark"),
    ),
    _histogram("oah_batch_size", "Members of a batch of store work", (1, 2, 4, 8, 16, 32, 64, 128), work=None),
)

_MAIL = (
    _gauge("oah_mailboxes", "Mailboxes that have not expired (leader)"),
    _gauge("oah_mailbox_messages", "Messages in them, but for those of sessions (leader)"),
    _counter("oah_messages_sent_total", "Messages stored", priority=_of("normal", "urgent", "critical")),
    _counter("oah_messages_refused_total", "Messages refused, by the code of the problem", code=None),
    _counter("oah_messages_leased_total", "Messages handed to members of queue groups"),
    _counter("oah_messages_deleted_total", "Messages deleted by somebody"),
    _counter("oah_messages_expired_total", "Messages deleted because their time, or their mailbox's, was over"),
    _counter("oah_messages_due_total", "Delayed messages that became readable"),
    _counter("oah_message_leases_ended_total", "Leases that ended before their messages were done with"),
    _counter("oah_mailboxes_expired_total", "Mailboxes that were removed after their end"),
)

_GATEWAY = (
    _gauge("oah_gateway_connections", "NATS clients of this gateway"),
    _gauge("oah_gateway_subscriptions", "Their subscriptions"),
    _counter(
        "oah_gateway_ends_total",
        "Clients that went or were let go, by why",
        reason=_of("client", "slow", "stale", "protocol", "refused", "limit", "unavailable", "fault", "stop"),
    ),
    _counter(
        "oah_gateway_requests_total",
        "Messages and requests to mailboxes over NATS, by what became of them",
        verb=_of(
            *("create", "send", "list", "delete", "fetch", "ack", "query"),
            *("register", "unregister", "report", "discover"),
        ),
        result=_of("done", "refused", "failed"),
    ),
    _counter(
        "oah_gateway_refusals_total",
        "Subjects that clients may not use, or that say nothing",
        what=_of("publish", "subscribe"),
    ),
    _counter("oah_gateway_pushed_total", "Messages of mailboxes written to NATS clients"),
    _histogram("oah_gateway_send_seconds", "From the publish of a message until it was stored or refused", _CALLS),
)

_PROCESS = (
    _gauge(
        "oah_build_info",
        "Always 1",
        version=None,
        process=_of("api", "worker", "controller", "jobs", "gateway", "demo", "test"),
    ),
    _counter("oah_loop_passes_total", "Passes of long-lived loops", loop=None),
    _counter("oah_loop_failures_total", "Passes that a dependency's absence ended", loop=None),
    _histogram("oah_loop_pass_seconds", "Duration of a pass", _CALLS, loop=None),
)

METRICS: tuple[Metric, ...] = (
    *_RUNS,
    *_LETTERS,
    *_DISPATCH,
    *_WORKERS,
    *POOLS,
    *SCALING,
    *_EDGES,
    *_MAIL,
    *_GATEWAY,
    *_PROCESS,
)

STANDARD: frozenset[str] = frozenset(
    {
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
        "up",
    }
)
"""Names that the client library and the scraper add; dashboards may use them too."""

TABLE: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


def exposed_names(metrics: Iterable[Metric] = METRICS) -> frozenset[str]:
    """Every series name that a query may use: histograms count three times."""
    names = set(STANDARD)
    for metric in metrics:
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_bucket", f"{metric.name}_sum", f"{metric.name}_count"}
        else:
            names.add(metric.name)
    return frozenset(names)
