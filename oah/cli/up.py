"""``oah up``: the whole system on this machine for development, in one terminal.

The parent supervises: it merges the children's lines, restarts what crashes, and is the only one whom the terminal's
Ctrl-C reaches. The first Ctrl-C lets runs finish or go back to their queue, the second ends at once.
"""

from __future__ import annotations

import itertools
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import load_settings
from oah.cli.failures import Exit, complain
from oah.cli.fleet import Death, Fleet, describe_exit, key_path, plan_from, require_port, shell_hint

if TYPE_CHECKING:
    from types import FrameType

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")
_READY_SECONDS = 60.0
_GATEWAY_HINT = "a NATS server, another oah up? choose one with --gateway-port, or go without: --no-gateway"
_GIVE_UP_BEFORE_READY = 3
"""Deaths in a row of one child before the system was ever ready: then it is not going to be."""


class Lines:
    """Prints lines of many children, one at a time, each with its coloured name."""

    def __init__(self, *, names: tuple[str, ...]) -> None:
        self._width = max(len(name) for name in names)
        self._colour = dict(zip(names, itertools.cycle(_COLOURS), strict=False))
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        """One line of a child."""
        prefix = click.style(f"{name.ljust(self._width)} | ", fg=self._colour.get(name))
        with self._lock:
            click.echo(prefix + line)

    def say(self, text: str, *, bold: bool = False) -> None:
        """A line of the supervisor's own."""
        prefix = click.style(f"{'up'.ljust(self._width)} | ", bold=True)
        with self._lock:
            click.echo(prefix + (click.style(text, bold=True) if bold else text))


class Interrupts:
    """Counts SIGINT and SIGTERM and wakes whoever waits."""

    def __init__(self) -> None:
        self.count = 0
        self._woken = threading.Event()

    def install(self) -> None:
        """Take both signals; from the main thread."""
        signal.signal(signal.SIGINT, self._take)
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._woken.set()

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the first signal."""
        self._woken.wait(seconds)


@click.command()
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--slots", type=click.IntRange(1, 512), help="Runs at once per worker; 8 when nothing says otherwise.")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Database, keys, recordings.")
@click.option("--port", "api_port", type=click.IntRange(1, 65535), help="Port of the API; 8787 when left out.")
@click.option("--gateway/--no-gateway", default=True, show_default=True, help="Mailboxes for NATS clients.")
@click.option("--gateway-port", type=click.IntRange(1, 65535), help="Port for NATS clients; 4222 when left out.")
@click.pass_context
def up(ctx: click.Context, /, *, workers: int, slots: int | None, gateway: bool, **options: Any) -> None:
    """The whole system on this machine: server, API, controller, gateway, workers; Ctrl-C stops all."""
    settings = load_settings(**options)
    require_port(settings.api_host, settings.api_port)
    if gateway:
        require_port(settings.gateway.host, settings.gateway_listens_at, hint=_GATEWAY_HINT)
    plan = plan_from(settings, workers=workers, slots=slots, gateway=gateway)
    lines = Lines(names=tuple(spec.name for spec in plan.specs()))
    fleet = Fleet(plan, sink=lines)
    interrupts = Interrupts()
    interrupts.install()
    code = Exit.FAILED
    try:
        fleet.start()
        code = _supervise(fleet, lines, interrupts)
    finally:
        _stop(fleet, lines, interrupts, grace=settings.worker.drain_grace_seconds + 5)
    ctx.exit(code)


def _supervise(fleet: Fleet, lines: Lines, interrupts: Interrupts) -> Exit:
    """Until somebody interrupts, or the system turns out not to come up."""
    ready = False
    while not interrupts.count:
        for death in fleet.restart_dead():
            _tell(death, lines)
            if not ready and death.in_a_row >= _GIVE_UP_BEFORE_READY:
                complain(f"{death.name} does not come up", hint="its last lines are above")
                return Exit.UNAVAILABLE
        if not ready and fleet.ready():
            ready = True
            _greet(fleet, lines)
        interrupts.pause(0.1 if not ready else 0.25)
    return Exit.DONE


def _greet(fleet: Fleet, lines: Lines) -> None:
    plan = fleet.plan
    lines.say(f"ready: {plan.url}", bold=True)
    key = key_path(plan.data_dir)
    lines.say(f"key:   {key}" if key.exists() else "key:   one of those that this database has (oah key list --direct)")
    lines.say(f"in another terminal: {shell_hint(plan)} ; oah session create --agent shell")
    if plan.gateway_port is not None:
        lines.say(f"NATS:  nats://{plan.host}:{plan.gateway_port}")
    lines.say("Ctrl-C stops all; twice: at once")


def _tell(death: Death, lines: Lines) -> None:
    lines.say(
        f"{death.name} ended with {describe_exit(death.exit_code)}; starting it again in {death.restart_in:g} s"
        + (f" (death {death.in_a_row} in a row)" if death.in_a_row > 1 else "")
    )
    if death.in_a_row > 1:
        lines.say(f"its last lines, once more ({len(death.last_lines)}):")
        for line in death.last_lines[-15:]:
            lines(death.name, f"  {line}")


def _stop(fleet: Fleet, lines: Lines, interrupts: Interrupts, *, grace: float) -> None:
    seen = max(1, interrupts.count)
    lines.say("stopping: " + ", ".join(fleet.running()))
    killed = fleet.stop(grace=grace, hurry=lambda: interrupts.count > seen)
    if killed:
        lines.say("had to be killed: " + ", ".join(killed))
    lines.say("stopped")
