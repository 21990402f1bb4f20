"""Metrics of whoever scales."""

from __future__ import annotations

from oah.adapters.prometheus.metric import counter, gauge, of

SCALING = (
    gauge(
        "oah_scale_units",
        "Workers of a pool: asked for by its target, wanted, on their way out, and reporting (leader)",
        pool=None,
        what=of("size", "desired", "going", "reporting"),
    ),
    counter(
        "oah_scale_decisions_total",
        "Decisions about the size of a pool that were written down, by what came of them",
        pool=None,
        reason=None,
        outcome=of("begun", "scaled", "draining", "held", "overtaken", "failed"),
    ),
    counter("oah_scale_target_failures_total", "Calls of a target that failed", pool=None, target=None),
)
