"""The judge over a whole story: each thing that must never happen, seeded into a story that is fine, is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oah.testing.ledger import Line
from oah.testing.verdict import Facts, Promise, disagreements, find_violations, unexplained
from tests.support.chaos.plan import Harm, make_plan

Change = dict[str, Any]


def run(name: str, position: int, **change: Any) -> Change:
    row = {
        "id": name,
        "session_id": "s",
        "position": position,
        "status": "completed",
        "attempt": 1,
        "result": "2 lines",
    }
    row |= {"error_code": None, "error_message": None, "stop_reason": None, "recovery": None, "recovery_attempts": 0}
    return row | {"queued_reason": "first", "claim_token": None, "worker_id": None, **change}


def attempt(name: str, number: int, reason: str = "first", outcome: str | None = "completed") -> Change:
    return {"run_id": name, "attempt": number, "reason": reason, "outcome": outcome}


def event(number: int, name: str, kind: str, attempt: int = 1) -> Change:
    return {"session_id": "s", "number": number, "run_id": name, "attempt": attempt, "type": kind}


def lines(name: str, number: int, first: int, *, pid: int = 7) -> list[Line]:
    return [Line("s", name, number, index, (first + 20 * index) * 1_000_000, pid) for index in (1, 2)]


def fine(**change: Any) -> Facts:
    """Run a was recovered once, run b was removed from the queue."""
    facts: dict[str, Any] = {
        "promises": [Promise(run="a", session="s"), Promise(run="b", session="s")],
        "runs": [
            run("a", 1, attempt=2, recovery_attempts=1, queued_reason="recovered"),
            run("b", 2, status="cancelled", attempt=0, result=None, stop_reason="cancel"),
        ],
        "attempts": [attempt("a", 1, outcome="worker_lost"), attempt("a", 2, "recovered")],
        "events": [
            *(event(1, "a", "run.queued", 0), event(2, "a", "run.started"), event(3, "b", "run.queued", 0)),
            *(event(4, "a", "run.recovered"), event(5, "a", "run.queued"), event(6, "b", "run.cancelled", 0)),
            *(event(7, "a", "run.started", 2), event(8, "a", "run.completed", 2)),
        ],
        "sessions": [{"id": "s", "event_seq": 8, "held": 0, "holds": {}, "queued_count": 0}],
        "lines": lines("a", 1, 0) + lines("a", 2, 100, pid=8),
        "cancels": [("b", "removed")],
        "figures": {"queued": {"sql": 0, "http": 0}},
    }
    return Facts(**{name: value(facts[name]) if callable(value) else value for name, value in (facts | change).items()})


def changed(index: int, **change: Any) -> Callable[[list[Change]], list[Change]]:
    return lambda rows: [{**row, **change} if number == index else row for number, row in enumerate(rows)]


def without(index: int) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [row for number, row in enumerate(rows) if number != index]


def more(*rows: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda given: [*given, *rows]


def test_a_fine_story_is_clean() -> None:
    assert find_violations(fine()) == []


SEEDED: dict[str, tuple[str, Change]] = {
    "an accepted run is gone": ("lost", {"promises": more(Promise(run="c", session="s"))}),
    "a run is not over": ("open", {"runs": changed(0, status="queued")}),
    "a run nobody was told of": ("doubled", {"promises": without(1)}),
    "two keys, one run": ("merged", {"promises": more(Promise(run="a", session="s"))}),
    "failed for nothing": ("unasked-end", {"runs": changed(0, status="failed", error_code="agent_killed")}),
    "cancelled for nothing": ("unasked-end", {"cancels": []}),
    "timed out without a limit": ("unasked-end", {"runs": changed(0, status="timed_out")}),
    "a start without a record": ("starts", {"attempts": without(0)}),
    "a record without a start": ("starts", {"attempts": more(attempt("a", 3, "released"))}),
    "two processes in one attempt": ("double-spawn", {"lines": more(*lines("a", 2, 130, pid=9))}),
    "two agents at once": ("overlap", {"lines": more(Line("s", "a", 1, 3, 130_000_000, 7))}),
    "an attempt that SQL does not know": ("stranger", {"lines": more(*lines("a", 3, 200))}),
    "completed and never lived": ("no-trace", {"lines": lambda rows: rows[:2]}),
    "completed before its end": ("no-end", {"runs": changed(0, result="200 lines")}),
    "a second start for no reason": ("unexplained", {"attempts": changed(1, reason="first")}),
    "recovered after a good end": ("unexplained", {"attempts": changed(0, outcome="completed")}),
    "recovered without an event": ("unexplained", {"events": changed(3, type="run.output")}),
    "an attempt that never ended": ("unexplained", {"attempts": changed(1, outcome=None)}),
    "a recovery not counted": ("recoveries", {"runs": changed(0, recovery_attempts=0)}),
    "a recovery counted twice": ("recoveries", {"runs": changed(0, recovery_attempts=2)}),
    "an event lost": ("events", {"events": without(1)}),
    "a number given and no event": ("events", {"sessions": changed(0, event_seq=9)}),
    "two ends": ("events", {"events": changed(6, type="run.failed")}),
    "no end": ("events", {"events": changed(7, type="run.output")}),
    "another end than the row's": ("events", {"events": changed(7, type="run.failed")}),
    "an event after the end": ("events", {"events": lambda rows: _late(rows)}),
    "removed and completed": ("cancel", {"runs": changed(1, status="completed", result="")}),
    "removed and lived": ("cancel", {"lines": more(*lines("b", 1, 200))}),
    "an owner is left": ("leftover", {"owners": [{"session_id": "s", "worker_id": "w", "parked": True}]}),
    "a hold is left": ("leftover", {"sessions": changed(0, held=1, holds={"backoff": None})}),
    "a queued run is counted": ("leftover", {"sessions": changed(0, queued_count=1)}),
    "a terminal run has a token": ("leftover", {"runs": changed(0, claim_token="t")}),
    "a process is left": ("residue", {"residue": ["process 7"]}),
    "figures differ": ("figures", {"figures": {"queued": {"sql": 1, "http": 2}}}),
}


def _late(rows: list[Change]) -> list[Change]:
    return [*rows[:6], {**rows[7], "number": 7}, {**rows[6], "number": 8, "type": "run.output"}]


@pytest.mark.parametrize("name", SEEDED)
def test_what_must_never_happen_is_seen(name: str) -> None:
    kind, change = SEEDED[name]
    assert kind in {violation.kind for violation in find_violations(fine(**change))}


def test_a_turned_order_is_seen_unless_it_was_asked_for() -> None:
    second = {
        "runs": lambda rows: [rows[0], run("b", 2)],
        "cancels": [],
        "attempts": more(attempt("b", 1)),
        "events": changed(5, type="run.completed"),
        "lines": more(*lines("b", 1, 50, pid=9)),
    }
    assert [violation.kind for violation in find_violations(fine(**second))] == ["order"]
    promises = [Promise(run="a", session="s"), Promise(run="b", session="s", ordered=False)]
    assert find_violations(fine(**second, promises=promises)) == []


def test_what_was_asked_for_is_no_fault() -> None:
    failed = {"runs": changed(0, status="failed"), "events": changed(7, type="run.failed")}
    promises = [Promise(run="a", session="s", may=frozenset({"failed"})), Promise(run="b", session="s")]
    assert find_violations(fine(**failed, promises=promises)) == []
    assert (
        find_violations(fine(promises=changed_promise(grandchild=True), lines=more(*lines("a", 2, 120, pid=9)))) == []
    )
    assert find_violations(fine(cancels=[], runs=changed(1, stop_reason="interrupt"))) == []


def changed_promise(**change: Any) -> list[Promise]:
    return [Promise(run="a", session="s", **change), Promise(run="b", session="s")]


@pytest.mark.parametrize(
    ("reason", "outcome", "told"),
    [
        ("released", "released", "run.released"),
        ("retried", "failed", "run.retrying"),
        ("requeued", "cancelled", "run.queued"),
    ],
)
def test_each_reason_of_a_further_start_needs_its_event(reason: str, outcome: str, told: str) -> None:
    attempts = [attempt("a", 1, outcome=outcome), attempt("a", 2, reason)]
    assert list(unexplained(attempts, [event(1, "a", told)])) == []
    assert list(unexplained(attempts, [])) == [attempts[1]]


def test_displays_that_agree_say_nothing() -> None:
    assert list(disagreements({"queued": {"sql": 2, "http": 2.0}})) == []


def test_a_plan_is_made_of_its_seed_and_never_harms_a_worker_and_its_host_at_once() -> None:
    assert make_plan(7, 60) == make_plan(7, 60)
    assert make_plan(7, 60) != make_plan(8, 60)
    seen = set()
    for seed in range(60):
        plan = make_plan(seed, 60)
        seen |= {action.harm for action in plan.actions}
        busy: dict[str, float] = {}
        for action in plan.actions:
            if action.target.startswith("worker"):
                assert busy.get(action.target, 0.0) < action.at
                busy[action.target] = action.at + action.seconds + 4
    assert seen == set(Harm)
