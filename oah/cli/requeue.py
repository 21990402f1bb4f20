"""``oah requeue``: ended runs wait again, by id or by what a filter finds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from oah.cli.arguments import DURATION, given, workspace_option
from oah.cli.connection import Connection, actor, pass_connection
from oah.cli.direct import direct_option, direct_store
from oah.cli.failures import Exit, complain
from oah.cli.jobs import follow, progress, told
from oah.cli.output import Document, age, cell, emit_json, field, json_option, plain, table

if TYPE_CHECKING:
    from oah.ports.jobs import Job
    from oah.ports.store import Store
    from oah.settings import Settings

_ENDED = ("failed", "timed_out", "cancelled")
_SAMPLE = (
    ("RUN", field("id")),
    ("SESSION", field("session_id")),
    ("STATUS", field("status")),
    ("ERROR", lambda item: (item.get("error") or {}).get("code")),
    ("NOTE", field("note")),
    ("ENDED", lambda item: age(item.get("ended_at"))),
)


@click.command()
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option("--status", type=click.Choice(_ENDED), multiple=True, help="Repeatable; failed and timed_out else.")
@click.option("--error-code", help="Only runs that failed with this code.")
@click.option("--recovery-state", type=click.Choice(["requeued", "failed", "quarantined"]), help="Only these.")
@click.option("--agent", help="Only runs of this agent.")
@click.option("--session", help="Only runs of this session.")
@click.option("--since", type=DURATION, help="Only runs that ended within the last 2h, 30m, …")
@workspace_option
@click.option("--dry-run", is_flag=True, help="Say what would be requeued.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--reason", help="Why, for the audit.")
@click.option("--wait", is_flag=True, help="Wait until all of them are done, with the progress.")
@direct_option
@json_option
@pass_connection
@click.pass_context
def requeue(
    ctx: click.Context,
    connection: Connection,
    /,
    run_ids: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    reason: str | None,
    wait: bool,
    direct: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Put ended runs back to queued: by id, or all that the options find.

    Each becomes eligible now, at the end of its session's queue, with its counters anew; runs of one session keep
    their order. Exit 1 when one could not be put back.
    """
    which = _filter(**options)
    if bool(run_ids) == bool(which):
        raise click.UsageError("name runs, or say which: --status, --error-code, --recovery-state, …")
    desk = _Direct(connection.settings) if direct else _Api(connection)
    if run_ids:
        ctx.exit(_by_id(desk, run_ids, dry_run=dry_run, reason=reason, wait=wait, as_json=as_json))
    found = desk.look(which)
    if dry_run:
        if as_json:
            emit_json(found)
        else:
            _outlook(found)
        return
    if found["total"] == 0:
        if as_json:
            emit_json(found)
        else:
            click.echo("there is nothing to requeue")
        return
    if not (yes or _confirmed(found)):
        complain("nothing was requeued")
        ctx.exit(Exit.FAILED)
    ctx.exit(desk.all(which, reason=reason, wait=wait, as_json=as_json))


def _filter(*, since: float | None, status: tuple[str, ...], **options: Any) -> dict[str, Any]:
    moment = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
    return given(status=list(status) or None, since=moment, **options)


def _by_id(
    desk: _Api | _Direct,
    run_ids: Sequence[str],
    *,
    dry_run: bool,
    reason: str | None,
    wait: bool,
    as_json: bool,
) -> Exit:
    if len(run_ids) == 1 and not dry_run:
        one = desk.one(run_ids[0], reason=reason)
        if as_json:
            emit_json(one)
        else:
            click.echo(f"{one['id']} {one['status']}")
        return Exit.DONE
    answer = desk.some(run_ids, dry_run=dry_run, reason=reason)
    if isinstance(desk, _Api) and answer["job"] is not None:
        return desk.job(answer["job"], wait=wait, as_json=as_json)
    if as_json:
        emit_json(answer)
    else:
        for item in answer["items"]:
            at = f" at {item['position']}" if item["position"] is not None else ""
            was = f" ({item['status']})" if item["outcome"] == "invalid_status" else ""
            click.echo(cell(f"{item['id']} {item['outcome']}{was}{at}"))
    return Exit.DONE if answer["total"] == len(answer["items"]) else Exit.FAILED


def _outlook(found: Document) -> None:
    table(found["sample"], _SAMPLE)
    click.echo(f"{found['total']} would be requeued" + _shown(found))


def _confirmed(found: Document) -> bool:
    """Ask on stderr, so that stdout stays the answer."""
    for item in found["sample"][:5]:
        error = (item.get("error") or {}).get("code")
        click.echo(cell(f"  {item['id']} {item['status']} {error or ''}"), err=True)
    return click.confirm(f"Requeue {found['total']} runs?", err=True)


