"""``oah pause``, ``oah resume``, ``oah pauses`` and ``oah cap``: what takes no new runs, or only so many at once."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import Document, age, emit_json, field, json_option, listing

_KINDS = click.Choice(["workspace", "pool", "profile", "session", "all"])
_PAUSES = (
    ("KIND", field("kind")),
    ("NAME", field("name")),
    ("SINCE", lambda item: age(item.get("at"))),
    ("BY", field("by")),
    ("REASON", field("reason")),
)
_CAPS = (
    ("KIND", field("kind")),
    ("NAME", field("name")),
    ("MAX ACTIVE", field("max_active_runs")),
    ("BY", field("by")),
    ("SET", lambda item: age(item.get("at"))),
)


def _required(kind: str, name: str | None) -> None:
    if (kind == "all") == bool(name):
        raise click.UsageError("all has no name" if name else f"which {kind}?")


@click.command()
@click.argument("kind", metavar="KIND", type=_KINDS)
@click.argument("name", required=False)
@click.option("--reason", help="Shown to whoever asks why runs wait.")
@json_option
@pass_connection
def pause(connection: Connection, /, kind: str, name: str | None, *, reason: str | None, as_json: bool) -> None:
    """Start no run of a KIND: workspace, pool, profile, session, or all (no NAME); what runs goes on."""
    _required(kind, name)
    if kind == "session":
        if reason is not None:
            raise click.UsageError("a session is paused without a reason")
        made = connection.client.pause_session(name or "")
    else:
        made = connection.client.pause(kind, name, reason=reason)
    _said(made, f"{kind} {name} paused" if name else "all paused", as_json=as_json)


@click.command()
@click.argument("kind", metavar="KIND", type=_KINDS)
@click.argument("name", required=False)
@json_option
@pass_connection
def resume(connection: Connection, /, kind: str, name: str | None, *, as_json: bool) -> None:
    """Undo a pause; KIND and NAME as there."""
    _required(kind, name)
    client = connection.client
    done = client.resume_session(name or "") if kind == "session" else client.resume(kind, name)
    was = done.get("was_paused", True)
    words = "resumed" if was else "was not paused"
    _said(done, f"{kind} {name} {words}" if name else f"all {words}", as_json=as_json)


@click.command()
@json_option
@pass_connection
def pauses(connection: Connection, /, *, as_json: bool) -> None:
    """Workspaces, pools and profiles that are paused. (Sessions: oah session list.)"""
    listing(connection.client.pauses(), _PAUSES, as_json=as_json)


@click.group()
def cap() -> None:
    """How many runs of a profile, or of all, may run at once."""


@cap.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Caps that stand. (A workspace's: oah workspace list.)"""
    listing(connection.client.caps(), _CAPS, as_json=as_json)


@cap.command("set")
@click.argument("kind", metavar="KIND", type=click.Choice(["profile", "workspace", "all"]))
@click.argument("name_and_most", metavar="[NAME] RUNS|none", nargs=-1)
@json_option
@pass_connection
def set_(connection: Connection, /, kind: str, name_and_most: tuple[str, ...], *, as_json: bool) -> None:
    """So many runs at once, of a profile, a workspace, all: `oah cap set profile shell 20`, `oah cap set all 200`."""
    *names, word = name_and_most or ("",)
    if len(names) != (kind != "all"):
        raise click.UsageError("oah cap set all RUNS" if kind == "all" else f"oah cap set {kind} NAME RUNS")
    if word != "none" and not (word.isascii() and word.isdigit() and int(word) > 0):
        raise click.UsageError(f"{word!r} is no number of runs; 1 or more, or none")
    most = None if word == "none" else int(word)
    client = connection.client
    if kind == "workspace":
        made = client.update_workspace(names[0], max_active_runs=most)
    else:
        made = client.set_cap(kind, names[0] if names else None, max_active_runs=most)
    _said(made, f"{' '.join((kind, *names))}: {'no cap' if most is None else f'{most} at once'}", as_json=as_json)


def _said(document: Document, words: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(document)
    else:
        click.echo(words)
