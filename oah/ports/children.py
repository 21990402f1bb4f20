"""What goes with its parent: live runs whose parent was cancelled or is asked to stop; what a run's agent opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from oah.core.model.ids import ClaimToken, RunId, SessionId
from oah.core.model.session import Session
from oah.core.policy.children import Bounds


@dataclass(frozen=True, slots=True)
class Parent:
    """The attempt whose agent starts a run or opens a session: while it lasts, and within the bounds of its tree."""

    session_id: SessionId
    """The parent's own. It is locked while something is counted: whoever ends the attempt locks it, too."""
    run_id: RunId
    attempt: int
    token: ClaimToken
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Child:
    """A live run to be cancelled, and who had its parent cancelled."""

    run_id: RunId
    by: str


class ChildrenStore(Protocol):
    """Each child is cancelled in a transaction of its own."""

    def open_child_session(self, session: Session, parent: Parent) -> tuple[Session, bool]:
        """A session of its own for a child; or the one of that id which the same run has opened before, and whether it
        did.

        Raises Conflict ``attempt_over``, ``run_stopping``, ``too_many_children``; ``idempotency_conflict`` when the one
        that is there is of another lane, or not this run's; NotFound (workspace).
        """
        ...

    def parents_of_live(self, *, after: RunId | None, limit: int) -> list[RunId]:
        """Runs with live children that nobody has asked to stop yet, in the order of their ids, from ``after`` on."""
        ...

    def with_live_children(self, runs: Sequence[RunId]) -> set[RunId]:
        """Those of the runs of which a child is queued or active in another session, by index. One in the session of
        its parent begins after its parent's end: nobody in it can wait for that."""
        ...

    def children_to_cancel(self, parents: Sequence[RunId], *, limit: int) -> list[Child]:
        """Live children, not asked to stop yet, of those parents that ended cancelled or are asked to be.

        A child submitted after its parent's end stays, and so does one that was requeued by hand since the cancel.
        """
        ...
