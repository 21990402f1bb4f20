"""``oah dead-letter`` and ``oah quarantine``: what failed finally, and what to do about it at 3 a.m."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from oah.cli.arguments import DURATION, given, limit_option, workspace_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit, complain
from oah.cli.output import Document, age, cell, emit_json, field, json_option, listing, showing

KINDS = ("run", "message", "outbox", "poison")
_COLUMNS = (
    ("DEAD LETTER", field("id")),
    ("KIND", field("kind")),
    ("STATE", field("state")),
    ("CODE", field("code")),
    ("SESSION", field("session_id")),
    ("TRIES", field("attempts")),
    ("FIRST", lambda item: age(item.get("first_at"))),
    ("LAST", lambda item: age(item.get("last_at"))),
    ("REASON", field("reason")),
)
_QUARANTINE = (
    ("RUN", field("id")),
    ("SESSION", field("session_id")),
    ("ATTEMPT", field("attempt")),
    ("REASON", lambda item: (item.get("recovery") or {}).get("reason")),
    ("ENDED", lambda item: age(item.get("ended_at"))),
    ("NOTE", field("note")),
    ("INPUT", field("input")),
)
_CONFIRMED = 20
"""Letters that a confirmation names one by one."""

F = TypeVar("F", bound=Callable[..., Any])


def _filters(command: F) -> F:
    """The options that choose letters."""
    for option in (
        click.option("--since", type=DURATION, help="Only those that died within this time: 90m, 24h."),
        click.option("--code", help="Only this code, e.g. worker_lost."),
        click.option("--session", help="Only of this session."),
        click.option("--kind", type=click.Choice(KINDS), help="Only this kind."),
        workspace_option,
    ):
        command = option(command)
    return command


def _chosen(options: dict[str, Any]) -> dict[str, Any]:
    since = options.pop("since", None)
    if since is not None:
        options["since"] = datetime.now(UTC) - timedelta(seconds=since)
    return given(**options)


@click.group("dead-letter")
def dead_letter() -> None:
    """What failed finally: quarantined runs, deliveries given up, values nobody could read."""


@dead_letter.command("list")
@_filters
@click.option(
    "--state", type=click.Choice(["dead", "redriven", "all"]), default="dead", show_default=True, help="Only those."
)
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, state: str, limit: int, as_json: bool, **options: Any) -> None:
    """Dead letters, those that died last first."""
    chosen = _chosen(options) | ({} if state == "all" else {"state": state})
    listing(connection.client.dead_letters(limit=limit + 1, **chosen), _COLUMNS, as_json=as_json, limit=limit)


@dead_letter.command()
@click.argument("letter", metavar="DEAD_LETTER")
@json_option
@pass_connection
def show(connection: Connection, /, letter: str, *, as_json: bool) -> None:
    """One letter, whole: its payload is what failed, as it was."""
    showing(connection.client.dead_letter(letter), as_json=as_json)


@dead_letter.command()
@click.argument("letters", metavar="[DEAD_LETTER]...", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="All that are dead.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of each.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_connection
@click.pass_context
def redrive(
    ctx: click.Context,
    connection: Connection,
    /,
    letters: tuple[str, ...],
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Let what they are about go on: a run is queued again as itself. Exit 4 when one was refused."""
    chosen = _which(letters, options, everything=everything)
    client = connection.client
    if not (letters or dry_run or yes):
        _confirm("redrive", client.redrive(**chosen, dry_run=True))
    ctx.exit(_report(client.redrive(**chosen, dry_run=dry_run), as_json=as_json))


@dead_letter.command()
@click.argument("letters", metavar="[DEAD_LETTER]...", nargs=-1)
@_filters
@click.option(
    "--state", type=click.Choice(["dead", "redriven", "all"]), default="dead", show_default=True, help="Only those."
)
@click.option("--all", "everything", is_flag=True, help="All in that state.")
@click.option("--dry-run", is_flag=True, help="Only say which would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_connection
@click.pass_context
def purge(
    ctx: click.Context,
    connection: Connection,
    /,
    letters: tuple[str, ...],
    *,
    state: str,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Delete letters for good; what they were about stays as it is. Asks first. Exit 4 when one was refused."""
    chosen = _which(letters, options, everything=everything)
    if chosen["ids"] is None:
        chosen |= {"everything": True} | ({} if state == "all" else {"state": state})
    client = connection.client
    if not (dry_run or yes):
        _confirm("purge", client.purge(**chosen, dry_run=True))
    ctx.exit(_report(client.purge(**chosen, dry_run=dry_run), as_json=as_json))


def _which(letters: Sequence[str], options: dict[str, Any], *, everything: bool) -> dict[str, Any]:
    chosen = _chosen(options)
    if letters and (chosen or everything):
        raise click.UsageError("give dead letters or a filter, not both")
    if not letters and not chosen and not everything:
        raise click.UsageError("which ones? Name them, give a filter, or --all")
    return {"ids": list(letters) or None, **chosen}


def _confirm(verb: str, outlook: Document) -> None:
    """Ask, on stderr, with what would happen; what is refused anyway is not asked about."""
    going = [item for item in outlook["items"] if item["error"] is None]
    for item in going[:_CONFIRMED]:
        click.echo(f"{verb} {cell(item['id'])} ({cell(item['kind'])})", err=True)
    if len(going) > _CONFIRMED:
        click.echo(f"… and {len(going) - _CONFIRMED} more", err=True)
    click.confirm(f"{verb} {len(going)} dead letter(s)?", abort=True, err=True)


def _report(done: Document, *, as_json: bool) -> Exit:
    if as_json:
        emit_json(done)
    else:
        _lines(done)
    refused = [item["error"]["code"] for item in done["items"] if item["error"] is not None]
    if not refused:
        return Exit.DONE
    return Exit.NOT_FOUND if all(code == "not_found" for code in refused) else Exit.REFUSED


def _lines(done: Document) -> None:
    would = "would be " if done["dry_run"] else ""
    for item in done["items"]:
        if item["error"] is None:
            click.echo(f"{cell(item['id'])} {would}{item['outcome']}")
        else:
            complain(f"{cell(item['id'])}: {item['error']['message']}", hint=item["error"].get("hint"))
    if done["job"] is not None:
        click.echo(f"{done['job']['id']}: a job handles {done['job']['total']} dead letters")
    elif not done["items"]:
        click.echo("no dead letter fits", err=True)
    if done["more"]:
        click.echo("there are more: do it again when this is done", err=True)


@click.group()
def quarantine() -> None:
    """Runs that lost their workers too often: they wait for an operator."""


@quarantine.command("list")
@workspace_option
@click.option("--session", help="Only of this session.")
@limit_option
@json_option
@pass_connection
def list_quarantined(connection: Connection, /, *, limit: int, as_json: bool, **options: Any) -> None:
    """Quarantined runs, newest first, with what was noted about them."""
    chosen = given(**options) | {"recovery_state": "quarantined"}
    listing(connection.client.runs(limit=limit + 1, **chosen), _QUARANTINE, as_json=as_json, limit=limit)


@quarantine.command()
@click.argument("run_id", metavar="RUN")
@click.argument("text")
@json_option
@pass_connection
def note(connection: Connection, /, run_id: str, text: str, *, as_json: bool) -> None:
    """Leave a note on a run, for whoever looks next."""
    showing(connection.client.note(run_id, text), as_json=as_json, skip=("input",))
