"""``oah job``: maintenance jobs, and the process that performs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from oah.cli.arguments import DURATION, given, limit_option
from oah.cli.connection import Connection, load_settings, pass_connection
from oah.cli.failures import Exit, complain
from oah.cli.output import Document, age, emit_json, facts, field, json_option, listing
from oah.cli.processes import Process
from oah.runtime.collector import still

if TYPE_CHECKING:
    from rich.progress import TaskID

_STATES = ("queued", "running", "completed", "failed", "cancelled")
_COLUMNS = (
    ("JOB", field("id")),
    ("KIND", field("kind")),
    ("STATE", field("state")),
    ("TOTAL", field("total")),
    ("DONE", field("done")),
    ("NOT DONE", field("failed")),
    ("BY", field("created_by")),
    ("AGE", lambda item: age(item.get("created_at"))),
)
_ITEMS = (("NUMBER", field("number")), ("SUBJECT", field("subject")), ("OUTCOME", field("outcome")))


@click.group()
def job() -> None:
    """Maintenance jobs: what runs, how far it came, what came of it."""


@job.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only these.")
@click.option("--kind", help="Only these, such as requeue.")
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, limit: int, as_json: bool, **options: Any) -> None:
    """Jobs, newest first."""
    listing(connection.client.jobs(limit=limit + 1, **given(**options)), _COLUMNS, as_json=as_json, limit=limit)


@job.command()
@click.argument("job_id", metavar="JOB")
@click.option("--items", is_flag=True, help="What became of each subject instead.")
@limit_option
@json_option
@pass_connection
def show(connection: Connection, /, job_id: str, *, items: bool, limit: int, as_json: bool) -> None:
    """One job."""
    if items:
        listing(connection.client.job_items(job_id, limit=limit + 1), _ITEMS, as_json=as_json, limit=limit)
        return
    found = connection.client.job(job_id)
    if as_json:
        emit_json(found)
    else:
        facts(found, skip=("arguments",))


@job.command()
@click.argument("job_id", metavar="JOB")
@click.option("--timeout", type=DURATION, help="Give up after this; the job goes on.")
@json_option
@pass_connection
@click.pass_context
def wait(ctx: click.Context, connection: Connection, /, job_id: str, *, timeout: float | None, as_json: bool) -> None:
    """Wait for the end of a job; exit 1 unless it completed and did all of it."""
    ctx.exit(follow(connection, job_id, timeout=timeout, as_json=as_json))


@job.command()
@click.argument("job_id", metavar="JOB")
@json_option
@pass_connection
def cancel(connection: Connection, /, job_id: str, *, as_json: bool) -> None:
    """End a job after the chunk at hand; what it did stays done."""
    ended = connection.client.cancel_job(job_id)
    if as_json:
        emit_json(ended)
    else:
        click.echo(f"{ended['id']} {ended['state']}")


@job.command("run", cls=Process)
@click.pass_context
def run_(ctx: click.Context, /) -> None:
    """Perform jobs until stopped; a controller starts this by itself."""
    with still():
        settings = load_settings()
        from oah.bootstrap.jobs import jobs_process

        ctx.exit(jobs_process(settings))


def follow(connection: Connection, job_id: str, *, timeout: float | None = None, as_json: bool) -> Exit:
    """Wait for a job with its progress on stderr, then say what came of it."""
    try:
        with progress(job_id) as advance:
            ended = connection.client.wait_job(job_id, timeout=timeout, on_progress=advance)
    except TimeoutError as error:
        complain(str(error), hint=f"it goes on: oah job wait {job_id}")
        return Exit.FAILED
    except KeyboardInterrupt:
        click.echo(f"stopped waiting; the job goes on: oah job wait {job_id}", err=True)
        raise
    return told(ended, as_json=as_json)


def told(ended: Document, *, as_json: bool) -> Exit:
    """What came of a job; 0 when it completed and nothing was left undone."""
    if as_json:
        emit_json(ended)
    else:
        outcomes = ended.get("outcomes") or {}
        what = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        click.echo(f"{ended['id']} {ended['state']}: {what or str(ended['done']) + ' done'}")
    if ended["state"] != "completed":
        complain(f"job {ended['id']} {ended['state']}{': ' + ended['error'] if ended.get('error') else ''}")
        return Exit.FAILED
    return Exit.FAILED if ended["failed"] else Exit.DONE


@contextmanager
def progress(title: str) -> Iterator[Callable[[Document], None]]:
    """A bar on a terminal's stderr, nothing elsewhere; give it the job each time it was looked at."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task: TaskID = bar.add_task(title, total=None)

        def advance(found: Document) -> None:
            bar.update(task, total=found["total"] or None, completed=found["done"] + found["failed"])

        yield advance
