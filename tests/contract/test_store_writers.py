"""Who typed into a terminal: an event of the session and a row of the audit, together."""

from oah.core.model.ids import SessionId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.audit import AuditFilter
from oah.ports.viewing import WriterNote
from tests.support.store_clerk import Clerk


def test_a_writer_is_an_event_and_a_row_of_the_audit(clerk: Clerk) -> None:
    run = clerk.submit(run_id="r")
    store = clerk.store
    about = {"workspace_id": DEFAULT_WORKSPACE, "run_id": run.id, "attempt": 1}
    first = store.note_writer(run.session_id, WriterNote.ATTACHED, by="a", **about)
    second = store.note_writer(run.session_id, WriterNote.TAKEN_OVER, by="b", before="a", **about)
    assert second == first + 1
    events = store.events(run.session_id, after=first - 1, limit=10)
    assert [(event.type, event.run_id, event.attempt, event.data) for event in events] == [
        ("terminal.attached", "r", 1, {"by": "a"}),
        ("terminal.taken_over", "r", 1, {"by": "b", "before": "a"}),
    ]
    latest, earlier = store.audit_rows(AuditFilter(action="terminal.")).items
    assert (earlier.actor, earlier.action, earlier.subject) == ("a", "terminal.attached", run.session_id)
    assert (latest.actor, latest.data["before"], latest.workspace_id) == ("b", "a", DEFAULT_WORKSPACE)


def test_of_a_session_that_is_gone_nothing_is_written(clerk: Clerk) -> None:
    store = clerk.store
    note = WriterNote.DETACHED
    assert not store.note_writer(
        SessionId("none"), note, by="a", workspace_id=DEFAULT_WORKSPACE, run_id=None, attempt=0
    )
    assert not store.audit_rows(AuditFilter(action="terminal.")).items
