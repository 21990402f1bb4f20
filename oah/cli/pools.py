"""``oah pool``: how much waits and runs in each pool, and what could take it."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import (
    age,
    emit_json,
    facts,
    field,
    json_option,
    listing,
    pressure_cell,
    seconds_cell,
    slots_cell,
    table,
)

POOL_COLUMNS = (
    ("POOL", field("pool")),
    ("LOAD", field("load")),
    ("READY", field("ready")),
    ("CAPPED", field("capped")),
    ("RUNNING", field("running")),
    ("WAITING", field("waiting")),
    ("SLOTS", field("slots")),
    ("IDLE", field("idle_slots")),
    ("WORKERS", field("workers")),
    ("DESIRED", field("desired")),
    ("OLDEST", seconds_cell("oldest_wait_seconds")),
    ("P50", seconds_cell("wait_p50_seconds")),
    ("P95", seconds_cell("wait_p95_seconds")),
    ("SURE", field("sure")),
)
_MEMBERS = (
    ("WORKER", field("id")),
    ("HOST", field("host")),
    ("STATE", lambda item: "draining" if item.get("draining") else item.get("state")),
    ("BUSY", slots_cell),
    ("PARKED", field("parked")),
    ("CORDONED", field("cordoned")),
    ("PRESSURE", pressure_cell),
    ("SEEN", lambda item: age(item.get("last_seen_at"))),
    ("VERSION", field("version")),
)
_DECISIONS = (
    ("AT", field("at")),
    ("CURRENT", field("current")),
    ("DESIRED", field("desired")),
    ("REASON", field("reason")),
    ("OUTCOME", field("outcome")),
    ("TARGET", field("target")),
    ("GOING", lambda item: ", ".join(item.get("going") or ()) or None),
)


@click.group()
def pool() -> None:
    """Pools: how much waits and runs in each, and what could take it."""


@pool.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Pools in which anything waits, runs or serves. What waits and runs counts as the slots that it takes."""
    listing(connection.client.pools(), POOL_COLUMNS, as_json=as_json)


@pool.command()
@click.argument("name", metavar="POOL")
@json_option
@pass_connection
def show(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """One pool: its workers, and the last decisions about its size, newest first."""
    found = connection.client.pool(name)
    if as_json:
        emit_json(found)
        return
    facts(found, skip=("members", "decisions"))
    for items, columns in ((found["members"], _MEMBERS), (found["decisions"], _DECISIONS)):
        if items:
            click.echo()
            table(items, columns)


@pool.command()
@click.argument("name", metavar="POOL")
@json_option
@pass_connection
def metric(connection: Connection, /, name: str, *, as_json: bool) -> None:
    """The number that an autoscaler divides by the slots of a replica: what waits for a slot and what runs in one.

    Exit 5 while it could be too little."""
    found = connection.client.pool_metric(name)
    if as_json:
        emit_json(found)
    else:
        click.echo(found["value"])
