"""Metrics of pools and of waiting times."""

from __future__ import annotations

from oah.adapters.prometheus.metric import counter, gauge, of

CLASS = of("interactive", "subagent", "background")
QUANTILE = of("0.5", "0.95")

POOLS = (
    gauge(
        "oah_pool_load",
        "What waits for a slot plus what runs in one, at least 1 while an agent waits: what to scale by (leader)",
        pool=None,
    ),
    gauge("oah_pool_ready", "Slots that ready sessions would take, without what caps keep out (leader)", pool=None),
    gauge("oah_pool_capped_sessions", "Ready sessions that a cap or a pause keeps out (leader)", pool=None),
    gauge("oah_pool_running", "Slots that running runs take, counted in SQL (leader)", pool=None),
    gauge("oah_pool_waiting", "Runs that wait for an answer, without a slot (leader)", pool=None),
    gauge("oah_pool_slots", "Slots of the workers that take runs (leader)", pool=None),
    gauge("oah_pool_idle_slots", "Those that are free (leader)", pool=None),
    gauge("oah_pool_workers", "Workers that report and do not stop (leader)", pool=None),
    gauge("oah_pool_oldest_wait_seconds", "Age of the longest ready session that may be taken (leader)", pool=None),
    gauge(
        "oah_pool_wait_seconds",
        "How long the runs started in the last five minutes had waited, within 5 % (leader)",
        pool=None,
        quantile=QUANTILE,
    ),
    gauge("oah_ready_runs", "Eligible runs of sessions that nobody owns and nothing holds, counted in SQL (leader)"),
    gauge("oah_locked_ready_sessions", "Sessions with an owner and an eligible run (leader)"),
    gauge("oah_stale_ready_sessions", "Sessions that are offered with nothing to start, by counts (leader)"),
    counter(
        "oah_queue_repairs_total",
        "Sessions whose place in the ready queue was put right, or entries that nothing confirmed",
        by=of("leader", "operator"),
    ),
    gauge("oah_queue_wait_seconds", "The same by class, of all pools (leader)", class_=CLASS, quantile=QUANTILE),
)
