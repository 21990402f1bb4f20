"""The judge over a whole story: what users were told, what SQL says, what agents wrote, what every display shows.

Pure functions over collected facts, so that anybody can collect them of a system of their own. Each rule gives
violations of one kind; a judge that finds nothing in a story with a seeded violation is a broken judge, and
has tests of its own for that. Overlap and order are judged by `oah.testing.ledger`.

Rows are mappings with the columns of the tables of the same name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oah.testing.ledger import LedgerRun, Line, Violation, judge

Row = Mapping[str, Any]

TERMINAL = frozenset({"completed", "failed", "cancelled", "timed_out"})
_ENDS = {f"run.{status}": status for status in TERMINAL}
_AFTER_AN_END = ("run.quarantined", "run.voided", "hook.", "dead_letter.", "queue.", "run.queued", "message.")
_ASKED_STOPS = {"interrupt", "rollback", "parent"}
_LINES = re.compile(r"(\d+) lines")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A run that was accepted. ``may``: how else than completed it may rightly end, by what was asked. ``ordered``:
    whether it must keep its place among the runs of its session. ``grandchild``: whether two processes of an attempt
    may write."""

    run: str
    session: str
    may: frozenset[str] = frozenset()
    ordered: bool = True
    grandchild: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything, after it has become quiet. ``cancels``: (run, answer's ``result``), in the order of asking.
    ``residue``: what is left where nothing should be, in words. ``figures``: name → display → number."""

    promises: Sequence[Promise]
    runs: Sequence[Row]
    attempts: Sequence[Row]
    events: Sequence[Row]
    sessions: Sequence[Row]
    owners: Sequence[Row] = ()
    lines: Sequence[Line] = ()
    cancels: Sequence[tuple[str, str]] = ()
    residue: Sequence[str] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def find_violations(facts: Facts) -> list[Violation]:
    """Everything wrong."""
    found = judge(facts.lines, _ledger_runs(facts))
    for rule in (_promises, _ends, _starts, _traces, _explanations, _recoveries, _events, _cancels, _leftovers):
        found += rule(facts)
    for text in facts.residue:
        found.append(Violation("residue", "", text))
    return [*found, *disagreements(facts.figures)]


def disagreements(figures: Mapping[str, Mapping[str, float]]) -> Iterator[Violation]:
    """Figures that displays show differently."""
    for name, shown in figures.items():
        if len(set(shown.values())) > 1:
            yield Violation("figures", "", f"{name}: " + ", ".join(f"{who} {value:g}" for who, value in shown.items()))


def _ledger_runs(facts: Facts) -> list[LedgerRun]:
    promised = {promise.run: promise for promise in facts.promises}
    return [
        LedgerRun(
            run=row["id"],
            session=row["session_id"],
            position=row["position"],
            attempt=row["attempt"],
            completed=row["status"] == "completed" and bool(_LINES.search(row["result"] or "")),
            ordered=(promise := promised.get(row["id"])) is not None and promise.ordered and not _moved(row),
        )
        for row in facts.runs
    ]


def _moved(row: Row) -> bool:
    """Requeued by hand, which makes it eligible anew."""
    return bool((row["recovery"] or {}).get("manual_requeue_count"))


def _promises(facts: Facts) -> Iterator[Violation]:
    """I1, I6: what was accepted is there once, and over."""
    rows = {row["id"]: row for row in facts.runs}
    told = Counter(promise.run for promise in facts.promises)
    for promise in facts.promises:
        row = rows.get(promise.run)
        if row is None:
            yield Violation("lost", promise.session, f"{promise.run} was accepted and is not in SQL")
        elif row["status"] not in TERMINAL:
            yield Violation("open", promise.session, f"{promise.run} is {row['status']} ({row['queued_reason']})")
        if told[promise.run] > 1:
            yield Violation("merged", promise.session, f"{promise.run} is the answer to {told[promise.run]} keys")
    for row in facts.runs:
        if row["id"] not in told:
            yield Violation("doubled", row["session_id"], f"{row['id']} is in SQL and nobody was told of it")


def _ends(facts: Facts) -> Iterator[Violation]:
    """Nothing fails, times out or is cancelled that nobody asked for."""
    cancelled = {run for run, _ in facts.cancels}
    promised = {promise.run: promise for promise in facts.promises}
    for row in facts.runs:
        promise, status = promised.get(row["id"]), row["status"]
        if promise is None or status not in TERMINAL or status == "completed" or status in promise.may:
            continue
        if status == "cancelled" and (row["id"] in cancelled or row["stop_reason"] in _ASKED_STOPS):
            continue
        why = f"{row['error_code']}: {row['error_message']}" if row["error_code"] else row["stop_reason"]
        yield Violation("unasked-end", row["session_id"], f"{row['id']} is {status} ({why})")


def _starts(facts: Facts) -> Iterator[Violation]:
    """``attempt`` is the number of starts; one row each; at most one process (and its grandchild) lives in each."""
    numbers = defaultdict[str, list[int]](list)
    for row in facts.attempts:
        numbers[row["run_id"]].append(row["attempt"])
    for row in facts.runs:
        if sorted(numbers[row["id"]]) != list(range(1, row["attempt"] + 1)):
            detail = f"{row['id']} counts {row['attempt']} starts, recorded are {sorted(numbers[row['id']])}"
            yield Violation("starts", row["session_id"], detail)
    pids = defaultdict[tuple[str, str, int], set[int]](set)
    for line in facts.lines:
        pids[line.session, line.run, line.attempt].add(line.pid)
    twins = {promise.run for promise in facts.promises if promise.grandchild}
    for (session, run, attempt), found in pids.items():
        if len(found) > (2 if run in twins else 1):
            yield Violation("double-spawn", session, f"{run}#{attempt} was executed by {len(found)} processes")


def _traces(facts: Facts) -> Iterator[Violation]:
    """What a completed run says of its lines is what its last attempt wrote; who never started has written nothing."""
    most = Counter[tuple[str, int]]()
    for line in facts.lines:
        most[line.run, line.attempt] = max(most[line.run, line.attempt], line.number)
    for row in facts.runs:
        said = _LINES.search(row["result"] or "") if row["status"] == "completed" else None
        if said and int(said[1]) > most[row["id"], row["attempt"]]:
            detail = f"{row['id']} says {said[0]}, its attempt {row['attempt']} wrote {most[row['id'], row['attempt']]}"
            yield Violation("no-end", row["session_id"], detail)


_BEFORE: Mapping[str, tuple[frozenset[str], str]] = {
    "recovered": (frozenset({"worker_lost"}), "run.recovered"),
    "released": (frozenset({"released"}), "run.released"),
    "retried": (frozenset({"failed", "timed_out"}), "run.retrying"),
    "requeued": (TERMINAL | {"worker_lost"}, "run.queued"),
}
"""Why an attempt starts → how the one before it has ended, and the event that tells of it."""


def unexplained(attempts: Sequence[Row], events: Sequence[Row]) -> Iterator[Row]:
    """Attempts without a recorded reason, or whose reason contradicts the attempt before."""
    told = {(row["run_id"], row["attempt"], row["type"]) for row in events}
    by_number = {(row["run_id"], row["attempt"]): row for row in attempts}
    for row in attempts:
        before = by_number.get((row["run_id"], row["attempt"] - 1))
        if row["reason"] == "first" and row["attempt"] == 1:
            continue
        if row["reason"] == "requeued" and row["attempt"] == 1:
            continue  # it had ended before it was ever started
        outcomes, event = _BEFORE.get(row["reason"], (frozenset(), ""))
        if before is None or before["outcome"] not in outcomes or (row["run_id"], before["attempt"], event) not in told:
            yield row


def _explanations(facts: Facts) -> Iterator[Violation]:
    session = {row["id"]: row["session_id"] for row in facts.runs}
    outcome = {(row["run_id"], row["attempt"]): row["outcome"] for row in facts.attempts}
    for row in unexplained(facts.attempts, facts.events):
        before = outcome.get((row["run_id"], row["attempt"] - 1))
        detail = f"{row['run_id']}#{row['attempt']} was started because {row['reason']}, after {before}"
        yield Violation("unexplained", session.get(row["run_id"], ""), detail)
    terminal = {row["id"] for row in facts.runs if row["status"] in TERMINAL}
    for row in facts.attempts:
        if row["run_id"] in terminal and not row["outcome"]:
            detail = f"{row['run_id']}#{row['attempt']} has no outcome"
            yield Violation("unexplained", session.get(row["run_id"], ""), detail)


def _recoveries(facts: Facts) -> Iterator[Violation]:
    """``recovery_attempts`` is what recovery has done since the last requeue by hand."""
    lost = Counter(row["run_id"] for row in facts.attempts if row["outcome"] == "worker_lost")
    for row in facts.runs:
        counted = row["recovery_attempts"] + int((row["recovery"] or {}).get("total", {}).get("recovered", 0) or 0)
        if _moved(row) or row["status"] == "cancelled":
            wrong = row["recovery_attempts"] > lost[row["id"]]
        else:
            wrong = counted != lost[row["id"]]
        if wrong:
            detail = f"{row['id']} counts {row['recovery_attempts']} recoveries, {lost[row['id']]} attempts lost theirs"
            yield Violation("recoveries", row["session_id"], detail)


def _events(facts: Facts) -> Iterator[Violation]:
    """Numbers without gaps; after the last ``run.queued`` of a run exactly one end, and it is the one in its row."""
    numbers = defaultdict[str, list[int]](list)
    of_run = defaultdict[str, list[str]](list)
    for row in sorted(facts.events, key=lambda row: (row["session_id"], row["number"])):
        numbers[row["session_id"]].append(row["number"])
        if row["run_id"]:
            of_run[row["run_id"]].append(row["type"])
    for row in facts.sessions:
        if numbers[row["id"]] != list(range(1, row["event_seq"] + 1)):
            detail = f"{len(numbers[row['id']])} events under numbers up to {row['event_seq']}"
            yield Violation("events", row["id"], detail)
    for row in facts.runs:
        yield from _story(row, of_run[row["id"]])


def _story(row: Row, types: Sequence[str]) -> Iterator[Violation]:
    last_queued = max((index for index, kind in enumerate(types) if kind == "run.queued"), default=-1)
    ends = [kind for kind in types[last_queued + 1 :] if kind in _ENDS]
    wanted = [f"run.{row['status']}"] if row["status"] in TERMINAL else []
    if last_queued < 0 or ends != wanted:
        yield Violation("events", row["session_id"], f"{row['id']} is {row['status']}, its events are {list(types)}")
    ended = False
    for kind in types:
        if ended and not kind.startswith(_AFTER_AN_END):
            yield Violation("events", row["session_id"], f"{row['id']}: {kind} after its end, of {list(types)}")
        ended = (ended or kind in _ENDS) and kind != "run.queued"


def _cancels(facts: Facts) -> Iterator[Violation]:
    """Removed: it never starts again, and ends cancelled. Too late: it had ended. Signalled: it ends."""
    rows = {row["id"]: row for row in facts.runs}
    wrote = {line.run for line in facts.lines}
    for run, answer in facts.cancels:
        row = rows.get(run)
        if row is None or _moved(row):
            continue
        if answer == "removed" and row["status"] != "cancelled":
            yield Violation("cancel", row["session_id"], f"{run} was removed and is {row['status']}")
        if answer == "removed" and not row["attempt"] and run in wrote:
            yield Violation("cancel", row["session_id"], f"{run} was removed before any start, and has lived")


def _leftovers(facts: Facts) -> Iterator[Violation]:
    """Nobody owns, holds or awaits anything any more."""
    for row in facts.owners:
        detail = f"{row['session_id']} is owned by {row['worker_id']} (parked: {row['parked']})"
        yield Violation("leftover", row["session_id"], detail)
    for row in facts.sessions:
        if row["held"] or row["holds"]:
            yield Violation("leftover", row["id"], f"held: {row['holds']}")
        if row["queued_count"]:
            yield Violation("leftover", row["id"], f"counts {row['queued_count']} queued runs")
    for row in facts.runs:
        if row["status"] in TERMINAL and (row["claim_token"] or row["worker_id"]):
            yield Violation("leftover", row["session_id"], f"{row['id']} is over and names {row['worker_id']}")
