"""``oah webhook``: tell other systems of what ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from oah.cli.arguments import DURATION, given, workspace_option
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing, showing


def _last(delivery: Mapping[str, Any]) -> str:
    """How the last try went."""
    log = delivery.get("log") or [{}]
    entry = log[-1]
    return str(entry.get("error") or entry.get("status") or entry.get("outcome") or "")


_COLUMNS = (
    ("WEBHOOK", field("id")),
    ("URL", field("url")),
    ("EVENTS", field("events")),
    ("ACTIVE", field("active")),
    ("OFF", field("off_reason")),
    ("FAILURES", field("failures")),
    ("AGE", lambda item: age(item.get("created_at"))),
)
_DELIVERIES = (
    ("DELIVERY", field("id")),
    ("TYPE", field("type")),
    ("RUN", field("run_id")),
    ("STATE", field("state")),
    ("TRIES", field("tries")),
    ("LAST", _last),
    ("AGE", lambda item: age(item.get("created_at"))),
)
_LOOK_SECONDS = 0.2


@click.group()
def webhook() -> None:
    """Tell other systems of runs that ended."""


@webhook.command()
@click.argument("url")
@click.option("--event", "events", multiple=True, help='A type or a group ("run.*"); repeatable. Ends of runs else.')
@click.option("--description", help="What it is for.")
@click.option("--timeout", type=DURATION, help="How long the receiver may take; 10s when left out.")
@click.option("--secret", help="A secret to sign with; generated when left out.")
@workspace_option
@json_option
@pass_connection
def create(
    connection: Connection,
    /,
    url: str,
    *,
    events: tuple[str, ...],
    description: str | None,
    timeout: float | None,
    secret: str | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Make a webhook and print its secret, which is shown here and nowhere else."""
    options = given(description=description, timeout=timeout, secret=secret, workspace=workspace, events=events or None)
    made = connection.client.create_webhook(url, **options)
    if as_json:
        emit_json(made)
    else:
        click.echo(f"{made['id']} {made['url']}", err=True)
        click.echo(made["secret"])


@webhook.command("list")
@workspace_option
@json_option
@pass_connection
def list_(connection: Connection, /, *, workspace: str | None, as_json: bool) -> None:
    """Webhooks without their secrets."""
    listing(connection.client.webhooks(**given(workspace=workspace)), _COLUMNS, as_json=as_json)


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@json_option
@pass_connection
def show(connection: Connection, /, webhook_id: str, *, as_json: bool) -> None:
    """One webhook."""
    showing(connection.client.webhook(webhook_id), as_json=as_json)


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("--url", help="Another address.")
@click.option("--event", "events", multiple=True, help="Other events; repeatable.")
@click.option("--description", help="Another description.")
@click.option("--timeout", type=DURATION, help="Another time-out.")
@click.option("--secret", help="Another secret.")
@click.option("--on/--off", "active", default=None, help="Switch it on or off.")
@json_option
@pass_connection
def update(
    connection: Connection,
    /,
    webhook_id: str,
    *,
    events: tuple[str, ...],
    timeout: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change a webhook; switched on again it delivers what is pending."""
    changes = given(timeout_seconds=timeout, events=list(events) or None, **options)
    if not changes:
        raise click.UsageError("say what is to change")
    showing(connection.client.update_webhook(webhook_id, **changes), as_json=as_json)


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@json_option
@pass_connection
def delete(connection: Connection, /, webhook_id: str, *, as_json: bool) -> None:
    """Delete a webhook with its deliveries."""
    gone = connection.client.delete_webhook(webhook_id)
    if as_json:
        emit_json(gone)
    else:
        click.echo(f"{webhook_id} deleted")


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("--no-wait", is_flag=True, help="Do not wait for the answer.")
@json_option
@pass_connection
def test(connection: Connection, /, webhook_id: str, *, no_wait: bool, as_json: bool) -> None:
    """Send something now and say how it went; exit code 1 when it was not taken."""
    client = connection.client
    delivery = client.test_webhook(webhook_id)
    patience = client.webhook(webhook_id)["timeout_seconds"] + 30
    deadline = time.monotonic() + patience
    while not no_wait and delivery["state"] == "pending" and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        delivery = client.webhook_delivery(webhook_id, delivery["id"])
    if as_json:
        emit_json(delivery)
    else:
        click.echo(f"{delivery['id']} {delivery['state']} {_last(delivery)}".rstrip())
    if not no_wait and delivery["state"] != "delivered":
        click.get_current_context().exit(1)


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@click.option("--state", type=click.Choice(("pending", "delivered", "failed")), help="Only those.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest.")
@json_option
@pass_connection
def deliveries(connection: Connection, /, webhook_id: str, *, state: str | None, limit: int, as_json: bool) -> None:
    """What it was told, newest first, with every try."""
    found = connection.client.webhook_deliveries(webhook_id, limit=limit + 1, **given(state=state))
    listing(found, _DELIVERIES, as_json=as_json, limit=limit)


@webhook.command()
@click.argument("webhook_id", metavar="WEBHOOK")
@click.argument("delivery_id", metavar="DELIVERY")
@json_option
@pass_connection
def redeliver(connection: Connection, /, webhook_id: str, delivery_id: str, *, as_json: bool) -> None:
    """Deliver once more, under the same id."""
    again = connection.client.redeliver(webhook_id, delivery_id)
    if as_json:
        emit_json(again)
    else:
        click.echo(f"{delivery_id} {again['state']}")
