"""Read what a stream has not seen yet: pages of events from SQL, and whether older ones are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oah.core.model.event import Event
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.session import Session
from oah.ports.store import Store

PAGE = 500


@dataclass(frozen=True, slots=True)
class Subject:
    """What a stream is about. ``seen``: a number up to which every event of the session is committed."""

    session_id: SessionId
    run: Run | None
    seen: int


def subject(
    store: Store, session_id: SessionId | None, run_id: RunId | None, workspace_id: WorkspaceId | None
) -> Subject:
    """Look up a session's or a run's stream. Raises NotFound, Unavailable.

    The run is read before the number: if it is terminal here, its last event is at or below ``seen``.
    """
    run = None if run_id is None else store.run(run_id, workspace_id)
    session: Session = store.session(session_id or (run.session_id if run else SessionId("")), workspace_id)
    return Subject(session.id, run, session.event_seq)


def page(store: Store, about: Subject, *, after: int) -> list[Event]:
    """Events after a number, at most PAGE; fewer means that there were no more."""
    return store.events(about.session_id, after=after, limit=PAGE, run_id=about.run.id if about.run else None)


def lost_before(store: Store, about: Subject, *, after: int) -> int | None:
    """Where a stream that asks for events after ``after`` must begin anew; None when nothing is missing.

    Events are numbered without gaps, so a hole behind ``after`` was made by retention; a number beyond the session's
    last one comes from another life of the database.
    """
    if after > about.seen:
        return 0
    if after == about.seen:
        return None
    first: Sequence[Event] = store.events(about.session_id, after=after, limit=1)
    oldest = first[0].number if first else about.seen + 1
    return oldest - 1 if oldest > after + 1 else None


def exhausted(store: Store, about: Subject, *, after: int) -> bool:
    """Whether a run has ended and nothing of it is left to say."""
    if about.run is None or not about.run.status.terminal or after > about.seen:
        return False
    return not page(store, about, after=after)
