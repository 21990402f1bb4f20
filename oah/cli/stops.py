"""``oah run cancel`` and ``oah run steer``: what is done to work that has begun."""

from __future__ import annotations

import click

from oah.cli.arguments import DURATION, read_text
from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit, complain, exit_code
from oah.cli.output import Document, emit_json, json_option
from oah.errors import OahError


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Kill the agent at once, without asking it.")
@click.option("--grace", type=DURATION, help="Kill the agent if it has not ended after this.")
@json_option
@pass_connection
@click.pass_context
def cancel(
    ctx: click.Context,
    connection: Connection,
    /,
    run_ids: tuple[str, ...],
    *,
    force: bool,
    grace: float | None,
    as_json: bool,
) -> None:
    """Take runs out of the queue, or end them where they run; their children go with them.

    Says per run what the cancel found: removed (it will not run), signalled (its worker ends it), too_late.
    """
    if force and grace is not None:
        raise click.UsageError("--force and --grace exclude each other")
    if len(run_ids) == 1:
        answer = connection.client.cancel(run_ids[0], grace=grace, force=force)
        emit_json(answer) if as_json else click.echo(f"{answer['id']} {answer.get('result') or answer['status']}")
        return
    items: list[Document] = []
    worst = Exit.DONE
    for run_id in run_ids:
        try:
            answer = connection.client.cancel(run_id, grace=grace, force=force)
        except OahError as error:
            worst = worst or exit_code(error)
            complain(f"{run_id}: {error.message}", hint=error.hint)
            answer = {"id": run_id, "error": {"code": error.code, "message": error.message}}
        items.append(answer)
        if not as_json and "error" not in answer:
            click.echo(f"{answer['id']} {answer.get('result') or answer['status']}")
    if as_json:
        emit_json({"items": items})
    ctx.exit(worst)


@click.command()
@click.argument("session_id", metavar="SESSION")
@click.argument("text", metavar="TEXT|-")
@click.option("--idempotency-key", help="The same key and text again are said once.")
@json_option
@pass_connection
def steer(connection: Connection, /, session_id: str, text: str, *, idempotency_key: str | None, as_json: bool) -> None:
    """Say TEXT (or - for standard input) to a session's agent while it works.

    Prints the run and what became of it: delivered (its terminal has shown the text), unverified (typed, not proved),
    or queued (nothing was active any more: the text became a run). Exit 4 where the agent takes no text.
    """
    answer = connection.client.steer(session_id, read_text(text), idempotency_key=idempotency_key)
    emit_json(answer) if as_json else click.echo(f"{answer['id']} {answer['delivery']}")
