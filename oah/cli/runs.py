"""``oah run``: pieces of work for a session."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from oah.cli.arguments import DURATION, given, limit_option, read_text, workspace_option
from oah.cli.attach import attach_run
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit, complain
from oah.cli.inside import give_input, question_lines, steps, wait_children
from oah.cli.output import Document, age, cell, emit_json, field, json_option, listing, showing, write_text
from oah.cli.stops import cancel, steer

if TYPE_CHECKING:
    from oah.client import Client, Event

STATUSES = ("queued", "running", "waiting_tool", "completed", "failed", "cancelled", "timed_out")
TERMINAL = frozenset({"completed", "failed", "cancelled", "timed_out"})
STRATEGIES = ("fail", "requeue_running", "requeue_all")
CLASSES = ("interactive", "subagent", "background")
ORDERS = ("strict", "skip_failed")

ON_BUSY = ("enqueue", "reject", "interrupt", "rollback", "steer")

_SO_FAR_SECONDS = 1.0
"""How long `logs` without `--follow` listens to a run that is still active."""

_COLUMNS = (
    ("RUN", field("id")),
    ("SESSION", field("session_id")),
    ("STATUS", field("status")),
    ("CLASS", field("class")),
    ("ATTEMPT", field("attempt")),
    ("ERROR", lambda item: (item.get("error") or {}).get("code")),
    ("WAITS FOR", lambda item: (item.get("wait_reason") or {}).get("code")),
    ("AGE", lambda item: age(item.get("created_at"))),
    ("INPUT", lambda item: "(messages)" if item.get("kind") == "wake" else item.get("input")),
)


@click.group()
def run() -> None:
    """Pieces of work for a session."""


run.add_command(cancel)
run.add_command(steer)
run.add_command(give_input)
run.add_command(steps)
run.add_command(wait_children)
run.add_command(attach_run)


@run.command()
@click.argument("session_id", metavar="SESSION")
@click.argument("text", metavar="TEXT|-")
@click.option("--wait", is_flag=True, help="Wait for the end and print the answer; exit 1 unless it completed.")
@click.option("--follow", is_flag=True, help="Print output as it comes; exit 1 unless the run completed.")
@click.option("--class", "run_class", type=click.Choice(CLASSES), help="How urgent; interactive when left out.")
@click.option("--delay", type=DURATION, help="Not before this has passed.")
@click.option("--idempotency-key", help="The same key and text again answer with the first run.")
@click.option("--on-busy", type=click.Choice(ON_BUSY), help="What to do when the session is busy; enqueue by default.")
@click.option("--timeout", type=DURATION, help="End an attempt that takes longer.")
@click.option("--start-timeout", type=DURATION, help="End it unless it is started within this.")
@click.option("--idle-timeout", type=DURATION, help="End an attempt that makes no progress for so long.")
@click.option("--step-timeout", type=DURATION, help="End an attempt when a step in it takes longer.")
@click.option("--max-retries", type=click.IntRange(0, 100), help="Further attempts after a failed one.")
@click.option("--retry-initial", type=DURATION, help="The pause before the first of them; it doubles each time.")
@click.option("--retry-factor", type=click.FloatRange(1, 1_000), help="By how much the pause grows instead.")
@click.option("--retry-max", type=DURATION, help="No pause is longer.")
@click.option("--retry-on", multiple=True, metavar="CODE", help="Only after this error; repeatable.")
@click.option("--parent", "parent_run_id", metavar="RUN", help="The run that starts it; its class is subagent then.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher ones first, within class and workspace.")
@click.option("--order", type=click.Choice(ORDERS), help="While it waits: hold the session (strict) or go on.")
@click.option("--command", is_flag=True, help="TEXT may be a command of the agent's program, like /compact.")
@click.option("--recovery-strategy", type=click.Choice(STRATEGIES), help="When its worker is lost.")
@click.option("--recovery-max-attempts", type=click.IntRange(0, 1_000), help="Requeues by recovery at most.")
@json_option
@pass_connection
@click.pass_context
def submit(
    ctx: click.Context,
    connection: Connection,
    /,
    session_id: str,
    text: str,
    *,
    wait: bool,
    follow: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Give a session work (TEXT, or - for standard input) and print the run's id."""
    if follow and as_json:
        raise click.UsageError("--follow and --json exclude each other; use --wait --json")
    client = connection.client
    more = {"retry": _retry(options) or None, "recovery": _recovery(options) or None}
    accepted = client.submit(session_id, read_text(text), **given(**options, **more))
    if not (wait or follow):
        if as_json:
            emit_json(accepted)
        else:
            click.echo(accepted["id"])
        return
    try:
        if follow:
            _print_output(client.stream(accepted["id"]))
        ended = client.wait(accepted["id"])
    except KeyboardInterrupt:
        click.echo(f"stopped waiting; the run goes on: oah run show {accepted['id']}", err=True)
        raise
    result = client.result(accepted["id"])
    if as_json:
        emit_json({**ended, "output": result.get("output"), "exit_code": result.get("exit_code")})
    elif wait and not follow:
        write_text(_line(str(result.get("output") or "")))
    ctx.exit(_verdict(ended))


def _retry(options: dict[str, Any]) -> Document:
    """Takes the options about retries out, as the document of the interface."""
    names = {"initial_seconds": "retry_initial", "factor": "retry_factor", "max_seconds": "retry_max"}
    on = list(options.pop("retry_on"))
    return given(**{field: options.pop(option) for field, option in names.items()}, on=on or None)


