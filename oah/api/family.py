"""What the key of a run opens besides that run: its children, and the sessions that its agent has opened for them.

Everything else is to it as what does not exist. A route that does not ask here finds nothing for such a key: the
workspace of a run's key is none.
"""

from __future__ import annotations

from oah.api.auth import Principal
from oah.api.state import ApiState
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import Run
from oah.core.model.session import Session
from oah.ports.store import RunFence
from oah.services import children


def lineage(desk: ApiState, fence: RunFence) -> children.Lineage:
    """The run and what is below it. Raises NotFound, Unavailable."""
    return children.lineage(desk.context.store, fence, desk.context.children)


def seen_run(desk: ApiState, caller: Principal, run_id: str) -> Run:
    """A run that the caller may see. Raises NotFound."""
    store = desk.context.store
    if caller.fence is not None:
        return children.child(store, caller.fence.run_id, RunId(run_id))
    return store.run(RunId(run_id), caller.workspace_id)


def where_to_look(desk: ApiState, caller: Principal, run_id: str) -> WorkspaceId | None:
    """The workspace in which a run is looked for; of an agent's child its own. None: all. Raises NotFound."""
    return caller.workspace_id if caller.fence is None else seen_run(desk, caller, run_id).workspace_id


def seen_session(desk: ApiState, caller: Principal, session_id: str) -> Session:
    """A session that the caller may see. Raises NotFound."""
    if caller.fence is not None:
        return lineage(desk, caller.fence).session(SessionId(session_id))
    return desk.context.store.session(SessionId(session_id), caller.workspace_id)
