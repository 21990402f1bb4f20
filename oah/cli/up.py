"""``oah up``: the whole system on this machine for development, in one terminal.

The parent supervises: it merges the children's lines, restarts what crashes, and is the only one whom the terminal's
Ctrl-C reaches. The first Ctrl-C lets runs finish or go back to their queue, the second ends at once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.adapters.processes.roster import Roster
from oah.cli.connection import load_settings
from oah.cli.crew import Between, Crew, Workers, scaled_by
from oah.cli.failures import Exit, complain
from oah.cli.fleet import WORKER, Death, Fleet, key_path, plan_from, require_port, shell_hint
from oah.cli.sole import sole
from oah.cli.supervision import Interrupts, Lines, stop, tell

if TYPE_CHECKING:
    from oah.settings import Settings

_GATEWAY_HINT = "a NATS server, another oah up? choose one with --gateway-port, or go without: --no-gateway"
_GIVE_UP_BEFORE_READY = 3
"""Deaths in a row of one child before the system was ever ready: then it is not going to be."""


@click.command()
@click.option(
    "--workers",
    type=Workers(most=64),
    default="2",
    show_default=True,
    help="Worker processes; MIN..MAX: as many as the load asks for.",
)
@click.option("--slots", type=click.IntRange(1, 512), help="Runs at once per worker; 8 when nothing says otherwise.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Database, keys, recordings.")
@click.option("--port", "api_port", type=click.IntRange(1, 65535), help="Port of the API; 8787 when left out.")
@click.option("--gateway/--no-gateway", default=True, show_default=True, help="Mailboxes for NATS clients.")
@click.option("--gateway-port", type=click.IntRange(1, 65535), help="Port for NATS clients; 4222 when left out.")
@click.pass_context
def up(ctx: click.Context, /, *, workers: Between, slots: int | None, gateway: bool, **options: Any) -> None:
    """The whole system on this machine: server, API, controller, gateway, workers; Ctrl-C stops all."""
    settings = load_settings(**options)
    with sole(settings.data_dir):
        ctx.exit(_run(settings, workers=workers, slots=slots, gateway=gateway))


def _run(settings: Settings, *, workers: Between, slots: int | None, gateway: bool) -> Exit:
    """The exit code, once all has ended."""
    require_port(settings.api_host, settings.api_port)
    if gateway:
        require_port(settings.gateway.host, settings.gateway_listens_at, hint=_GATEWAY_HINT)
    plan = plan_from(settings, workers=workers.least, slots=slots, gateway=gateway)
    crew = None
    if workers.elastic:
        plan = replace(plan, env={**plan.env, **scaled_by(workers, settings)})
    lines = Lines(names=tuple(spec.name for spec in plan.specs()))
    fleet = Fleet(plan, sink=lines)
    if workers.elastic:
        roster = Roster(settings.data_dir, settings.worker.pool)
        crew = Crew(fleet, roster, lines.say, count=workers.least, prefix=WORKER)
    interrupts = Interrupts()
    interrupts.install()
    code = Exit.FAILED
    try:
        fleet.start()
        code = _supervise(fleet, lines, interrupts, crew)
    finally:
        stop(fleet, lines, interrupts, grace=settings.worker.drain_grace_seconds + 5)
    return code


def _supervise(fleet: Fleet, lines: Lines, interrupts: Interrupts, crew: Crew | None) -> Exit:
    """Until somebody interrupts, or the system turns out not to come up."""
    ready = False
    while not interrupts.count:
        for death in fleet.restart_dead():
            if not ready and (code := hopeless(death)) is not None:
                return code
            tell(death, lines)
        if crew is not None:
            crew()
        if not ready and fleet.ready():
            ready = True
            _greet(fleet, lines)
        interrupts.pause(0.1 if not ready else 0.25)
    return Exit.DONE


def hopeless(death: Death) -> Exit | None:
    """What to end with because of a child that has never been up; None: it may come up yet. Complains."""
    if death.exit_code == Exit.USAGE:
        complain(f"{death.name} cannot run with these settings", hint="its last lines are above")
        return Exit.USAGE
    if death.in_a_row >= _GIVE_UP_BEFORE_READY:
        complain(f"{death.name} does not come up", hint="its last lines are above")
        return Exit.UNAVAILABLE
    return None


def _greet(fleet: Fleet, lines: Lines) -> None:
    plan = fleet.plan
    lines.say(f"ready: {plan.url}", bold=True)
    key = key_path(plan.data_dir)
    lines.say(f"key:   {key}" if key.exists() else "key:   one of those that this database has (oah key list --direct)")
    lines.say(f"in another terminal: {shell_hint(plan)} ; oah session create --agent shell")
    if plan.gateway_port is not None:
        lines.say(f"NATS:  nats://{plan.host}:{plan.gateway_port}")
    lines.say("Ctrl-C stops all; twice: at once")
