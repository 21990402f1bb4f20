"""The whole system on this machine, as child processes: API, controller, gateway, workers.

Used by ``oah up`` and the demo, and by the test kit. The broker is the private server of ``embedded://`` unless the
settings name a real Redis; children find each other through the data directory and that server alone, as processes on
different machines would through PostgreSQL and Redis.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oah.cli.children import Child, ChildSpec, LineSink, Starter, execute
from oah.cli.connection import ADMIN_KEY_FILE
from oah.cli.endpoint import answers
from oah.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from oah.settings import Settings

API = "api"
CONTROLLER = "controller"
GATEWAY = "gateway"
WORKER = "worker"
"""What the names of workers begin with."""
EMBEDDED_URL = "embedded://"

BACKOFF_FIRST_SECONDS = 0.5
BACKOFF_MOST_SECONDS = 30.0
KEY_SECONDS = 5.0
"""How long a ready API may take to write its admin key, if it is going to."""
DRAINED_SECONDS = 1.0
"""A child that lived this long and ended with 0 was drained: the next one starts at once."""
SETTLED_SECONDS = 30.0
"""A child that lived this long is not in a row of deaths."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``env`` is added to the environment of every child."""

    data_dir: Path
    workers: int = 2
    slots: int | None = None
    host: str = "127.0.0.1"
    port: int = 8787
    redis_url: str = EMBEDDED_URL
    controller: bool = True
    gateway_port: int | None = None
    """Of the NATS front of the mailboxes; None: there is none."""
    api_with_workers: bool = False
    """One API process with its worker inside, no further children: the smallest system."""
    clean: bool = False
    """Nothing of this environment's own OAH settings or ``oah.toml`` reaches the children."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where the API answers."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def environment(self) -> dict[str, str]:
        """The whole environment of every child."""
        inherited = {name: value for name, value in os.environ.items() if not (self.clean and name.startswith("OAH_"))}
        told = {
            "OAH_DATA_DIR": str(self.data_dir),
            "OAH_REDIS_URL": self.redis_url,
            "OAH_API_HOST": self.host,
            "OAH_API_PORT": str(self.port),
            "OAH_API_URL": self.url,
        }
        if self.slots is not None:
            told["OAH_WORKER__SLOTS"] = str(self.slots)
        if self.gateway_port is not None:
            told["OAH_GATEWAY_PORT"] = str(self.gateway_port)
            told["OAH_GATEWAY__URL"] = f"nats://{self.host}:{self.gateway_port}"
        if self.clean:
            told["OAH_CONFIG"] = os.devnull
        return {**inherited, **told, **self.env}

    def specs(self) -> Iterator[ChildSpec]:
        """The children, in the order of their start."""
        env = self.environment()
        yield ChildSpec(API, ["api"] if self.api_with_workers else ["api", "--api-only"], env)
        if self.api_with_workers:
            return
        if self.controller:
            yield ChildSpec(CONTROLLER, ["controller", "run"], env)
        if self.gateway_port is not None:
            yield ChildSpec(GATEWAY, ["gateway", "run"], env)
        for number in range(1, self.workers + 1):
            yield self.worker(worker_name(number))

    def worker(self, name: str) -> ChildSpec:
        """The worker of this name."""
        return ChildSpec(name, ["worker", "run", "--name", name], self.environment())


def worker_name(number: int) -> str:
    """Name of the n-th worker (from 1); it survives restarts, so that a restarted one cleans up after itself."""
    return f"{WORKER}-{number}"


def plan_from(settings: Settings, *, workers: int, slots: int | None, gateway: bool = True) -> Plan:
    """The plan for ``oah up``: the settings' database and directory, a private server unless a Redis is named.

    The ports of health and metrics are of no importance here: when another system on this machine has one, any other is
    taken."""
    probes = {
        "OAH_CONTROLLER__PORT": (settings.controller.host, settings.controller.port),
        "OAH_GATEWAY__PROBE_PORT": (settings.gateway.host, settings.gateway.probe_port),
    }
    return Plan(
        data_dir=settings.data_dir,
        workers=workers,
        slots=slots,
        host=settings.api_host,
        port=settings.api_port,
        gateway_port=settings.gateway_listens_at if gateway else None,
        redis_url=EMBEDDED_URL if settings.in_process else settings.broker,
        env={name: "0" for name, (host, port) in probes.items() if _is_taken(host, port)},
    )


def _is_taken(host: str, port: int) -> bool:
    try:
        require_port(host, port)
    except Conflict:
        return True
    return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Somebody else may take it before we do: the caller sees its child fail then."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def require_port(host: str, port: int, *, hint: str = "another oah up? else choose one with --port") -> None:
    """Raises Conflict when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Conflict(
                f"cannot listen on {host}:{port}: {error.strerror}",
                code="port_in_use",
                hint=hint,
            ) from error


