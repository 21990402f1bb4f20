"""``oah schedule``: runs that time submits."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.arguments import DURATION, given, limit_option, read_text, workspace_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing, showing

_COLUMNS = (
    ("SCHEDULE", field("name")),
    ("CRON", field("cron")),
    ("ZONE", field("timezone")),
    ("OVERLAP", field("overlap")),
    ("TO", lambda item: item.get("session_id") or f"new {(item.get('session') or {}).get('agent', '')}"),
    ("NEXT", lambda item: "paused" if item.get("paused") else item.get("next_at") or "never"),
    ("LAST", lambda item: age(item.get("last_at"))),
)
_FIRINGS = (
    ("FIRE TIME", field("fire_at")),
    ("OUTCOME", field("outcome")),
    ("RUN", field("run_id")),
    ("DETAIL", field("detail")),
)
_OVERLAPS = click.Choice(["skip", "queue", "cancel_previous"])
_CLASSES = click.Choice(["interactive", "subagent", "background"])


@click.group()
def schedule() -> None:
    """Runs that time submits (cron)."""


@schedule.command()
@click.argument("name")
@click.argument("cron")
@click.argument("text", metavar="INPUT")
@click.option("--session", "session_id", metavar="SESSION", help="All runs go to this session.")
@click.option("--agent", help="Each run gets a session of its own with this agent.")
@click.option("--pool", help="Pool of those sessions.")
@click.option("--cwd", help="Working directory of those sessions.")
@click.option("--timezone", "-z", help="IANA name, such as Europe/Berlin; UTC when left out.")
@click.option("--overlap", type=_OVERLAPS, help="While the run before has not ended; skip when left out.")
@click.option("--class", "run_class", type=_CLASSES, help="background when left out.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher ones start first; 0 when left out.")
@click.option("--timeout", type=DURATION, help="Of each run.")
@click.option("--paused", is_flag=True, help="It does not fire before `oah schedule resume`.")
@workspace_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    name: str,
    cron: str,
    text: str,
    *,
    session_id: str | None,
    agent: str | None,
    pool: str | None,
    cwd: str | None,
    run_class: str | None,
    priority: int | None,
    timeout: float | None,
    paused: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a schedule NAME that submits INPUT (- for standard input) at the times of CRON.

    CRON has five fields, or six with seconds in front: "*/5 9-17 * * MON-FRI"; also @hourly, @daily, @weekly, @monthly.
    """
    if (session_id is None) == (agent is None):
        raise click.UsageError("say --session SESSION, or --agent AGENT for a session of its own for each run")
    run = {"input": read_text(text), **given(**{"class": run_class, "priority": priority, "timeout_seconds": timeout})}
    session = None if agent is None else {"agent": agent, **given(pool=pool, cwd=cwd)}
    made = connection.client.create_schedule(
        name, cron, run=run, session_id=session_id, session=session, paused=paused or None, **given(**options)
    )
    if as_json:
        emit_json(made)
    else:
        click.echo(f"{made['name']} " + ("is paused" if made["paused"] else f"fires next at {made['next_at']}"))


@schedule.command("list")
@workspace_option
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, workspace: str | None, limit: int, as_json: bool) -> None:
    """Schedules and when they fire next."""
    listing(connection.client.schedules(limit=limit, **given(workspace=workspace)), _COLUMNS, as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@json_option
@pass_connection
def show(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """One schedule, by name or id."""
    showing(connection.client.schedule(name), as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@click.option("--cron", help="Other times.")
@click.option("--timezone", "-z", help="Another time zone.")
@click.option("--overlap", type=_OVERLAPS, help="Another overlap.")
@click.option("--name", "renamed", help="Another name.")
@click.option("--session", "session_id", metavar="SESSION", help="Its runs go to this session from now on.")
@click.option("--input", "text", help="Another input, - for standard input.")
@json_option
@pass_connection
def update(
    connection: Connection, /, name: str, *, renamed: str | None, text: str | None, as_json: bool, **options: Any
) -> None:
    """Change a schedule."""
    changes = given(name=renamed, **options)
    if text is not None:
        changes["run"] = {**connection.client.schedule(name)["run"], "input": read_text(text)}
    if not changes:
        raise click.UsageError("nothing to change: see --help")
    showing(connection.client.update_schedule(name, **changes), as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@json_option
@pass_connection
def pause(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """Let it fire no more until it is resumed."""
    _said(connection.client.update_schedule(name, paused=True), "is paused", as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@json_option
@pass_connection
def resume(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """Let it fire again, at its next time from now on."""
    changed = connection.client.update_schedule(name, paused=False)
    _said(changed, f"fires next at {changed['next_at']}", as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@json_option
@pass_connection
def delete(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """Delete a schedule; its runs stay."""
    _said(connection.client.delete_schedule(name), "is deleted", as_json=as_json)


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@json_option
@pass_connection
def trigger(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """Make its run now, besides its times; prints the run's id."""
    firing = connection.client.trigger_schedule(name)
    if as_json:
        emit_json(firing)
    else:
        click.echo(firing["run_id"])


@schedule.command()
@click.argument("name", metavar="SCHEDULE")
@limit_option
@json_option
@pass_connection
def firings(connection: Connection, /, name: str, *, limit: int, as_json: bool) -> None:
    """What came of its fire times, newest first."""
    listing(connection.client.schedule_firings(name, limit=limit), _FIRINGS, as_json=as_json)


@schedule.command()
@click.argument("cron")
@click.option("--timezone", "-z", help="IANA name; UTC when left out.")
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True, help="Fire times shown.")
@json_option
@pass_connection
def preview(connection: Connection, /, cron: str, *, timezone: str | None, count: int, as_json: bool) -> None:
    """When CRON would fire next, and what it says in words."""
    found = connection.client.preview_schedule(cron, count=count, **given(timezone=timezone))
    if as_json:
        emit_json(found)
        return
    click.echo(found["told"])
    for moment in found["times"]:
        click.echo(moment)


def _said(document: Any, what: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(document)
    else:
        click.echo(f"{document['name']} {what}")
