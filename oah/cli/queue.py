"""``oah queue``: what waits, why, and putting the broker right where SQL says otherwise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import Connection, actor, pass_connection
from oah.cli.direct import direct_broker, direct_option, direct_store
from oah.cli.failures import Exit
from oah.cli.output import Document, cell, emit_json, facts, field, json_option, plain, seconds_cell, table
from oah.cli.pools import POOL_COLUMNS
from oah.errors import Forbidden

if TYPE_CHECKING:
    from oah.client import Client
    from oah.settings import Settings

_NAMED = 5

_QUEUE_COLUMNS = (
    ("RUN", field("id")),
    ("STATUS", field("status")),
    ("CLASS", field("class")),
    ("POSITION", field("position")),
    ("INPUT", field("input")),
)


_LANE_COLUMNS = (
    ("LANE", field("lane")),
    ("CLASS", field("class")),
    ("SESSIONS", field("sessions")),
    ("CAPPED", field("capped")),
    ("OLDEST", seconds_cell("oldest_seconds")),
)


@click.group()
def queue() -> None:
    """What waits, and why."""


@queue.command()
@json_option
@pass_connection
def stats(connection: Connection, /, *, as_json: bool) -> None:
    """The health snapshot: ready and locked sessions, ages, slots, waiting times; by lane, and by pool."""
    found = connection.client.queue()
    if as_json:
        emit_json(found)
        return
    facts(found, skip=("lanes", "pools"))
    for items, columns in ((found.get("lanes"), _LANE_COLUMNS), (found.get("pools"), POOL_COLUMNS)):
        if items:
            click.echo()
            table(items, columns)


@queue.command()
@click.argument("session_id", metavar="SESSION")
@direct_option
@json_option
@pass_connection
def inspect(connection: Connection, /, session_id: str, *, direct: bool, as_json: bool) -> None:
    """A session, its owner in SQL, its place in the broker, its runs in order and why they wait."""
    if direct:
        document = _inspect_directly(connection.settings, session_id)
    else:
        client = connection.client
        document = {"session": client.session(session_id), **_seen(client, session_id)}
        document["queue"] = client.session_queue(session_id)
    if as_json:
        emit_json(document)
        return
    facts({name: value for name, value in document.items() if name != "queue"})
    click.echo()
    table(document["queue"], _QUEUE_COLUMNS)


def _seen(client: Client, session_id: str) -> dict[str, Any]:
    """Its owner and its place; not for a key that may only read."""
    try:
        seen = client.queue_session(session_id)
    except Forbidden:
        return {}
    return {"owner": seen["owner"], "broker": seen["broker"]}


def _inspect_directly(settings: Settings, session_id: str) -> dict[str, Any]:
    from oah.core.model.ids import SessionId
    from oah.services.ready_queue import of_session

    name = SessionId(session_id)
    with direct_store(settings) as store, direct_broker(settings) as broker:
        session = store.session(name, None)
        owner, place = of_session(store, broker, name)
        runs = store.queue_of(name, limit=1_000)
    return {
        "session": plain(session),
        "owner": plain(owner),
        "broker": plain(place),
        "queue": [{**plain(run), "class": str(run.run_class)} for run in runs],
    }


@queue.command()
@click.option("--dry-run", is_flag=True, help="Only say what is wrong; exit 1 when something is.")
@click.option("--reconcile", is_flag=True, help="Tell the broker once more of every session with queued runs.")
@direct_option
@json_option
@pass_connection
@click.pass_context
def repair(
    ctx: click.Context, connection: Connection, /, *, dry_run: bool, reconcile: bool, direct: bool, as_json: bool
) -> None:
    """Compare SQL with the broker and put right what differs: sessions that were forgotten get their place again,
    entries of the ready sets that nothing confirms go.

    The leader does the same all the time; this is for who cannot wait, or with --direct for days without one. What is
    wrong with owners is the leader's alone. Exit 1 when faults are left.
    """
    if dry_run and reconcile:
        raise click.UsageError("--dry-run changes nothing: leave --reconcile out")
    pages = (
        _pages_directly(connection.settings, dry_run=dry_run, reconcile=reconcile)
        if direct
        else _pages(connection, dry_run=dry_run, reconcile=reconcile)
    )
    total = _Total()
    for page in pages:
        total.add(page)
    left = total.left()
    if as_json:
        emit_json(total.document(left))
    else:
        for line in total.lines():
            click.echo(line)
        click.echo(f"repaired {len(total.repaired)}, left {len(left)}")
    ctx.exit(Exit.FAILED if left else Exit.DONE)


def _pages(connection: Connection, *, dry_run: bool, reconcile: bool) -> Iterator[Document]:
    client = connection.client
    return client.queue_faults() if dry_run else client.repair_queue(reconcile=reconcile)


def _pages_directly(settings: Settings, *, dry_run: bool, reconcile: bool) -> Iterator[Document]:
    from oah.services.ready_queue import ReadyQueue

    with direct_store(settings) as store, direct_broker(settings) as broker:
        ready = ReadyQueue(store, broker, lease=settings.lease, pause=time.sleep)
        cursor: str | None = None
        while True:
            reconciled = ready.reconcile(cursor) if reconcile else 0
            look = ready.look(cursor)
            repaired = [] if dry_run else ready.mend(look)
            if repaired or reconciled:
                data = {"part": look.part, "repaired": len(repaired), "reconciled": reconciled}
                store.note_action(actor(), "queue.repaired", "queue", data)
            faults = {str(fault): list(names) for fault, names in look.faults.items()}
            yield {"part": look.part, "looked": look.looked, "faults": faults, "repaired": repaired}
            cursor = look.next_cursor
            if cursor is None:
                return


class _Total:
    """Pages, added up."""

    def __init__(self) -> None:
        self.looked: Counter[str] = Counter()
        self.faults: dict[str, list[str]] = {}
        self.repaired: set[str] = set()

    def add(self, page: Document) -> None:
        """One more."""
        self.looked[str(page["part"])] += page["looked"]
        for fault, names in page["faults"].items():
            known = self.faults.setdefault(fault, [])
            known += [name for name in names if name not in known]
        self.repaired |= set(page["repaired"])

    def left(self) -> set[str]:
        """What was not put right."""
        from oah.core.policy.ready_faults import LEADERS

        return {
            name
            for fault, names in self.faults.items()
            for name in names
            if fault in LEADERS or name not in self.repaired
        }

    def document(self, left: set[str]) -> Document:
        """All of it."""
        return {
            "queued_sessions": self.looked["sessions"],
            "owners": self.looked["owners"],
            "entries": self.looked["ready"],
            "faults": self.faults,
            "repaired": sorted(self.repaired),
            "left": len(left),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        from oah.core.policy.ready_faults import WORDS, Fault

        sessions, owners, entries = (self.looked[part] for part in ("sessions", "owners", "ready"))
        yield f"{sessions} session(s) with queued runs, {owners} owner(s), {entries} ready entries looked at"
        for fault, names in self.faults.items():
            named = ", ".join(cell(name) for name in names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
            yield f"{len(names)} {WORDS[Fault(fault)]}: {named}"
