"""The audit: written with the deed, listed newest first, each workspace its own."""

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.ids import KeyId, RunId, WorkerId, WorkspaceId
from oah.core.model.run import RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.errors import InvalidRequest
from oah.ports.audit import AuditFilter
from oah.ports.commands import CommandKind
from tests.support.store_clerk import Clerk


def test_what_operators_do_is_written_with_it(clerk: Clerk) -> None:
    store = clerk.store
    store.create_key(
        KeyId("k1"),
        "d",
        name="n",
        workspace_id=DEFAULT_WORKSPACE,
        scopes=frozenset({Scope.RUN}),
        expires_at=None,
        by="a",
    )
    for _ in range(2):
        store.revoke_key(KeyId("k1"), by="a")
    store.command_worker(WorkerId("w.1"), CommandKind.CORDON, by="b")
    clerk.submit(run_id="r")
    clerk.settle(clerk.start(), RunStatus.FAILED)
    store.annotate_run(RunId("r"), None, "the disk was full", by="b")
    store.requeue(RunId("r"), None, by="b", reason="fixed")
    store.create_job("job_1", "k", workspace_id=None, arguments={}, total=0, by="b")
    for _ in range(2):
        store.cancel_job("job_1", None, by="b")
    rows = store.audit_rows(AuditFilter()).items
    assert [(row.actor, row.action, row.subject) for row in reversed(rows)] == [
        ("a", "key.created", "k1"),
        ("a", "key.revoked", "k1"),
        ("b", "worker.cordon", "w.1"),
        ("b", "run.noted", "r"),
        ("b", "run.requeued", "r"),
        ("b", "job.cancelled", "job_1"),
    ]
    assert rows[1].data["reason"] == "fixed" and rows[1].workspace_id == DEFAULT_WORKSPACE
    assert rows[3].workspace_id is None


def test_rows_are_found_by_who_what_whom_and_when(clerk: Clerk) -> None:
    store = clerk.store
    clerk.submit(run_id="r")
    for number in range(3):
        store.annotate_run(RunId("r"), None, f"{number}", by=f"by{number}")
    store.command_worker(WorkerId("w.1"), CommandKind.DRAIN, by="by1")

    def found(**where: object) -> list[str]:
        return [row.actor for row in store.audit_rows(AuditFilter(**where)).items]  # type: ignore[arg-type]

    assert found() == ["by1", "by2", "by1", "by0"]
    assert found(actor="by1") == ["by1", "by1"]
    assert found(action="run.noted") == ["by2", "by1", "by0"] and found(action="run.") == ["by2", "by1", "by0"]
    assert found(action="run_") == [] and found(action="worker.drain") == ["by1"]
    assert found(subject="r") == ["by2", "by1", "by0"]
    assert found(workspace_id=DEFAULT_WORKSPACE) == ["by2", "by1", "by0"] and found(workspace_id=WorkspaceId("o")) == []
    now = datetime.now(UTC)
    assert len(found(since=now - timedelta(hours=1))) == 4 and found(since=now + timedelta(hours=1)) == []
    page = store.audit_rows(AuditFilter(limit=3))
    assert page.next_cursor is not None
    assert [row.actor for row in store.audit_rows(AuditFilter(cursor=page.next_cursor)).items] == ["by0"]
    for cursor in ("x", "²", "9" * 30):
        with pytest.raises(InvalidRequest):
            store.audit_rows(AuditFilter(cursor=cursor))
