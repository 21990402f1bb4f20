"""``oah run input`` and ``oah run steps``: speak to a run that waits, and see what a run does."""

from __future__ import annotations

import click

from oah.cli.arguments import DURATION, read_text
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import Document, cell, emit_json, field, json_option, listing
from oah.errors import Conflict


@click.command("input")
@click.argument("run_id", metavar="RUN")
@click.argument("text", metavar="[TEXT|-]", required=False)
@click.option("--choice", metavar="KEY", help="One of the choices of its question, by key, instead of TEXT.")
@click.option("--question", type=click.IntRange(1), help="Only if it still asks this one, by number.")
@json_option
@pass_connection
def give_input(
    connection: Connection,
    /,
    run_id: str,
    text: str | None,
    *,
    choice: str | None,
    question: int | None,
    as_json: bool,
) -> None:
    """Answer a run that waits.

    With TEXT (or - for standard input) or --choice the run goes on; without them its question is shown, with what would
    be an answer.
    """
    if text is not None and choice is not None:
        raise click.UsageError("TEXT and --choice exclude each other")
    if text is None and choice is None:
        _show_question(connection.client.run(run_id), as_json=as_json)
        return
    given = choice if choice is not None else read_text(text or "")
    answer = connection.client.send_input(run_id, given, question=question)
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{answer['id']} {answer['delivery']}")


def _show_question(run: Document, *, as_json: bool) -> None:
    """What is asked, as a person reads it. Raises Conflict where nothing is."""
    question, reason = run.get("question"), run.get("wait_reason") or {}
    if run["status"] != "waiting_tool":
        raise Conflict(f"the run is {run['status']}, it does not wait for input", code="run_not_waiting")
    if as_json:
        emit_json({"id": run["id"], "status": run["status"], "question": question, "wait_reason": reason or None})
    elif question is None:
        click.echo(cell(reason.get("asked") or "it waits, and has not said for what"))
    else:
        click.echo("\n".join(question_lines(question)))


def question_lines(question: Document) -> list[str]:
    """The dialog's lines, then each choice with its key."""
    lines = [cell(line) for line in str(question.get("text") or "").splitlines() if line.strip()]
    said = f"question {question['number']} ({question['kind']})"
    until = f", until {question['deadline']}" if question.get("deadline") else ""
    choices = [cell(f"  {each['key']}: {each['words']}") for each in question.get("choices") or ()]
    if question.get("free"):
        choices.append("  or any text")
    return [*lines, "", f"{said}{until}{', answered' if question.get('answered') else ''}", *choices]


@click.command("wait-children")
@click.option("--timeout", type=DURATION, help="End this run (wait_timeout) when they take longer.")
def wait_children(*, timeout: float | None) -> None:
    """Inside a run: wait until the runs that it has started (with --parent, parent_run_id) have ended.

    The slot of the run is free meanwhile, so that they can have it.
    """
    from oah.client import OwnRun  # takes longer to load than all of the help

    with OwnRun() as run:
        run.wait_for_children(timeout=timeout)


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
