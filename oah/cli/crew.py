"""Workers of this machine as their roster has them: `oah up --workers MIN..MAX` and `oah worker supervise`.

A controller that leads writes the roster (`OAH_SCALE__TARGET=processes`); here it is followed. Whoever leads may come
and go: the workers stay. They end with their supervisor, each after its drain.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oah.adapters.processes.roster import Roster
from oah.cli.children import ChildSpec
from oah.cli.connection import load_settings
from oah.cli.failures import Exit
from oah.cli.fleet import EMBEDDED_URL, Fleet, Plan
from oah.cli.supervision import Interrupts, Lines, stop, tell

if TYPE_CHECKING:
    from oah.settings import Settings


@dataclass(frozen=True, slots=True)
class Between:
    """How many workers: from ``least`` to ``most``."""

    least: int
    most: int

    @property
    def elastic(self) -> bool:
        """Whether somebody is to decide."""
        return self.least != self.most


class Workers(click.ParamType[Between]):
    """``N`` or ``MIN..MAX``."""

    name = "N|MIN..MAX"

    def __init__(self, *, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Between:
        """Fails with what is wrong."""
        if isinstance(value, Between):
            return value
        least, dots, most = str(value).partition("..")
        try:
            found = Between(int(least), int(most) if dots else int(least))
        except ValueError:
            self.fail(f"'{value}' is neither N nor MIN..MAX", param, ctx)
        if not 0 <= found.least <= found.most <= self._most:
            self.fail(f"'{value}' is not between 0 and {self._most}, the smaller first", param, ctx)
        return found


def scaled_by(workers: Between, settings: Settings) -> dict[str, str]:
    """What a controller has to be told so that it scales workers of this machine."""
    return {
        "OAH_SCALE__TARGET": "processes",
        "OAH_SCALE__POOL": settings.worker.pool,
        "OAH_SCALE__MINIMUM": str(workers.least),
        "OAH_SCALE__MAXIMUM": str(workers.most),
    }


class Crew:
    """Follows the roster; for the supervising thread. Raises Conflict where another follows it."""

    def __init__(self, fleet: Fleet, roster: Roster, say: Callable[[str], None], *, count: int, prefix: str) -> None:
        self._fleet = fleet
        self._roster = roster
        self._say = say
        self._wanted = roster.supervise(count, prefix=prefix, host=socket.gethostname()).members
        self._told: dict[str, int] = {}

    def __call__(self) -> None:
        """One look."""
        before, self._wanted = self._wanted, self._roster.read().members
        for how, names in (
            ("more", [name for name in self._wanted if name not in before]),
            ("fewer", [name for name in before if name not in self._wanted]),
        ):
            if names:
                self._say(f"{len(names)} {how}, {len(self._wanted)} workers now: {', '.join(names)}")
        self._fleet.want_workers(self._wanted)
        pids = self._fleet.worker_pids()
        if pids != self._told:
            self._roster.tell_running(pids)
            self._told = pids

    def close(self) -> None:
        """Nobody follows it any more."""
        self._roster.close()


@dataclass(frozen=True, slots=True)
class _WorkersOnly(Plan):
    """Nothing but workers: API, controller and stores are elsewhere."""

    prefix: str = "worker"

    def environment(self) -> dict[str, str]:
        """What is said of the API is its own."""
        told = Plan.environment(self)
        for name in ("OAH_API_HOST", "OAH_API_PORT", "OAH_API_URL"):
            del told[name]
        return {**told, **{name: os.environ[name] for name in os.environ if name.startswith("OAH_API_")}}

    def specs(self) -> Iterator[ChildSpec]:
        for number in range(1, self.workers + 1):
            yield self.worker(f"{self.prefix}-{number}")


@click.command()
@click.option("--workers", type=click.IntRange(0, 512), default=1, show_default=True, help="How many to begin with.")
@click.option("--pool", help="The pool whose lanes they serve.")
@click.option("--slots", type=click.IntRange(1, 512), help="Runs at once per worker.")
@click.pass_context
def supervise(ctx: click.Context, /, *, workers: int, slots: int | None, **options: Any) -> None:
    """Workers of one pool on this machine, as many as a controller wants.

    The controller scales by OAH_SCALE__TARGET=processes and shares this data directory. What crashes is started again;
    Ctrl-C drains all."""
    settings = load_settings(worker=options)
    prefix = settings.worker.name or socket.gethostname()
    plan = _WorkersOnly(
        data_dir=settings.data_dir,
        workers=workers,
        slots=slots,
        redis_url=EMBEDDED_URL if settings.in_process else settings.broker,
        env={"OAH_WORKER__POOL": settings.worker.pool},
        prefix=prefix,
    )
    lines = Lines(names=(f"{prefix}-10",))
    fleet = Fleet(plan, sink=lines)
    crew = Crew(fleet, Roster(settings.data_dir, settings.worker.pool), lines.say, count=workers, prefix=prefix)
    interrupts = Interrupts()
    interrupts.install()
    try:
        fleet.start()
        while not interrupts.count:
            for death in fleet.restart_dead():
                tell(death, lines)
            crew()
            interrupts.pause(0.25)
    finally:
        crew.close()
        stop(fleet, lines, interrupts, grace=settings.worker.drain_grace_seconds + 5)
    ctx.exit(Exit.DONE)