@dataclass(slots=True)
class _Deaths:
    """Deaths of one child in a row, and when it may start again."""

    in_a_row: int = 0
    restart_at: float | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """A child that ended without being asked to."""

    name: str
    exit_code: int
    in_a_row: int
    restart_in: float
    last_lines: tuple[str, ...]


class Fleet:
    """Children of one plan. All methods are for one thread; output arrives on others through ``sink``."""

    def __init__(
        self,
        plan: Plan,
        *,
        sink: LineSink,
        clock: Callable[[], float] = time.monotonic,
        starter: Starter = execute,
    ) -> None:
        self.plan = plan
        self._clock = clock
        self._children = {spec.name: Child(spec, sink=sink, cwd=Path.cwd(), starter=starter) for spec in plan.specs()}
        self._deaths = {name: _Deaths() for name in self._children}
        self._meant_to_run: set[str] = set()
        self._leaving: set[str] = set()
        self._sink = sink
        self._answered_at: float | None = None

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all children, in the order of their start."""
        return tuple(self._children)

    @property
    def worker_names(self) -> tuple[str, ...]:
        """Names of the workers."""
        return tuple(name for name in self._children if name not in (API, CONTROLLER, GATEWAY))

    def worker_pids(self) -> dict[str, int]:
        """Those that live, the leaving ones included."""
        pids = {name: self._children[name].pid for name in self.worker_names if self._children[name].running}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def start(self) -> None:
        """Start every child."""
        self.plan.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in self._children:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        """Start a child (again) that does not run."""
        self._meant_to_run.add(name)
        self._deaths[name].restart_at = None
        self._children[name].start()

    def want_workers(self, names: Sequence[str]) -> None:
        """Let there be these workers and no others. Those that are too many are asked to end, and do so at their own
        pace; a name that is still leaving is free once its process has ended."""
        for name in [each for each in self._leaving if not self._children[each].running]:
            self._leaving.discard(name)
            self._children[name].wait(1)
            self._children.pop(name).close()
            del self._deaths[name]
        for name in self.worker_names:
            if name not in names and name in self._meant_to_run:
                self._meant_to_run.discard(name)
                self._leaving.add(name)
                self._children[name].signal(signal.SIGTERM)
        for name in names:
            if name not in self._children:
                self._children[name] = Child(self.plan.worker(name), sink=self._sink, cwd=Path.cwd())
                self._deaths[name] = _Deaths()
                self.start_one(name)

    def ready(self) -> bool:
        """Whether the API says that it is ready (its store and broker answer) and has left its admin key.

        A database that has keys already gets no further one: then the file is waited for a few seconds only."""
        if not self._answers():
            return False
        self._answered_at = self._answered_at if self._answered_at is not None else self._clock()
        return key_path(self.plan.data_dir).exists() or self._clock() - self._answered_at > KEY_SECONDS

    def _answers(self) -> bool:
        return answers(f"{self.plan.url}/readyz", timeout=2)

    def wait_ready(self, *, within: float, every: float = 0.05) -> None:
        """Block until the API is ready. Raises Unavailable when a needed child died or time is up."""
        deadline = self._clock() + within
        while not self.ready():
            dead = [name for name in sorted(self._meant_to_run) if self[name].exit_code is not None]
            if dead:
                self[dead[0]].wait(1)
                raise Unavailable(
                    f"{dead[0]} ended with {describe_exit(self[dead[0]].exit_code)} before the system was ready: "
                    + " / ".join(list(self[dead[0]].last_lines)[-5:])
                )
            if self._clock() > deadline:
                raise Unavailable(
                    f"{self.plan.url} not ready within {within:g} s", hint="see the lines of the children"
                )
            time.sleep(every)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """End a child by a signal and do not restart it; its pid. For tests and demonstrations."""
        child = self._children[name]
        pid = child.pid
        assert pid is not None, f"{name} was never started"
        self._meant_to_run.discard(name)
        child.signal(number)
        return pid

    def restart_dead(self) -> list[Death]:
        """One look of the supervisor: which children have died since the last, and restart those whose time has
        come (after 0.5 s, doubled at each further death in a row)."""
        now = self._clock()
        news = []
        for name in sorted(self._meant_to_run):
            child, deaths = self._children[name], self._deaths[name]
            if child.running:
                continue
            if deaths.restart_at is None:
                news.append(self._died(child, deaths, now))
            elif now >= deaths.restart_at:
                self.start_one(name)
        return news

    def _died(self, child: Child, deaths: _Deaths, now: float) -> Death:
        code = child.wait(1)
        if code == 0 and now - child.started_at >= DRAINED_SECONDS:
            deaths.in_a_row, pause = 1, 0.0
        else:
            deaths.in_a_row = 1 if now - child.started_at >= SETTLED_SECONDS else deaths.in_a_row + 1
            pause = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** (deaths.in_a_row - 1))
        deaths.restart_at = now + pause
        return Death(child.name, code if code is not None else 0, deaths.in_a_row, pause, tuple(child.last_lines))

    def terminate(self) -> None:
        """Ask every child to end. The first time gracefully; workers take a second as "now"."""
        self._meant_to_run.clear()
        for child in self._children.values():
            child.signal(signal.SIGTERM)

    def running(self) -> list[str]:
        """Names of children that live."""
        return [name for name, child in self._children.items() if child.running]

    def stop(self, *, grace: float, hurry: Callable[[], bool] = lambda: False, every: float = 0.05) -> list[str]:
        """End all: SIGTERM and up to ``grace`` seconds; then (or when ``hurry`` says so) SIGTERM again, and SIGKILL
        two seconds later. Then the private server, if nobody else uses it. Returns who had to be killed."""
        self.terminate()
        deadline = self._clock() + grace
        while self.running() and self._clock() < deadline and not hurry():
            time.sleep(every)
        if self.running():
            self.terminate()
            deadline = self._clock() + 2
            while self.running() and self._clock() < deadline:
                time.sleep(every)
        stubborn = self.running()
        for name in stubborn:
            self._children[name].signal(signal.SIGKILL)
        for child in self._children.values():
            child.wait(5)
            child.close()
        if self.plan.redis_url.startswith(EMBEDDED_URL):
            from oah.adapters.embedded.private import end_unused

            end_unused(self.plan.data_dir)
        return stubborn


def describe_exit(code: int | None) -> str:
    """An exit code for people: ``exit 1`` or ``SIGKILL``."""
    if code is None:
        return "no exit code"
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def key_path(data_dir: Path) -> Path:
    """Where the API leaves the admin key for the user of this machine."""
    return data_dir / ADMIN_KEY_FILE


def shell_hint(plan: Plan) -> str:
    """What to type in another terminal to speak to this system."""
    default = Path.cwd() / ".oah"
    place = "" if plan.data_dir == default else f" OAH_DATA_DIR={plan.data_dir}"
    return f"export OAH_API_URL={plan.url}{place}"
