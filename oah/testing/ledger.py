"""The judge over a ledger: was any session's agent alive beside its successor, were runs started in order?

A pure function over what the ledger agents wrote and what SQL says. It does not trust start and end rows: an attempt
lives exactly
where its lines are, so an agent that outlived its worker is seen, and with the deadman off this judge must find it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a ledger. `at`: CLOCK_BOOTTIME in nanoseconds."""

    session: str
    run: str
    attempt: int
    number: int
    at: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRun:
    """A run as SQL knows it at the end. `position`: its place in the session. `ordered`: False for runs that may start
    out of order
    (a manual requeue, an interrupt). `completed`: whether it must have left a trace."""

    run: str
    session: str
    position: int
    attempt: int
    completed: bool = True
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Violation:
    """What must never happen, in words, and when (seconds of CLOCK_BOOTTIME)."""

    kind: str
    session: str
    detail: str
    at: float = 0.0


def read_ledger(path: Path) -> list[Line]:
    """All whole lines of the file, which may be missing; the last line of a killed process may be torn."""
    lines: list[Line] = []
    if not path.exists():
        return lines
    for text in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(text)
            line = Line(row["session"], row["run"], row["attempt"], row["number"], row["at"], row["pid"])
        except (ValueError, KeyError, TypeError):
            continue
        lines.append(line)
    return lines


def judge(lines: Iterable[Line], runs: Iterable[LedgerRun]) -> list[Violation]:
    """Everything wrong, earliest first: overlap, order, attempts nobody started, completed runs without a trace."""
    known = {run.run: run for run in runs}
    by_session: dict[str, dict[tuple[str, int], list[int]]] = {}
    for line in lines:
        by_session.setdefault(line.session, {}).setdefault((line.run, line.attempt), []).append(line.at)
    found: list[Violation] = []
    for session, attempts in by_session.items():
        spans = sorted((min(times), max(times), run, attempt) for (run, attempt), times in attempts.items())
        found += _overlaps(session, spans)
        found += _disorder(session, spans, known)
        found += _strangers(session, spans, known)
    seen = {key for attempts in by_session.values() for key in attempts}
    for run in known.values():
        if run.completed and (run.run, run.attempt) not in seen:
            detail = f"run {run.run} completed as attempt {run.attempt}, which never lived"
            found.append(Violation("no-trace", run.session, detail))
    return sorted(found, key=lambda violation: violation.at)


def _overlaps(session: str, spans: list[tuple[int, int, str, int]]) -> list[Violation]:
    """No line of an attempt at or after the first line of a later one."""
    found = []
    for index, (_, last, run, attempt) in enumerate(spans):
        for first, _, later_run, later_attempt in spans[index + 1 :]:
            if last >= first:
                detail = f"{run}#{attempt} lived {(last - first) / 1e6:.1f} ms beside {later_run}#{later_attempt}"
                found.append(Violation("overlap", session, detail, first / 1e9))
    return found


def _disorder(session: str, spans: list[tuple[int, int, str, int]], known: dict[str, LedgerRun]) -> list[Violation]:
    """Attempts begin in the order of their runs' places, and of their numbers."""
    found = []
    before: tuple[int, int] | None = None
    for first, _, run, attempt in spans:
        row = known.get(run)
        if row is None or not row.ordered:
            continue
        place = (row.position, attempt)
        if before is not None and place < before:
            detail = f"{run}#{attempt} (place {row.position}) began after place {before[0]}#{before[1]}"
            found.append(Violation("order", session, detail, first / 1e9))
        before = place if before is None else max(before, place)
    return found


def _strangers(session: str, spans: list[tuple[int, int, str, int]], known: dict[str, LedgerRun]) -> list[Violation]:
    found = []
    for first, _, run, attempt in spans:
        row = known.get(run)
        if row is None or row.session != session or attempt > row.attempt:
            detail = f"{run}#{attempt} lived, but SQL knows of no such attempt in this session"
            found.append(Violation("stranger", session, detail, first / 1e9))
    return found
