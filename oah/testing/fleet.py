"""A fleet of real processes for tests: API, controller, workers, and signals on purpose.

    with Fleet(data_dir, workers=2) as fleet:
        session = fleet.client.create_session("shell")["id"]
        run = fleet.client.submit(session, "sleep 5; echo done")["id"]
        fleet.kill(0)                       # SIGKILL of the first worker
        fleet.restart(0)
        assert fleet.client.wait(run, timeout=60)["status"] == "completed"

Nothing is restarted by itself and nothing of the caller's OAH settings leaks in. At the end every child is asked to
stop, and killed when it does not; ``stubborn`` names those.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from oah.cli.children import ChildSpec, Starter, execute
from oah.cli.connection import read_admin_key
from oah.cli.fleet import API, CONTROLLER, EMBEDDED_URL, GATEWAY, Plan, describe_exit, free_port, worker_name
from oah.cli.fleet import Fleet as Children
from oah.client import Client
from oah.errors import Unavailable
from oah.testing import processes

__all__ = ["API", "CONTROLLER", "GATEWAY", "Fleet"]

_HOST_MODULE = "oah.adapters.pty.hostside.main"


@dataclass(frozen=True, slots=True)
class _Plan(Plan):
    """A plan with further controllers, in which single children are told something else, by name."""

    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    controllers: int = 1

    def specs(self) -> Iterator[ChildSpec]:
        for spec in self._all():
            yield replace(spec, env={**spec.env, **self.own.get(spec.name, {})})

    def _all(self) -> Iterator[ChildSpec]:
        for spec in Plan.specs(self):
            yield spec
            if spec.name == CONTROLLER:
                for number in range(2, self.controllers + 1):
                    yield replace(spec, name=f"{CONTROLLER}-{number}")


class Fleet:
    """Real processes under a test's control. Not thread safe, but for reading output.

    ``data_dir`` must be short: Unix sockets live below it. ``lease_seconds`` is at least 6. ``database_url`` None:
    SQLite in the data directory. ``env``: further settings for all children, ``own``: for single ones, by name.
    ``recovery`` None: what the product takes by itself. ``controllers``: how many compete for the leader lease.
    ``gateway``: with a NATS front, which is not waited for.
    ``starter``: how a process comes to be, a fresh interpreter or a fork of a warm one (`oah.testing.nursery`).
    ``wait`` False: entering does not wait until the system is ready, which a test without its stores cannot be. A
    process is named by its name (``api``, ``controller``, ``controller-2``, ``worker-1``) or, a worker, by its index
    from 0.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        workers: int = 2,
        slots: int = 4,
        controller: bool = True,
        database_url: str | None = None,
        redis_url: str = EMBEDDED_URL,
        lease_seconds: float = 6,
        recovery: str | None = "requeue_running",
        api_with_workers: bool = False,
        controllers: int = 1,
        gateway: bool = False,
        env: Mapping[str, str] | None = None,
        own: Mapping[str, Mapping[str, str]] | None = None,
        wait: bool = True,
        ready_within: float = 60,
        starter: Starter = execute,
    ) -> None:
        self.data_dir = data_dir
        self.stubborn: list[str] = []
        self._wait = wait
        self._ready_within = ready_within
        self._lines: defaultdict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self.plan = _Plan(
            data_dir=data_dir,
            workers=workers,
            slots=slots,
            port=free_port(),
            redis_url=redis_url,
            controller=controller,
            api_with_workers=api_with_workers,
            gateway_port=free_port() if gateway else None,
            clean=True,
            env={
                "OAH_DATABASE_URL": database_url or f"sqlite:///{data_dir / 'oah.db'}",
                "OAH_LEASE_SECONDS": f"{lease_seconds:g}",
                **({} if recovery is None else {"OAH_STALE_RUN_RECOVERY_STRATEGY": recovery}),
                "OAH_WORKER__DRAIN_GRACE_SECONDS": "5",
                "OAH_WORKER__PORT": "0",
                "OAH_CONTROLLER__PORT": "0",
                "OAH_GATEWAY__PROBE_PORT": "0",
                **(env or {}),
            },
            own=own or {},
            controllers=controllers,
        )
        self._children = Children(self.plan, sink=self._take, starter=starter)

    def __enter__(self) -> Fleet:
        try:
            self._children.start()
            if self._wait:
                self._children.wait_ready(within=self._ready_within)
                self.wait_workers()
        except BaseException as error:
            self.close()
            error.add_note(self.report())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            error.add_note(self.report())

    def close(self) -> None:
        """Stop every process; repeatable."""
        if self._client is not None:
            self._client.close()
            self._client = None
        for name in self._children.names:
            self._children[name].signal(signal.SIGCONT)
        self.stubborn = self._children.stop(grace=10)

    @property
    def url(self) -> str:
        """Where the API answers."""
        return self.plan.url

    @property
    def nats_url(self) -> str:
        """Where the gateway answers, if there is one."""
        return f"nats://127.0.0.1:{self.plan.gateway_port}"

    @property
    def key(self) -> str:
        """The admin key that the API wrote. Raises Unavailable before it has."""
        key = read_admin_key(self.data_dir)
        if key is None:
            raise Unavailable(f"no admin key below {self.data_dir} yet")
        return key

    @property
    def client(self) -> Client:
        """A client with the admin key, closed with the fleet."""
        if self._client is None:
            self._client = Client(self.url, self.key)
        return self._client

    @property
    def children(self) -> Children:
        """Their supervisor, for what this kit has no word for."""
        return self._children

    @property
    def pids(self) -> dict[str, int]:
        """Name → process id of what runs now."""
        return {n: pid for n in self._children.names if (pid := self._children[n].pid) and self._children[n].running}

    def host_pid(self, worker: int | str) -> int:
        """The PTY host of a running worker. Raises Unavailable while there is none, or while one replaces another."""
        pid = self._children[self._name(worker)].pid
        hosts = [child for child in processes.children(pid or 0) if _HOST_MODULE in processes.command(child)]
        if len(hosts) != 1:
            raise Unavailable(f"{self._name(worker)} (pid {pid}) has {len(hosts)} PTY hosts")
        return hosts[0]

    def wait_workers(self, *, within: float = 30) -> None:
        """Until every running worker reports itself (its predecessor does not count). Raises Unavailable."""
        deadline = time.monotonic() + within
        running = {(name, pid) for name, pid in self.pids.items() if not name.startswith((API, CONTROLLER, GATEWAY))}
        while not running <= {(worker["name"], worker["pid"]) for worker in self.client.workers()}:
            if time.monotonic() > deadline:
                raise Unavailable(f"not all workers report within {within:g} s: {sorted(running)}")
            time.sleep(0.05)

    def worker_of(self, worker_id: str) -> str:
        """The process name of a worker id in a run's document."""
        return worker_id.rpartition(".")[0] or worker_id

    def kill(self, process: int | str, number: signal.Signals = signal.SIGKILL, *, reap: float = 10) -> int:
        """Send a signal that ends the process and wait until it is gone; its pid."""
        name = self._name(process)
        pid = self._children.kill(name, number)
        if self._children[name].wait(reap) is None:
            raise Unavailable(f"{name} still lives {reap:g} s after {number.name}")
        return pid

    def signal(self, process: int | str, number: signal.Signals) -> None:
        """Send any signal (SIGSTOP, SIGCONT, SIGTERM) without waiting."""
        self._children[self._name(process)].signal(number)

    def restart(self, process: int | str) -> int:
        """Start a process that has ended; its new pid."""
        name = self._name(process)
        self._children.start_one(name)
        pid = self._children[name].pid
        assert pid is not None
        return pid

    @contextmanager
    def supervised(self) -> Iterator[list[int]]:
        """Workers that end are started again at once, as a supervisor does; the exit codes of those that ended."""
        over = threading.Event()
        codes: list[int] = []

        def watch() -> None:
            while not over.wait(0.05):
                for name in self._children.worker_names:
                    code = self._children[name].exit_code
                    if code is not None:
                        codes.append(code)
                        self.restart(name)

        thread = threading.Thread(target=watch, name="supervisor", daemon=True)
        thread.start()
        try:
            yield codes
        finally:
            over.set()
            thread.join()

    def wait_exit(self, process: int | str, *, within: float = 15) -> int:
        """The exit code of a process that ends by itself. Raises Unavailable."""
        name = self._name(process)
        code = self._children[name].wait(within)
        if code is None:
            raise Unavailable(f"{name} still lives after {within:g} s")
        return code

    def wait_ready(self, *, within: float = 30) -> None:
        """Until the API is ready (again)."""
        self._children.wait_ready(within=within)

    def lines(self, process: int | str) -> list[str]:
        """What a process has printed over all its starts."""
        with self._lock:
            return list(self._lines[self._name(process)])

    def report(self, *, last: int = 15) -> str:
        """State and last lines of every process, for the message of a failed test."""
        parts = []
        for name in self._children.names:
            child = self._children[name]
            state = "running" if child.running else describe_exit(child.exit_code)
            parts.append("\n".join([f"--- {name} (pid {child.pid}, {state})", *self.lines(name)[-last:]]))
        return "\n".join(parts)

    def _name(self, process: int | str) -> str:
        return worker_name(process + 1) if isinstance(process, int) else process

    def _take(self, name: str, line: str) -> None:
        with self._lock:
            self._lines[name].append(line)
