"""``oah top``: workers, queue and runs, live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import STATUS_COLOURS, age, cell, pressure_cell, slots_cell
from oah.cli.pools import POOL_COLUMNS
from oah.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from oah.client import Client

_RUNS = 15
_OF_POOLS = ("POOL", "LOAD", "READY", "RUNNING", "WAITING", "SLOTS", "IDLE", "DESIRED", "OLDEST", "P95")


@click.command()
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="One look, then leave.")
@pass_connection
def top(connection: Connection, /, *, every: float, once: bool) -> None:
    """Workers, queue and runs, live; Ctrl-C leaves."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    client = connection.client
    if once or not console.is_terminal:
        console.print(look(client))
        return
    with Live(look(client), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                live.update(_look_or_say(client), refresh=True)
        except KeyboardInterrupt:
            return


def _look_or_say(client: Client) -> RenderableType:
    """An API that is away for a moment is no reason to leave."""
    from rich.text import Text

    try:
        return look(client)
    except Unavailable as error:
        return Text(error.message, style="red")


def look(client: Client) -> RenderableType:
    """One picture."""
    from rich.console import Group
    from rich.text import Text

    queue = client.queue()
    head = Text(
        f"ready {queue.get('uniqueReadySessionCount', 0)} sessions / {queue.get('readyQueueDepth', 0)} runs   "
        f"locked {queue.get('lockedReadySessionCount', 0)}   "
        f"oldest {_milliseconds(queue.get('oldestSchedulableReadyAgeMs'))}   "
        f"workers {queue.get('globalActiveWorkers', 0)} ({queue.get('globalBusyWorkers', 0)} busy)"
    )
    return Group(head, _pools(queue.get("pools") or []), _workers(client.workers()), _runs(client.runs(limit=_RUNS)))


def _milliseconds(value: Any) -> str:
    return "-" if value is None else f"{float(value) / 1000:.1f}s"


def _table(title: str) -> Table:
    """Without lines: all columns fit into a terminal of 80."""
    from rich.table import Table

    return Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _pools(pools: list[dict[str, Any]]) -> RenderableType:
    table = _table("pools")
    columns = [(name, pick) for name, pick in POOL_COLUMNS if name in _OF_POOLS]
    for name, _ in columns:
        table.add_column(name.lower(), no_wrap=True)
    for pool in pools:
        table.add_row(*(cell(pick(pool)) for _, pick in columns))
    return table


def _workers(workers: list[dict[str, Any]]) -> RenderableType:
    table = _table("workers")
    for name in ("worker", "state", "busy", "pressure", "parked", "cpu", "rss", "seen"):
        table.add_column(name, no_wrap=True)
    for worker in workers:
        state = "draining" if worker.get("draining") else "cordoned" if worker.get("cordoned") else worker.get("state")
        table.add_row(
            cell(worker.get("name")),
            cell(state),
            slots_cell(worker),
            pressure_cell(worker),
            cell(worker.get("parked")),
            f"{worker.get('cpu_percent') or 0:.0f}%",
            f"{(worker.get('rss_bytes') or 0) / 2**20:.0f}M",
            age(worker.get("last_seen_at")),
        )
    return table


def _runs(runs: list[dict[str, Any]]) -> RenderableType:
    from rich.text import Text

    table = _table("runs, newest first")
    for name in ("run", "session", "status", "attempt", "worker", "age", "input"):
        table.add_column(name, no_wrap=True)
    for run in runs:
        status = str(run.get("status"))
        table.add_row(
            cell(run.get("id"))[-8:],
            cell(run.get("session_id"))[-8:],
            Text(status, style=STATUS_COLOURS.get(status, "white")),
            cell(run.get("attempt")),
            cell(run.get("worker_id")).rpartition(".")[0] or "-",
            age(run.get("created_at")),
            Text(cell(run.get("input"), width=40)),
        )
    return table
