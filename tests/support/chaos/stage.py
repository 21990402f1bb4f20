"""Where chaos plays: stores with clocks of their own, two ways to them, a fleet, and somebody who starts the dead."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from oah.cli.fleet import describe_exit, free_port
from oah.errors import OahError
from oah.testing import processes
from oah.testing.fleet import Fleet
from oah.testing.profiles import install_testing_agents
from tests.support.chaos.plan import CONTROLLERS, LEASE, NEAR, POOLS, Action, Harm
from tests.support.false_clock import FalseClock, FalsePostgres, false_postgres
from tests.support.proxy import Loss, Proxy
from tests.support.scenes import Ends, ends_in
from tests.support.warm import warm

SETTINGS = {
    "OAH_STALE_RUN_RECOVERY_MAX_ATTEMPTS": "50",
    "OAH_WORKER__WARM_IDLE_SECONDS": "2",
    "OAH_WORKER__HEARTBEAT_SECONDS": "1",
    "OAH_WORKER__DRAIN_GRACE_SECONDS": "2",
    "OAH_CONTROLLER__LEADER_LEASE_SECONDS": "5",
    "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1",
    "OAH_CONTROLLER__RECONCILE_SECONDS": "3",
}
PATIENCE = 45.0
"""How long a process may take to end when it was asked to."""


class Stage:
    """The system and what can be done to it. ``log`` may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        fleet: Fleet,
        redis: FalseClock,
        postgres: FalsePostgres,
        database: str,
        ways: dict[str, Ends],
    ) -> None:
        self.directory = directory
        self.fleet = fleet
        self.redis = redis
        self.postgres = postgres
        self.database = database
        self.ways = ways
        self.ledger = directory / "ledger"
        self.faults: list[str] = []
        """What no harm explains: a process that ended by itself, or would not end."""
        self.actions: list[str] = []
        self.skewed: set[str] = set()
        """Runs that wait for a moment by a clock that was wrong when they were accepted."""
        self._began = time.monotonic()
        self._meant: set[str] = set()
        """Names of processes that somebody has ended on purpose and will start again."""
        self._lock = threading.Lock()

    def log(self, text: str) -> None:
        """Add to the story."""
        self.actions.append(f"{time.monotonic() - self._began:7.2f} {text}")

    def begin(self) -> None:
        """The times of the plan count from now on."""
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since ``begin``."""
        return time.monotonic() - self._began

    # --- one harm ---

    def harm(self, action: Action, healing: threading.Event) -> None:
        """Do it, wait, undo it; for a thread of its own. ``healing`` ends the waiting early."""
        self.log(f"{action.harm} {action.target} {action.amount or ''} for {action.seconds:.2f}")
        try:
            with self._doing(action):
                healing.wait(action.seconds)
        except (OahError, ProcessLookupError, AssertionError) as error:
            self.faults.append(f"{action}: {type(error).__name__} {error}")
        self.log(f"  over: {action.harm} {action.target}")

    def _doing(self, action: Action) -> Any:
        if action.harm.startswith("redis"):
            return self._redis(action)
        if action.harm.startswith("sql"):
            return self._sql(action)
        if action.harm in (Harm.DELAY, Harm.LOSE, Harm.HOLE, Harm.CUT):
            return self._way(action)
        return self._process(action)

    @contextmanager
    def _process(self, action: Action) -> Iterator[None]:
        name = action.target
        match action.harm:
            case Harm.KILL | Harm.END:
                with self._lock:
                    self._meant.add(name)
                self.fleet.kill(name, signal.SIGKILL if action.harm is Harm.KILL else signal.SIGTERM, reap=PATIENCE)
                yield
                self.fleet.restart(name)
                with self._lock:
                    self._meant.discard(name)
            case Harm.STOP:
                with processes.stopped(self.fleet.pids[name]):
                    yield
            case Harm.KILL_HOST:
                with suppress(OahError, ProcessLookupError):  # between two hosts there is none
                    os.kill(self.fleet.host_pid(name), signal.SIGKILL)
                yield
            case _:
                with ExitStack() as stack:
                    with suppress(OahError, ProcessLookupError):
                        stack.enter_context(processes.stopped(self.fleet.host_pid(name)))
                    yield

    @contextmanager
    def _redis(self, action: Action) -> Iterator[None]:
        server, dump = self.redis, self.redis.directory / "dump.rdb"
        match action.harm:
            case Harm.REDIS_KEEPS | Harm.REDIS_EMPTY:
                server.client().save()
                server.stop()
                if action.harm is Harm.REDIS_EMPTY:
                    dump.unlink(missing_ok=True)
                yield
                server.start()
            case Harm.REDIS_OLD:
                server.client().save()
                yield
                server.stop()
                server.start()
            case Harm.REDIS_STOP:
                server.signal(signal.SIGSTOP)
                yield
                server.signal(signal.SIGCONT)
            case Harm.REDIS_CLIENTS:
                for _ in range(3):
                    server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                yield
            case Harm.REDIS_FLUSH:
                server.client().flushall()
                yield
            case _:
                server.shift(action.amount)
                yield

    @contextmanager
    def _sql(self, action: Action) -> Iterator[None]:
        match action.harm:
            case Harm.SQL_FAST | Harm.SQL_CRASH:
                self.postgres.end(signal.SIGINT if action.harm is Harm.SQL_FAST else signal.SIGQUIT)
                yield
                self.postgres.start()
            case Harm.SQL_CLIENTS:
                self.postgres.end_sessions()
                yield
            case _:
                self.postgres.shift(action.amount)
                yield

    @contextmanager
    def _way(self, action: Action) -> Iterator[None]:
        proxies = self._proxies(action.target)
        for proxy in proxies:
            match action.harm:
                case Harm.DELAY:
                    proxy.delay(action.amount)
                case Harm.LOSE:
                    proxy.lose(every=int(action.amount), how=(Loss.CUT, Loss.MUTE))
                case Harm.HOLE:
                    proxy.stall()
                case _:
                    proxy.cut()
        yield
        for proxy in proxies:
            proxy.heal()

    def _proxies(self, target: str) -> list[Proxy]:
        way, _, store = target.partition(".")
        ends = self.ways[way]
        return [proxy for name, proxy in (("redis", ends.redis), ("sql", ends.sql)) if store in ("", name)]

    # --- supervision ---

    def supervise(self) -> None:
        """One look: who has ended without being asked is a fault, and started again."""
        for spec in self.fleet.plan.specs():
            with self._lock:
                if spec.name in self._meant or spec.name in self.fleet.pids:
                    continue
                last = " / ".join(self.fleet.lines(spec.name)[-6:])
                code = describe_exit(self.fleet.wait_exit(spec.name, within=5))
                self.faults.append(f"{spec.name} ended by itself ({code}) at {self.now:.2f}: {last}")
                self.fleet.restart(spec.name)

    def heal(self) -> None:
        """Everything is as it ought to be: for when all harms are over."""
        for ends in self.ways.values():
            ends.heal()
        self.redis.shift(0)
        self.postgres.shift(0)
        self.log("healed")

    def keep(self, where: Path) -> None:
        """Copy what an investigation needs."""
        where.mkdir(parents=True, exist_ok=True)
        for spec in self.fleet.plan.specs():
            (where / f"{spec.name}.log").write_text("\n".join(self.fleet.lines(spec.name)) + "\n")
        if self.ledger.exists():
            shutil.copy(self.ledger, where / "ledger")
        (where / "actions.log").write_text("\n".join(self.actions) + "\n")


@contextmanager
def open_stage(**settings: str) -> Iterator[Stage]:
    """A stage for as long as the block lasts; ``settings`` are given to every process."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="oah-c-", dir="/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        postgres = stack.enter_context(false_postgres())
        database = postgres.create()
        redis = FalseClock()
        stack.callback(redis.remove)
        redis.start()
        names = ("near", "far")
        ways = {name: ends_in(directory / name, redis, postgres.url(database), stack) for name in names}
        for ends in ways.values():
            ends.heal()
        install_testing_agents(directory / "d")
        own: dict[str, dict[str, str]] = {name: {"OAH_WORKER__POOL": pool} for name, pool in POOLS.items()}
        own["worker-1"] |= ways[NEAR].env
        own |= {name: {"OAH_CONTROLLER__PORT": str(free_port())} for name in CONTROLLERS}
        fleet = Fleet(
            directory / "d",
            workers=len(POOLS),
            slots=4,
            controllers=len(CONTROLLERS),
            database_url=ways["far"].database_url,
            redis_url=ways["far"].redis.url,
            lease_seconds=LEASE,
            recovery="requeue_all",
            own=own,
            env={**SETTINGS, **settings},
            starter=warm(),
        )
        with fleet:
            yield Stage(directory, fleet, redis, postgres, database, ways)