def _recovery(options: dict[str, Any]) -> Document:
    """Takes the options about recovery out, as the document of the interface."""
    strategy, attempts = options.pop("recovery_strategy"), options.pop("recovery_max_attempts")
    return given(strategy=strategy, max_attempts=attempts)


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _verdict(ended: Document) -> Exit:
    """0 for a completed run; else say why not and 1."""
    if ended["status"] == "completed":
        return Exit.DONE
    error = ended.get("error") or {}
    reason = ": ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    complain(
        f"run {ended['id']} {ended['status']}{': ' + reason if reason else ''}", hint=f"oah run logs {ended['id']}"
    )
    return Exit.FAILED


def _print_output(events: Iterable[Event]) -> None:
    """Output of a run as it comes. A later attempt is announced on stderr: its output starts anew."""
    for event in events:
        if event.type == "run.output":
            write_text(str(event.data.get("text", "")))
        elif event.type == "run.started" and event.attempt > 1:
            click.echo(f"-- attempt {event.attempt}", err=True)


@run.command("list")
@click.option("--session", help="Only runs of this session.")
@click.option("--parent", metavar="RUN", help="Only children of this run.")
@click.option("--status", type=click.Choice(STATUSES), multiple=True, help="Only these; repeatable.")
@click.option("--error-code", help="Only runs that failed with this code.")
@click.option("--recovery-state", type=click.Choice(["requeued", "failed", "quarantined"]), help="Only these.")
@click.option("--class", "run_class", type=click.Choice(CLASSES), help="Only this class.")
@workspace_option
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, limit: int, as_json: bool, **options: Any) -> None:
    """Runs, newest first; inside a run its children."""
    listing(connection.client.runs(limit=limit + 1, **given(**options)), _COLUMNS, as_json=as_json, limit=limit)


@run.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
def show(connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """One run."""
    found = connection.client.run(run_id)
    if not as_json and found.get("next_attempt_at"):
        found["retry"] = f"{found['failed_attempts']} of {found['max_retries']} at {found['next_attempt_at']}"
    question = found.get("question")
    if not as_json and question:
        found["question"] = f"{question['number']} ({question['kind']}); see: oah run input {run_id}"
    showing(found, as_json=as_json)
    if not as_json and question:
        click.echo("\n" + "\n".join(question_lines(question)))


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--follow", is_flag=True, help="Stay until the run has ended.")
@click.option("--events", is_flag=True, help="Every event in a line instead of the output alone.")
@click.option("--after", type=int, default=0, help="Only events with a higher number.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON: one document, with --follow one a line.")
@pass_connection
def logs(connection: Connection, /, run_id: str, *, follow: bool, events: bool, after: int, as_json: bool) -> None:
    """What a run has said, or with --events what has happened to it."""
    client = connection.client
    stream = client.stream(run_id, after=after) if follow else _events_so_far(client, run_id, after=after)
    if as_json and follow:
        for event in stream:
            emit_json(event, indent=None)
    elif as_json:
        emit_json({"items": list(stream), "more": False})
    elif events:
        for event in stream:
            click.echo(_event_line(event))
    else:
        _print_output(stream)


def _events_so_far(client: Client, run_id: str, *, after: int) -> Iterator[Event]:
    """Events up to now. The stream of a run that has ended ends by itself; that of another is left when it is silent
    for a moment."""
    ended = client.run(run_id)["status"] in TERMINAL
    try:
        yield from client.stream(run_id, after=after, timeout=None if ended else _SO_FAR_SECONDS)
    except TimeoutError:
        return


def _event_line(event: Event) -> str:
    data = " ".join(f"{k}={v!r}" for k, v in event.data.items() if v is not None)
    return cell(f"{event.number:>6}  {event.at}  {event.type:<16} {data}")


@run.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
@click.pass_context
def wait(ctx: click.Context, connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """Wait for the end of a run; exit 1 unless it completed."""
    ended = connection.client.wait(run_id)
    if as_json:
        emit_json(ended)
    else:
        click.echo(ended["status"])
    ctx.exit(_verdict(ended))


@run.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
def result(connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """The answer of a run that has ended."""
    answer = connection.client.result(run_id)
    if as_json:
        emit_json(answer)
    else:
        write_text(_line(str(answer.get("output") or "")))


@run.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
def attempts(connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """Every start of a run: why, where, how it ended."""
    columns = (
        ("ATTEMPT", field("attempt")),
        ("REASON", field("reason")),
        ("WORKER", field("worker_id")),
        ("AGENT", field("agent")),
        ("BECAUSE", field("agent_reason")),
        ("HOME", field("home")),
        ("STARTED", field("started_at")),
        ("ENDED", field("ended_at")),
        ("OUTCOME", field("outcome")),
    )
    listing(connection.client.attempts(run_id), columns, as_json=as_json)


@run.command()
@click.argument("run_id", metavar="RUN")
@click.option("--attempt", type=click.IntRange(1), help="Which start; the last one when left out.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, writable=True), help="Write to this file.")
@click.option("--text", is_flag=True, help="What it showed, as plain text.")
@pass_connection
def recording(connection: Connection, /, run_id: str, *, attempt: int | None, output: str | None, text: bool) -> None:
    """The terminal of an attempt, as asciicast v2 (asciinema play FILE)."""
    cast: bytes = connection.client.recording(run_id, text=text, **given(attempt=attempt))
    if output is None:
        sys.stdout.buffer.write(cast)
        return
    with click.open_file(output, "wb") as file:
        file.write(cast)
    click.echo(output)


@run.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
def requeue(connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """Put an ended run back to queued: it becomes eligible now, its counters restart."""
    _report(connection.client.requeue(run_id), as_json=as_json)


def _report(answer: Document, *, as_json: bool) -> None:
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{answer['id']} {answer.get('result') or answer['status']}")
