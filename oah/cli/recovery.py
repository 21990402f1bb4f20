"""``oah recovery``: what became of runs whose workers were lost."""

from __future__ import annotations

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, facts, field, json_option, table

_COLUMNS = (
    ("RUN", field("id")),
    ("SESSION", field("session_id")),
    ("REASON", lambda item: (item.get("recovery") or {}).get("reason")),
    ("ATTEMPTS", lambda item: (item.get("recovery") or {}).get("attempts")),
    ("ENDED", lambda item: age(item.get("ended_at"))),
    ("NOTE", field("note")),
)


@click.command()
@json_option
@pass_connection
def recovery(connection: Connection, /, *, as_json: bool) -> None:
    """What recovery did: counts, main reasons, the newest quarantined runs."""
    found = connection.client.recovery()
    if as_json:
        emit_json(found)
        return
    reasons = {each["reason"]: each["count"] for each in found["reasons"]}
    facts({**{name: value for name, value in found.items() if name != "quarantined"}, "reasons": reasons})
    if found["quarantined"]:
        click.echo()
        table(found["quarantined"], _COLUMNS)
