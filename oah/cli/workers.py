"""``oah worker``: who runs the agents, and the worker process itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import click

from oah.cli.arguments import DURATION
from oah.cli.connection import Connection, pass_connection
from oah.cli.crew import supervise
from oah.cli.output import age, emit_json, field, json_option, listing, pressure_cell, showing, slots_cell, version_cell
from oah.cli.processes import worker_run


def _cordoned(worker: Mapping[str, Any]) -> Any:
    """By whom and for how long, where an operator wants it kept."""
    kept = worker.get("cordon")
    return worker.get("cordoned") if not kept else _kept(kept)


def _kept(cordon: Mapping[str, Any]) -> str:
    until = cordon.get("until")
    return f"by {cordon.get('by')}" + (f" until {until[:16]}Z" if until else "")


_COLUMNS = (
    ("WORKER", field("id")),
    ("HOST", field("host")),
    ("PID", field("pid")),
    ("POOL", field("pool")),
    ("STATE", lambda item: "draining" if item.get("draining") else item.get("state")),
    ("BUSY", slots_cell),
    ("PRESSURE", pressure_cell),
    ("PARKED", field("parked")),
    ("CORDONED", _cordoned),
    ("CPU%", lambda item: f"{item.get('cpu_percent') or 0:.0f}"),
    ("RSS", lambda item: f"{(item.get('rss_bytes') or 0) / 2**20:.0f}M"),
    ("SEEN", lambda item: age(item.get("last_seen_at"))),
    ("VERSION", version_cell),
)


_CORDONS = (
    ("NAME", field("name")),
    ("HOST", field("host")),
    ("POOL", field("pool")),
    ("ALIVE", field("alive")),
    ("CORDONED", _kept),
)

_F = TypeVar("_F", bound=Callable[..., Any])


def _whom(command: _F) -> _F:
    """Workers by id or name, or all of a pool."""
    option = click.option("--pool", help="Every worker of this pool that is alive now.")
    return option(click.argument("worker_ids", metavar="[WORKER]...", nargs=-1)(command))


def drain_options(command: _F) -> _F:
    """How long runs may go on, and what then."""
    deadline = click.option(
        "--deadline",
        "deadline_seconds",
        type=DURATION,
        help="How long runs may go on; as the worker's settings have it when left out.",
    )
    then = click.option(
        "--then",
        type=click.Choice(["wait", "requeue", "fail"]),
        help="What becomes of runs at the deadline: go on, back to the head of their queue with nothing counted, fail.",
    )
    return deadline(then(command))


@click.group()
def worker() -> None:
    """Workers: who runs the agents."""


worker.add_command(worker_run)
worker.add_command(supervise)


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
@_whom
@click.option("--for", "for_seconds", type=DURATION, help="How long; until it is uncordoned when left out.")
@json_option
@pass_connection
def cordon(
    connection: Connection,
    /,
    worker_ids: tuple[str, ...],
    pool: str | None,
    for_seconds: float | None,
    *,
    as_json: bool,
) -> None:
    """Take no new runs, in this life and the next ones of that name."""
    client = connection.client
    one, all_ = partial(client.cordon, for_seconds=for_seconds), partial(client.cordon_pool, for_seconds=for_seconds)
    _tell(worker_ids, pool, "cordon", one, all_, as_json=as_json)


@worker.command()
@json_option
@pass_connection
def cordons(connection: Connection, /, *, as_json: bool) -> None:
    """Workers that are cordoned by name, also those that are gone."""
    listing(connection.client.cordons(), _CORDONS, as_json=as_json)


@worker.command()
@_whom
@json_option
@pass_connection
def uncordon(connection: Connection, /, worker_ids: tuple[str, ...], pool: str | None, *, as_json: bool) -> None:
    """Take runs again, also who comes after a worker that is gone; ends a drain that has not ended the worker yet."""
    client = connection.client
    _tell(worker_ids, pool, "uncordon", client.uncordon, client.uncordon_pool, as_json=as_json)


@worker.command()
@_whom
@drain_options
@click.option("--stay", is_flag=True, help="Take nothing, and do not end.")
@click.option("--wait", is_flag=True, help="Wait until they are gone, or empty.")
@json_option
@pass_connection
def drain(
    connection: Connection, /, worker_ids: tuple[str, ...], pool: str | None, *, wait: bool, as_json: bool, **wish: Any
) -> None:
    """Finish current runs, then stop; of --pool all at once (one batch after the other: oah rollout restart)."""
    client = connection.client
    one, all_ = partial(client.drain, **wish), partial(client.drain_pool, **wish)
    told = _tell(worker_ids, pool, "drain", one, all_, as_json=as_json)
    if wait:
        client.wait_drained(told)


def _tell(
    worker_ids: tuple[str, ...],
    pool: str | None,
    verb: str,
    one: Callable[[str], Any],
    whole: Callable[[str], Any],
    *,
    as_json: bool,
) -> list[str]:
    """One answer each; several as a list. The ids of those who were told."""
    if bool(worker_ids) == (pool is not None):
        raise click.UsageError("say which workers, or --pool POOL")
    if pool is not None:
        answers = [whole(pool)]
        told = [str(each) for each in answers[0]["workers"]]
        shown = [*told, *map(str, answers[0].get("gone", ()))]
    else:
        answers = [one(each) for each in worker_ids]
        shown, told = list(worker_ids), [str(each["id"]) for each in answers]
    if as_json:
        emit_json(answers[0] if len(answers) == 1 else answers)
    else:
        for each in shown:
            click.echo(f"{each} {verb} asked for")
    return told
