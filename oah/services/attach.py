"""Find the terminal of a session: the worker that owns it says by its own report where, and what opens it."""

from __future__ import annotations

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Run
from oah.errors import Conflict, NotFound
from oah.ports.broker import Broker
from oah.ports.store import Store
from oah.ports.viewing import WorkerPlace


def place_of(store: Store, broker: Broker, session_id: SessionId) -> WorkerPlace | None:
    """None: nobody owns the session, or its owner has not reported itself. Raises Unavailable."""
    owners = store.owners_of([session_id])
    if not owners:
        return None
    for report in broker.workers():
        if report.id == owners[0].worker_id and report.address is not None and report.token is not None:
            return WorkerPlace(worker_id=report.id, address=report.address, token=report.token, session_id=session_id)
    return None


def viewable(store: Store, run_id: RunId, workspace_id: WorkspaceId | None) -> Run:
    """A run that has a terminal, or will have. Raises NotFound, Unavailable; Conflict `run_not_active` when it has
    ended."""
    run = store.run(run_id, workspace_id)
    if run.status.terminal:
        raise Conflict(
            f"the run is {run.status}, its terminal is gone",
            code="run_not_active",
            hint=f"what it showed: GET /v1/runs/{run.id}/transcript",
        )
    return run


def no_terminal(what: str) -> NotFound:
    """It has none at the moment."""
    return NotFound(
        f"{what} has no terminal at the moment",
        code="no_terminal",
        hint="agents have one from their start on; what was shown before lies in the transcript of the run",
    )
