"""``oah session``: conversations with agents."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.arguments import PAIR, WORKTREE, given, limit_option, workspace_option
from oah.cli.attach import attach_session
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import Document, age, emit_json, field, json_option, listing, showing
from oah.cli.session_messages import messages, send, wake

_COLUMNS = (
    ("SESSION", field("id")),
    ("AGENT", field("agent")),
    ("POOL", field("pool")),
    ("STATE", field("state")),
    ("QUEUED", field("queued_count")),
    ("HELD", lambda item: ",".join(_holds(item))),
    ("AGE", lambda item: age(item.get("created_at"))),
    ("TITLE", field("title")),
)


@click.group()
def session() -> None:
    """Conversations with agents."""


session.add_command(attach_session)
for command in (send, messages, wake):
    session.add_command(command)


@session.command()
@click.option("--agent", required=True, help="The profile to drive: shell, python, exec … (oah agent list).")
@click.option("--pool", help="Workers of which pool serve it.")
@click.option("--title", help="What people see.")
@click.option("--wake", type=click.Choice(["eager", "lazy"]), help="Whether a message starts its agent.")
@click.option("--cwd", help="Working directory of the agent.")
@click.option("--worktree", type=WORKTREE, help="Make it a git worktree of this repository of the workers.")
@click.option("--env", type=PAIR, multiple=True, help="Environment of the agent; repeatable.")
@click.option(
    "--secret", type=PAIR, multiple=True, help="VARIABLE=NAME of a secret that the worker knows, for --env; repeatable."
)
@click.option("--label", type=PAIR, multiple=True, help="Label to select by; repeatable.")
@click.option("--idempotency-key", help="Inside a run: finds the session that the run has opened under it before.")
@workspace_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    *,
    agent: str,
    env: tuple[tuple[str, str], ...],
    secret: tuple[tuple[str, str], ...],
    label: tuple[tuple[str, str], ...],
    worktree: dict[str, str] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Open a session and print its id. Inside a run it is for children of that run."""
    values = {**dict(env), **{variable: {"secret": name} for variable, name in secret}}
    options["worktree"] = worktree
    made = connection.client.create_session(agent, **given(env=values, labels=dict(label), **options))
    if as_json:
        emit_json(made)
    else:
        click.echo(made["id"])


@session.command("list")
@click.option("--state", type=click.Choice(["open", "closing", "closed"]), help="Only these.")
@workspace_option
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, limit: int, as_json: bool, **options: Any) -> None:
    """Sessions, newest first."""
    listing(connection.client.sessions(limit=limit + 1, **given(**options)), _COLUMNS, as_json=as_json, limit=limit)


@session.command()
@click.argument("session_id", metavar="SESSION")
@json_option
@pass_connection
def show(connection: Connection, /, session_id: str, *, as_json: bool) -> None:
    """One session."""
    showing(connection.client.session(session_id), as_json=as_json)


@session.command()
@click.argument("session_id", metavar="SESSION")
@json_option
@pass_connection
def queue(connection: Connection, /, session_id: str, *, as_json: bool) -> None:
    """Active and queued runs of a session, in the order in which they run."""
    columns = (
        ("RUN", field("id")),
        ("STATUS", field("status")),
        ("CLASS", field("class")),
        ("POSITION", field("position")),
        ("WAITS FOR", lambda item: (item.get("wait_reason") or {}).get("message")),
        ("INPUT", field("input")),
    )
    listing(connection.client.session_queue(session_id), columns, as_json=as_json)


@session.command()
@click.argument("session_id", metavar="SESSION")
@click.option("--cancel", is_flag=True, help="Cancel what runs or waits; without it an active run is a conflict.")
@json_option
@pass_connection
def close(connection: Connection, /, session_id: str, *, cancel: bool, as_json: bool) -> None:
    """Take no more runs and end the agent."""
    _report(connection.client.close_session(session_id, cancel=cancel), as_json=as_json)


@session.command()
@click.argument("session_id", metavar="SESSION")
@json_option
@pass_connection
def pause(connection: Connection, /, session_id: str, *, as_json: bool) -> None:
    """Start no further run until resumed; an active one goes on."""
    _report(connection.client.pause_session(session_id), as_json=as_json)


@session.command()
@click.argument("session_id", metavar="SESSION")
@click.option("--unkillable", is_flag=True, help="Also the hold for a process that could not be killed: it is gone.")
@json_option
@pass_connection
def resume(connection: Connection, /, session_id: str, *, unkillable: bool, as_json: bool) -> None:
    """Let a paused session start its runs again."""
    _report(connection.client.resume_session(session_id, **given(unkillable=unkillable or None)), as_json=as_json)


def _report(item: Any, *, as_json: bool) -> None:
    if as_json:
        emit_json(item)
        return
    holds = _holds(item)
    click.echo(f"{item['id']} {item['state']}{' held: ' + ', '.join(holds) if holds else ''}")


def _holds(item: Document) -> list[str]:
    """Why no run of the session may start."""
    return [str(hold["reason"]) for hold in item.get("holds") or ()]
