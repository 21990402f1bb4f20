"""``oah worker``: who runs the agents, and the worker process itself."""

from __future__ import annotations

from typing import Any

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing, pressure_cell, showing, slots_cell
from oah.cli.processes import worker_run

_COLUMNS = (
    ("WORKER", field("id")),
    ("HOST", field("host")),
    ("PID", field("pid")),
    ("POOL", field("pool")),
    ("STATE", lambda item: "draining" if item.get("draining") else item.get("state")),
    ("BUSY", slots_cell),
    ("PRESSURE", pressure_cell),
    ("PARKED", field("parked")),
    ("CORDONED", field("cordoned")),
    ("CPU%", lambda item: f"{item.get('cpu_percent') or 0:.0f}"),
    ("RSS", lambda item: f"{(item.get('rss_bytes') or 0) / 2**20:.0f}M"),
    ("SEEN", lambda item: age(item.get("last_seen_at"))),
    ("VERSION", field("version")),
)


@click.group()
def worker() -> None:
    """Workers: who runs the agents."""


worker.add_command(worker_run)


@worker.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Workers that report, with slots and figures."""
    listing(connection.client.workers(), _COLUMNS, as_json=as_json)


@worker.command()
@click.argument("worker_id", metavar="WORKER")
@json_option
@pass_connection
def show(connection: Connection, /, worker_id: str, *, as_json: bool) -> None:
    """One worker."""
    showing(connection.client.worker(worker_id), as_json=as_json)


@worker.command()
@click.argument("worker_id", metavar="WORKER")
@json_option
@pass_connection
def cordon(connection: Connection, /, worker_id: str, *, as_json: bool) -> None:
    """Take no new runs."""
    _report(connection.client.cordon(worker_id), worker_id, "cordon", as_json=as_json)


@worker.command()
@click.argument("worker_id", metavar="WORKER")
@json_option
@pass_connection
def uncordon(connection: Connection, /, worker_id: str, *, as_json: bool) -> None:
    """Take runs again."""
    _report(connection.client.uncordon(worker_id), worker_id, "uncordon", as_json=as_json)


@worker.command()
@click.argument("worker_id", metavar="WORKER")
@json_option
@pass_connection
def drain(connection: Connection, /, worker_id: str, *, as_json: bool) -> None:
    """Finish current runs, then stop."""
    _report(connection.client.drain(worker_id), worker_id, "drain", as_json=as_json)


def _report(answer: Any, worker_id: str, verb: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{worker_id} {verb} asked for")
