"""What ``oah doctor`` says of things that have not moved: from the diagnosis document to findings with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from oah.cli.findings import Finding, bad, ok, warn
from oah.cli.output import span
from oah.core.policy.waiting import why_withdrawn

_NAMED = 5

_BAD = {
    "silent": (
        "owner(s) have marked nothing for more than a lease and are not recovered",
        "is there a leader? oah controller show; what it did: oah controller decisions --at HOST:PORT",
    ),
    "unheeded": (
        "run(s) were asked to stop longer ago than killing takes",
        "is their worker alive? oah worker list; a dead one is recovered within a lease",
    ),
    "unkillable": (
        "session(s) are held: a process of theirs could not be killed",
        "look at the host of the worker, then oah session resume --unkillable",
    ),
}


def judge_diagnosis(document: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding per kind, naming the first few of it; one that all moves when it does."""
    cut = set(document.get("truncated") or ())
    found = []
    for name, (words, hint) in _BAD.items():
        items = document.get(name) or ()
        if items:
            found.append(bad(f"stuck_{name}", f"{_count(items, cut, name)} {words}: {_names(items)}", hint))
    unplaced = document.get("unplaced") or ()
    if unplaced:
        found.append(
            warn(
                "stuck_unplaced",
                f"{len(unplaced)} session(s) with waiting runs have no place in the broker: {_first(unplaced)}",
                "a leader puts that right within a minute; now: oah queue repair",
            )
        )
    found += [*_waiting(document, cut), *_undelivered(document, cut), *_lanes(document)]
    yield from found or [ok("stuck", "everything that should move moves")]


def _waiting(document: Mapping[str, Any], cut: set[str]) -> Iterator[Finding]:
    waiting = document.get("waiting") or ()
    if not waiting:
        return
    reasons = document.get("waiting_reasons") or {}
    main = ", ".join(f"{count}x {code}" for code, count in reasons.items())
    oldest = span(float(document.get("oldest_waiting_seconds") or 0))
    yield warn(
        "stuck_waiting",
        f"{_count(waiting, cut, 'waiting')} eligible run(s) have waited for long, up to {oldest} ({main}):"
        f" {_names(waiting)}",
        "oah run show RUN says why each waits",
    )


def _undelivered(document: Mapping[str, Any], cut: set[str]) -> Iterator[Finding]:
    waiting = document.get("undelivered") or ()
    if waiting:
        yield warn(
            "stuck_messages",
            f"{_count(waiting, cut, 'undelivered')} session(s) with messages that nobody delivers: {_names(waiting)}",
            "oah session show SESSION says under wake why; oah session wake SESSION tries again",
        )


def _lanes(document: Mapping[str, Any]) -> Iterator[Finding]:
    lanes = document.get("unserved_lanes") or ()
    if lanes:
        words = ", ".join(
            f"{each['lane']} ({each['sessions']}{why_withdrawn(each.get('withdrawn') or {})})"
            for each in lanes[:_NAMED]
        )
        yield bad(
            "stuck_lanes",
            f"{len(lanes)} lane(s) with ready sessions and nobody to take them: {words}",
            "start a worker for that pool and profile, or uncordon one; why one does not serve it: oah worker show",
        )


def _count(items: Sequence[Any], cut: set[str], name: str) -> str:
    return f"{'at least ' if name in cut else ''}{len(items)}"


def _names(items: Sequence[Mapping[str, Any]]) -> str:
    return _first([f"{each.get('run_id') or each['session_id']} (since {span(each['seconds'])})" for each in items])


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
