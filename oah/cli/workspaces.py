"""``oah workspace``: boundaries of keys, quotas and fairness."""

from __future__ import annotations

import json
from typing import Any

import click

from oah.cli.arguments import WORKTREE, given
from oah.cli.connection import Connection, pass_connection
from oah.cli.output import age, emit_json, field, json_option, listing, showing

_COLUMNS = (
    ("WORKSPACE", field("id")),
    ("NAME", field("name")),
    ("WEIGHT", field("weight")),
    ("MAX ACTIVE", field("max_active_runs")),
    ("MAX QUEUED", field("max_queued_runs")),
    ("RUNS/MIN", field("runs_per_minute")),
    ("AGE", lambda item: age(item.get("created_at"))),
)


@click.group()
def workspace() -> None:
    """Boundaries of keys, quotas and fairness."""


@workspace.command("list")
@json_option
@pass_connection
def list_(connection: Connection, /, *, as_json: bool) -> None:
    """Workspaces that the key may see."""
    listing(connection.client.workspaces(), _COLUMNS, as_json=as_json)


_STRATEGIES = ("fail", "requeue_running", "requeue_all")


@workspace.command()
@click.argument("name")
@click.option("--weight", type=click.IntRange(1), help="Share under load; 1 when left out.")
@click.option("--max-active-runs", type=click.IntRange(1), help="Runs at once.")
@click.option("--max-queued-runs", type=click.IntRange(1), help="Runs that may wait.")
@click.option("--rate", "runs_per_minute", type=click.IntRange(1), help="Runs that may be submitted per minute.")
@click.option("--burst", "runs_burst", type=click.IntRange(1), help="So many of them at once; a minute's worth.")
@click.option("--recovery-strategy", type=click.Choice(_STRATEGIES), help="For runs whose worker is lost.")
@click.option("--recovery-max-attempts", type=click.IntRange(0, 1_000), help="Requeues by recovery at most.")
@json_option
@pass_connection
def create(connection: Connection, /, name: str, *, as_json: bool, **options: Any) -> None:
    """Make a workspace and print its id."""
    made = connection.client.create_workspace(name, **given(**options))
    if as_json:
        emit_json(made)
    else:
        click.echo(made["id"])


@workspace.command()
@click.argument("workspace")
@json_option
@pass_connection
def show(connection: Connection, /, workspace: str, *, as_json: bool) -> None:
    """One workspace, by id or name."""
    found = connection.client.workspace(workspace)
    showing(found, as_json=as_json)


def _rules(file: Any) -> list[Any]:
    try:
        rules = json.load(file)
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--answers") from None
    if not isinstance(rules, list):
        raise click.BadParameter("a list of rules is wanted", param_hint="--answers")
    return rules


class _OrNone(click.ParamType[object]):
    """A value of another type, or the word ``none``: what was said is taken back."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner = inner
        self.name = f"{inner.name}|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The value, or ``TAKEN_BACK``."""
        if value in ("none", TAKEN_BACK):
            return TAKEN_BACK
        if isinstance(self.inner, click.IntRange) and not str(value).lstrip("+-").isdigit():
            self.fail(f"{value!r} is neither a number nor none", param, ctx)
        return self.inner.convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """As the help shows it."""
        if isinstance(self.inner, click.IntRange):
            return "N|none"
        return f"{self.inner.get_metavar(param, ctx) or self.inner.name.upper()}|none"


TAKEN_BACK = object()


@workspace.command()
@click.argument("workspace")
@click.option("--weight", type=click.IntRange(1), help="Share under load.")
@click.option("--max-active-runs", type=_OrNone(click.IntRange(1)), help="Runs at once.")
@click.option("--max-queued-runs", type=_OrNone(click.IntRange(1)), help="Runs that may wait.")
@click.option("--rate", "runs_per_minute", type=_OrNone(click.IntRange(1)), help="Runs submitted per minute.")
@click.option("--burst", "runs_burst", type=_OrNone(click.IntRange(1)), help="So many of them at once.")
@click.option(
    "--recovery-strategy",
    type=_OrNone(click.Choice(_STRATEGIES)),
    help="For runs whose worker is lost; none leaves it to the deployment.",
)
@click.option(
    "--recovery-max-attempts",
    type=_OrNone(click.IntRange(0, 1_000)),
    help="Requeues by recovery at most; none leaves it to the deployment.",
)
@click.option(
    "--answers",
    type=_OrNone(click.File("r")),
    metavar="FILE|-|none",
    help="Which questions of agents a rule answers: a JSON list; none: a person is asked.",
)
@click.option(
    "--worktree",
    type=_OrNone(WORKTREE),
    help="Sessions that name no working directory work in a git worktree of this repository.",
)
@json_option
@pass_connection
def update(connection: Connection, /, workspace: str, *, as_json: bool, **options: Any) -> None:
    """Change weight, caps, the rate of submits, or what becomes of runs whose worker is lost."""
    file = options.pop("answers")
    if file not in (None, TAKEN_BACK):
        options["answers"] = _rules(file)
    elif file is TAKEN_BACK:
        options["answers"] = TAKEN_BACK
    changes = {name: None if value is TAKEN_BACK else value for name, value in given(**options).items()}
    if not changes:
        raise click.UsageError("nothing to change; see --help")
    changed = connection.client.update_workspace(workspace, **changes)
    showing(changed, as_json=as_json)
