"""``oah run input`` and ``oah run steps``: speak to a run that waits, and see what a run does."""

from __future__ import annotations

import click

from oah.cli.arguments import read_text
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import emit_json, field, json_option, listing


@click.command("input")
@click.argument("run_id", metavar="RUN")
@click.argument("text", metavar="TEXT|-")
@json_option
@pass_connection
def give_input(connection: Connection, /, run_id: str, text: str, *, as_json: bool) -> None:
    """Answer a run that waits: TEXT (or - for standard input) is typed to its agent, then the run goes on."""
    answer = connection.client.send_input(run_id, read_text(text))
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{answer['id']} {answer['delivery']}")


@click.command()
@click.argument("run_id", metavar="RUN")
@json_option
@pass_connection
def steps(connection: Connection, /, run_id: str, *, as_json: bool) -> None:
    """What a run did in steps, and what was done to it."""
    columns = (
        ("STEP", field("number")),
        ("ATTEMPT", field("attempt")),
        ("KIND", field("kind")),
        ("NAME", field("name")),
        ("STATE", field("state")),
        ("OUTCOME", field("outcome")),
        ("STARTED", field("started_at")),
        ("ENDED", field("ended_at")),
    )
    listing(connection.client.steps(run_id), columns, as_json=as_json)
