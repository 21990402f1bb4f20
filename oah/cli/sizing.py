"""What ``oah doctor`` says of the sizes of pools: from the last decision of each to findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.cli.findings import Finding, bad, ok, warn
from oah.cli.output import age

_HINT = "oah controller decisions"
_MORE = "OAH_SCALE__MAXIMUM"

LONG = timedelta(hours=1)
"""A drain that takes longer is worth a word: by default nothing bounds it."""


def judge_scaling(
    pools: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]], *, now: datetime | None = None
) -> Iterator[Finding]:
    """Of each pool the newest of ``decisions``, which are the newest first."""
    ready = {pool["pool"]: int(pool.get("ready") or 0) for pool in pools}
    last: dict[str, Mapping[str, Any]] = {}
    for each in decisions:
        last.setdefault(str(each["pool"]), each)
    found = [
        finding
        for pool, decision in sorted(last.items())
        for finding in _of_pool(pool, decision, ready.get(pool, 0), now or datetime.now(UTC))
    ]
    yield from found or [ok("scaling", f"{len(last)} pool(s) were decided about")]


def _of_pool(pool: str, decision: Mapping[str, Any], ready: int, now: datetime) -> Iterator[Finding]:
    told, inputs = decision.get("detail") or {}, decision.get("inputs") or {}
    outcome, target = decision.get("outcome"), decision.get("target")
    if outcome == "failed":
        said = told.get("error") or "it did not do what it was asked"
        yield bad("scaling", f"pool {pool}: {target} failed {age(decision['at'], now=now)} ago: {said}", _HINT)
    since = [str(each["since"]) for each in (decision.get("going") or {}).values()]
    if since and now - datetime.fromisoformat(min(since).replace("Z", "+00:00")) > LONG:
        names = ", ".join(sorted(decision["going"])[:5])
        yield warn("scaling", f"pool {pool}: {names} drain for {age(min(since), now=now)}", "OAH_SCALE__DRAIN_SECONDS")
    counted, have = inputs.get("slots_per_unit"), inputs.get("capacities") or ()
    if target != "none" and any(each != counted for each in have):
        words = f"pool {pool}: workers have {', '.join(map(str, have))} slots, the controller counts on {counted}"
        yield warn("scaling", words, "OAH_WORKER__SLOTS has to be the same for controllers and workers")
    if ready and target != "none" and "maximum" in inputs and decision.get("desired") == inputs["maximum"]:
        yield warn("scaling", f"pool {pool} is at its maximum, and {ready} slot(s) more are wanted", _MORE)