def _shown(found: Document) -> str:
    return f", {len(found['sample'])} are shown" if len(found["sample"]) < found["total"] else ""


class _Api:
    """Through the API."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client

    def one(self, run_id: str, *, reason: str | None) -> Document:
        """Raises NotFound, Conflict."""
        return self._client.requeue(run_id, reason=reason)

    def some(self, run_ids: Sequence[str], *, dry_run: bool, reason: str | None) -> Document:
        """Answered one by one, or a job."""
        return self._client.requeue_many(run_ids, dry_run=dry_run, reason=reason)

    def look(self, which: dict[str, Any]) -> Document:
        """How many, and the first of them."""
        return self._client.requeue_many(filter=which, dry_run=True)

    def all(self, which: dict[str, Any], *, reason: str | None, wait: bool, as_json: bool) -> Exit:
        """As a job."""
        return self.job(self._client.requeue_many(filter=which, reason=reason)["job"], wait=wait, as_json=as_json)

    def job(self, asked: Document, *, wait: bool, as_json: bool) -> Exit:
        """Wait for it, or say its name."""
        if wait:
            return follow(self._connection, asked["id"], as_json=as_json)
        if as_json:
            emit_json(asked)
        else:
            click.echo(asked["id"])
            click.echo(f"a job does it: oah job wait {asked['id']}", err=True)
        return Exit.DONE


class _Direct:
    """In the database, without an API. A job is done here and now: its row is the same, and so is its result. What the
    broker does not hear of, the leader's relay lets it hear."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def one(self, run_id: str, *, reason: str | None) -> Document:
        """Raises NotFound, Conflict."""
        from oah.core.model.ids import RunId

        with direct_store(self._settings) as store:
            run = store.requeue(RunId(run_id), None, by=actor(), reason=reason).run
        return {"id": run.id, "session_id": run.session_id, "status": run.status, "position": run.position}

    def some(self, run_ids: Sequence[str], *, dry_run: bool, reason: str | None) -> Document:
        """Here and now."""
        from oah.core.model.ids import RunId
        from oah.ports.requeue import Requeued, RequeueOutcome
        from oah.services.requeue import AT_ONCE

        wanted = [RunId(run_id) for run_id in dict.fromkeys(run_ids)]
        done: list[Requeued] = []
        with direct_store(self._settings) as store:
            for begin in range(0, len(wanted), AT_ONCE):
                chunk = wanted[begin : begin + AT_ONCE]
                done += store.requeue_runs(chunk, None, by=actor(), reason=reason, dry_run=dry_run)
        items = [
            {
                "id": each.run_id,
                "outcome": each.outcome,
                "status": each.run and each.run.status,
                "position": each.accepted and each.accepted.run.position,
            }
            for each in done
        ]
        total = sum(each.outcome is RequeueOutcome.REQUEUED for each in done)
        return {"dry_run": dry_run, "total": total, "items": items, "job": None}

    def look(self, which: dict[str, Any]) -> Document:
        """How many, and the first of them."""
        with direct_store(self._settings) as store:
            found = store.count_requeue(_where(store, which))
        return {"dry_run": True, "total": found.total, "items": [], "sample": [plain(run) for run in found.sample]}

    def all(self, which: dict[str, Any], *, reason: str | None, wait: bool, as_json: bool) -> Exit:
        """Done when this returns, whether it was to be waited for or not."""
        from oah.bootstrap.jobs import requeue_here

        with direct_store(self._settings) as store, progress("requeue") as advance:
            ended = requeue_here(
                store, _where(store, which), by=actor(), reason=reason, seen=lambda job: advance(_document(job))
            )
            outcomes = store.job_outcomes(ended.id)
        return told({**_document(ended), "outcomes": outcomes}, as_json=as_json)


def _where(store: Store, which: dict[str, Any]) -> Any:
    from oah.core.model.ids import SessionId
    from oah.core.model.run import RecoveryState, RunStatus
    from oah.ports.requeue import RequeueFilter

    workspace, session, state = which.get("workspace"), which.get("session"), which.get("recovery_state")
    fields = given(
        workspace_id=None if workspace is None else store.workspace(workspace).id,
        session_id=None if session is None else SessionId(session),
        recovery_state=None if state is None else RecoveryState(state),
        status=tuple(RunStatus(status) for status in which.get("status", ())),
        agent=which.get("agent"),
        error_code=which.get("error_code"),
        since=which.get("since"),
    )
    return RequeueFilter(**fields)


def _document(job: Job) -> dict[str, Any]:
    document: dict[str, Any] = plain(job)
    return document
