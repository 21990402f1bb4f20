"""``oah rollout``: rolling restarts of a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from oah.cli.arguments import DURATION, given, limit_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit, complain
from oah.cli.output import Document, age, emit_json, facts, field, json_option, listing
from oah.cli.workers import drain_options

_COLUMNS = (
    ("ROLLOUT", field("id")),
    ("POOL", field("pool")),
    ("STATE", field("state")),
    ("DONE", lambda item: f"{item.get('done')}/{item.get('workers')}"),
    ("BATCH", field("batch")),
    ("BY", field("created_by")),
    ("AGE", lambda item: age(item.get("created_at"))),
    ("ERROR", field("error")),
)
_MEMBERS = (
    ("WORKER", field("name")),
    ("HOST", field("host")),
    ("STAGE", field("stage")),
    ("SINCE", lambda item: age(item.get("since"))),
    ("VERSION", lambda item: _became(item.get("version"), item.get("successor_version"))),
    ("SUCCESSOR", field("successor")),
    ("REASON", field("reason")),
)


def _became(before: Any, after: Any) -> str:
    return str(before) if after in (None, before) else f"{before} -> {after}"


@click.group()
def rollout() -> None:
    """Rolling restarts: a pool's workers one batch after the other, each only when the last ones are healthy."""


@rollout.command()
@click.argument("pool")
@click.option("--batch", type=click.IntRange(1, 1000), help="So many workers at once; 1 when left out.")
@drain_options
@click.option("--settle", "settle_seconds", type=DURATION, help="A successor must serve for so long; 5s.")
@click.option("--health", "health_seconds", type=DURATION, help="A healthy successor must be there within this; 2m.")
@click.option("--version", help="Successors must be of this version.")
@click.option("--reason", help="Why; shown with it.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit 1 unless it completed.")
@json_option
@pass_connection
@click.pass_context
def restart(
    ctx: click.Context, connection: Connection, /, pool: str, *, wait: bool, as_json: bool, **options: Any
) -> None:
    """Drain every worker of POOL and wait until its supervisor has started it again, a batch at a time."""
    begun = connection.client.restart_pool(pool, **given(**options))
    if wait:
        ctx.exit(_follow(connection, begun["id"], timeout=None, as_json=as_json))
    if as_json:
        emit_json(begun)
    else:
        click.echo(f"{begun['id']} restarts {begun['workers']} workers of {pool}, {begun['batch']} at a time")


@rollout.command("list")
@click.option("--pool", help="Only of this one.")
@limit_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, pool: str | None, limit: int, as_json: bool) -> None:
    """Rolling restarts, newest first."""
    listing(connection.client.rollouts(limit=limit + 1, pool=pool), _COLUMNS, as_json=as_json, limit=limit)


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@json_option
@pass_connection
def status(connection: Connection, /, rollout_id: str, *, as_json: bool) -> None:
    """Where it stands, worker by worker."""
    found = connection.client.rollout(rollout_id)
    if as_json:
        emit_json(found)
        return
    facts(found, skip=("members",))
    click.echo()
    listing(found["members"], _MEMBERS, as_json=False)


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@click.option("--timeout", type=DURATION, help="Give up after this; the rollout goes on.")
@json_option
@pass_connection
@click.pass_context
def wait(
    ctx: click.Context, connection: Connection, /, rollout_id: str, *, timeout: float | None, as_json: bool
) -> None:
    """Wait for its end; exit 1 unless it completed."""
    ctx.exit(_follow(connection, rollout_id, timeout=timeout, as_json=as_json))


@rollout.command()
@click.argument("rollout_id", metavar="ROLLOUT")
@json_option
@pass_connection
def abort(connection: Connection, /, rollout_id: str, *, as_json: bool) -> None:
    """No more of it: workers that drain serve again, those not restarted yet never are."""
    ended = connection.client.abort_rollout(rollout_id)
    if as_json:
        emit_json(ended)
    else:
        click.echo(f"{ended['id']} {ended['state']}: {ended['done']} of {ended['workers']} were restarted")


def _follow(connection: Connection, rollout_id: str, *, timeout: float | None, as_json: bool) -> Exit:
    try:
        ended = connection.client.wait_rollout(rollout_id, timeout=timeout, on_progress=_telling())
    except TimeoutError as error:
        complain(str(error), hint=f"oah rollout status {rollout_id}")
        return Exit.FAILED
    if as_json:
        emit_json(ended)
    else:
        click.echo(f"{ended['id']} {ended['state']}: {ended['done']} of {ended['workers']}")
    if ended["state"] != "completed":
        complain(f"rollout {ended['id']} {ended['state']}: {ended['error'] or 'no reason'}")
        return Exit.FAILED
    return Exit.DONE


def _telling() -> Callable[[Document], None]:
    """Each change of a worker's stage, on stderr."""
    last: dict[str, str] = {}

    def told(found: Document) -> None:
        for member in found["members"]:
            who, stage = f"{member['name']} on {member['host']}", str(member["stage"])
            if last.get(member["worker_id"]) != stage and stage != "pending":
                reason = f": {member['reason']}" if member.get("reason") else ""
                click.echo(f"{who} {stage}{reason}", err=True)
            last[member["worker_id"]] = stage

    return told
