"""Supervising children in a terminal: their lines merged, deaths told, signals counted."""

from __future__ import annotations

import itertools
import signal
import threading
from typing import TYPE_CHECKING

import click

from oah.cli.fleet import Death, Fleet, describe_exit

if TYPE_CHECKING:
    from types import FrameType

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


class Lines:
    """Prints lines of many children, one at a time, each with its coloured name."""

    def __init__(self, *, names: tuple[str, ...]) -> None:
        self._width = max(len(name) for name in names)
        self._colours = itertools.cycle(_COLOURS)
        self._colour = dict(zip(names, self._colours, strict=False))
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        """One line of a child."""
        with self._lock:
            if name not in self._colour:
                self._colour[name] = next(self._colours)
            prefix = click.style(f"{name.ljust(self._width)} | ", fg=self._colour[name])
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


def tell(death: Death, lines: Lines) -> None:
    """A death, and the last lines of one that dies again and again."""
    lines.say(
        f"{death.name} ended with {describe_exit(death.exit_code)}; starting it again in {death.restart_in:g} s"
        + (f" (death {death.in_a_row} in a row)" if death.in_a_row > 1 else "")
    )
    if death.in_a_row > 1:
        lines.say(f"its last lines, once more ({len(death.last_lines)}):")
        for line in death.last_lines[-15:]:
            lines(death.name, f"  {line}")


def stop(fleet: Fleet, lines: Lines, interrupts: Interrupts, *, grace: float) -> None:
    """End all, at once when asked once more."""
    seen = max(1, interrupts.count)
    lines.say("stopping: " + ", ".join(fleet.running()))
    killed = fleet.stop(grace=grace, hurry=lambda: interrupts.count > seen)
    if killed:
        lines.say("had to be killed: " + ", ".join(killed))
    lines.say("stopped")
