"""What agents start, member by member of one batch: behind the fences of their attempts, within the bounds of trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from oah.adapters.sql.statements import ParentRow, Statements
from oah.core.policy.children import Family, refusal
from oah.errors import Conflict, RequestError
from oah.ports.children import Parent


class Parents:
    """The runs whose agents start something here, their sessions locked; where there are none nothing is read.

    Their own rows are not locked: others lock runs in whatever order they have locked the sessions, so two runs that
    were locked without these would be a deadlock.
    """

    def __init__(self, sql: Statements, parents: Iterable[Parent | None]) -> None:
        wanted = sorted({parent.run_id for parent in parents if parent is not None})
        self._rows = sql.parents(wanted) if wanted else {}
        self._more: Counter[str] = Counter()

    def refuse(self, parent: Parent) -> RequestError | None:
        """One more child; None: it is counted."""
        more = self._more[parent.run_id]
        try:
            row = current(self._rows, parent)
        except Conflict as over:
            return over
        refused = refusal(Family(row.depth, row.live + more, row.in_all + more), parent.bounds)
        if refused is None:
            self._more[parent.run_id] += 1
        return refused


def current(rows: Mapping[str, ParentRow], parent: Parent) -> ParentRow:
    """The row of that attempt. Raises Conflict: it starts nothing any more."""
    row = rows.get(parent.run_id)
    if row is None or not row.active or (row.attempt, row.token) != (parent.attempt, parent.token):
        raise Conflict("that attempt of the run is over", code="attempt_over")
    if row.stopping:
        raise Conflict("the run is asked to stop: it starts nothing more", code="run_stopping")
    return row
