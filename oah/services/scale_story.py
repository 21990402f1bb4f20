"""What a decision of scaling was made from, as its row tells it; and what rows tell a leader that begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from oah.core.policy.scaling import Decision, History, Rules, Signals
from oah.errors import OahError
from oah.ports.scaling import Outcome, ScaleDecision
from oah.services.signals import PoolView

_DURATIONS = ("oldest_wait", "wait_p95")
OUTSIDE = "outside"
"""The reason of a row that only tells of a size that somebody else has set."""

UNDONE = (Outcome.FAILED, Outcome.HELD)


def inputs(view: PoolView, signals: Signals, decision: Decision, rules: Rules, *, staying: int) -> dict[str, Any]:
    """Everything that the policy was shown, and the pressures it saw. ``staying``: the size without those going."""
    counts = {name: value for name, value in asdict(signals).items() if name not in _DURATIONS}
    waits = {f"{name}_seconds": _seconds(getattr(signals, name)) for name in _DURATIONS}
    return {
        **counts,
        **waits,
        "staying": staying,
        "reporting": len(view.workers),
        "capped": view.capped,
        "unserved": view.unserved,
        "bound": sum(view.bound.values()),
        "doubts": list(view.doubts),
        "minimum": rules.minimum,
        "maximum": rules.maximum,
        "per_unit": rules.per_unit,
        "slots_per_unit": rules.slots_per_unit,
        "capacities": sorted({each.capacity for each in view.workers}),
        "suggested": decision.suggested,
        "pressures": dict(decision.pressures),
        "strained": decision.history.strained is not None and decision.history.strained == decision.history.last_up,
    }


def why(error: OahError) -> dict[str, Any]:
    """What a target said when it refused."""
    return {"error": error.message, "code": error.code}


def remembered(rows: Sequence[ScaleDecision], *, today: float, now: float) -> History:
    """From the newest rows of a pool, the newest first, what the policy wants to be told again. ``today``: the
    database's clock, ``now``: the one that the policy goes by."""

    def moment(found: Sequence[ScaleDecision]) -> float | None:
        return now - max(0.0, today - found[0].at.timestamp()) if found else None

    ours = [row for row in rows if row.outcome not in UNDONE and row.reason != OUTSIDE]
    done = [row for row in ours if row.desired != _staying(row)]
    grown = [row for row in done if row.desired > _staying(row)]
    strained = [row for row in grown if row.inputs.get("strained")]
    return History(last_up=moment(grown), last_change=moment(done), started=bool(rows), strained=moment(strained))


def _staying(row: ScaleDecision) -> int:
    found: Mapping[str, Any] = row.inputs
    return int(found.get("staying", row.current))


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
