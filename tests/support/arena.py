"""A fleet of real processes on PostgreSQL and Valkey, agents that prove when they lived, and the facts afterwards.

The facts are read from SQL and from the ledger directly, never asked of the processes that are being tried.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from oah.errors import OahError
from oah.testing import ledger_agent, processes, verdict
from oah.testing.fleet import Fleet
from oah.testing.ledger import LedgerRun, Line, Violation, judge, read_ledger
from oah.testing.profiles import install_testing_agents
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually
from tests.support.warm import warm

TERMINAL = ("completed", "failed", "cancelled", "timed_out")
LEDGER_AGENT = f"{os.path.realpath(sys.executable)} -I -S {Path(ledger_agent.__file__).resolve()}"
Row = dict[str, Any]


def ledger_line(seconds: float, *more: str) -> str:
    """The ledger agent as a shell's line."""
    return " ".join([LEDGER_AGENT, f"{seconds:g}", *more])


def first_long(seconds: float, *more: str, then: float = 0.2) -> str:
    """A shell's line: long at the first attempt, short at any further one."""
    return f'if [ "$OAH_ATTEMPT" = 1 ]; then {ledger_line(seconds, *more)}; else {ledger_line(then)}; fi'


class Arena:
    """One fleet with its stores and its ledger."""

    def __init__(self, fleet: Fleet, server: PostgresServer, database: str, redis: RealServer, ledger: Path) -> None:
        self.fleet = fleet
        self.redis = redis
        self.ledger = ledger
        self.server = server
        self.database = database
        self._sql = psycopg.connect(server.url(database), autocommit=True, row_factory=dict_row)

    def close(self) -> None:
        self._sql.close()

    # --- work ---

    def session(self, agent: str = "shell", **more: Any) -> str:
        """A new session whose agents write the ledger."""
        env = {"OAH_LEDGER": str(self.ledger), **more.pop("env", {})}
        return str(self.fleet.client.create_session(agent, env=env, **more)["id"])

    def submit(self, session: str, text: str, **more: Any) -> str:
        """A new run."""
        return str(self.fleet.client.submit(session, text, **more)["id"])

    def submit_all(self, items: Sequence[tuple[str, str]]) -> list[str]:
        """Many, (session, input) each, in order."""
        ids: list[str] = []
        for begin in range(0, len(items), 1_000):
            part: list[Any] = [{"session_id": s, "input": text} for s, text in items[begin : begin + 1_000]]
            ids += [str(row["id"]) for row in self.fleet.client.submit_many(part)]
        return ids

    def only(self, *names: str) -> None:
        """Let these workers take runs, and no others that run now."""
        client = self.fleet.client
        workers = [each for each in client.workers() if self.fleet.pids.get(each["name"]) == each["pid"]]
        wrong = [each for each in workers if each["cordoned"] == (each["name"] in names)]
        for each in wrong:
            (client.uncordon if each["cordoned"] else client.cordon)(each["id"])
        for each in wrong:
            eventually(
                lambda each=each: client.worker(each["id"])["cordoned"] != each["cordoned"], within=15, what="told"
            )

    # --- facts ---

    def sql(self, statement: str, *arguments: Any) -> list[Row]:
        """Rows of any query, positional arguments."""
        return self._sql.execute(statement, arguments).fetchall()  # type: ignore[arg-type]

    def run(self, run_id: str) -> Row:
        return self.sql("SELECT * FROM runs WHERE id = %s", run_id)[0]

    def attempts(self, run_id: str) -> list[Row]:
        """Why each was started, by whom, and how it ended."""
        return self.sql("SELECT * FROM run_attempts WHERE run_id = %s ORDER BY attempt", run_id)

    def events(self, run_id: str, kind: str | None = None) -> list[Row]:
        rows = self.sql("SELECT * FROM run_events WHERE run_id = %s ORDER BY number", run_id)
        return [row for row in rows if kind is None or row["type"] == kind]

    def owners(self) -> list[Row]:
        return self.sql("SELECT *, extract(epoch FROM clock_timestamp() - seen_at)::float8 AS age FROM session_owners")

    def lines(self, run_id: str, attempt: int | None = None) -> list[Line]:
        """What its agents wrote."""
        return [
            line
            for line in read_ledger(self.ledger)
            if line.run == run_id and (attempt is None or line.attempt == attempt)
        ]

    def worker_of(self, run_id: str) -> str | None:
        """The name of the process that runs it now."""
        worker_id = self.run(run_id)["worker_id"]
        return None if worker_id is None else self.fleet.worker_of(str(worker_id))

    def place(self, session: str) -> Row:
        """What Redis holds of a session, {} when it is idle there."""
        found = self.redis.client().hgetall(f"oah:{{0}}:session:{session}")
        return {key.decode(): value.decode() for key, value in found.items()}

    # --- waiting ---

    def wait(self, check: Callable[[], Any], *runs: str, within: float, what: str) -> Any:
        """`eventually`, with the stories of these runs in the failure."""
        try:
            return eventually(check, within=within, every=0.05, what=what)
        except AssertionError as error:
            error.add_note(self.story(*runs))
            raise

    def wait_lives(self, run_id: str, attempt: int = 1, *, within: float = 30) -> str:
        """Until an agent of it has written; the name of its worker."""
        self.wait(lambda: self.lines(run_id, attempt), run_id, within=within, what=f"attempt {attempt} writes")
        return str(self.worker_of(run_id))

    def wait_done(self, *runs: str, within: float = 60) -> list[Row]:
        """Until all are terminal; their rows in this order."""
        rows: dict[str, Row] = {}

        def done() -> bool:
            found = self.sql("SELECT * FROM runs WHERE id = ANY(%s)", list(runs))
            rows.update((row["id"], row) for row in found)
            return all(row["status"] in TERMINAL for row in found)

        try:
            eventually(done, within=within, every=0.1, what=f"{len(runs)} runs are terminal")
        except AssertionError as error:
            left = [run for run in runs if rows[run]["status"] not in TERMINAL]
            error.add_note(f"{len(left)} of {len(runs)} are not terminal\n{self.story(*left[:5])}")
            raise
        return [rows[run] for run in runs]

    # --- judgement ---

    def violations(self, *sessions: str) -> list[Violation]:
        """What the judge says of these sessions (of all when none is named)."""
        runs = self.sql("SELECT id, session_id, position, attempt, status, result, order_mode FROM runs")
        rows = [
            LedgerRun(
                run=row["id"],
                session=row["session_id"],
                position=row["position"],
                attempt=row["attempt"],
                completed=row["status"] == "completed" and "lines" in (row["result"] or ""),
                ordered=row["order_mode"] == "strict" and row["position"] > 0,
            )
            for row in runs
            if not sessions or row["session_id"] in sessions
        ]
        lines = [line for line in read_ledger(self.ledger) if not sessions or line.session in sessions]
        return judge(lines, rows)

    def unexplained(self) -> list[str]:
        """Second starts without a recorded reason, and recorded reasons that contradict each other. Nobody requeues
        anything here, so that is no reason either."""
        attempts = self.sql("SELECT * FROM run_attempts ORDER BY run_id, attempt")
        events = self.sql("SELECT run_id, attempt, type FROM run_events WHERE run_id IS NOT NULL")
        wrong = [*verdict.unexplained(attempts, events), *(row for row in attempts if row["reason"] == "requeued")]
        return [f"{row['run_id']}#{row['attempt']}: {row['reason']}" for row in wrong]

    def check(self, *sessions: str) -> None:
        """No overlap, order kept, every second start explained, nobody left in charge of what is over."""
        found = self.violations(*sessions)
        assert not found, "\n".join([*map(str, found[:10]), self.story(*{v.detail.split("#")[0][4:] for v in found})])
        unexplained = self.unexplained()
        assert not unexplained, unexplained[:10]

    def story(self, *runs: str) -> str:
        """All that is known of these runs, and the last lines of every process."""
        parts = []
        for run_id in runs:
            with contextlib.suppress(IndexError):
                run = self.run(run_id)
                names = ("status", "attempt", "recovery_attempts", "worker_id", "queued_reason", "dispatched_epoch")
                parts.append(f"{run_id} of {run['session_id']}: " + ", ".join(f"{n}={run[n]}" for n in names))
                parts += [
                    f"  #{a['attempt']} {a['reason']} {a['worker_id']} → {a['outcome']}" for a in self.attempts(run_id)
                ]
                parts += [
                    f"  {e['at']:%H:%M:%S.%f} {e['type']} #{e['attempt']} {e['data']}" for e in self.events(run_id)
                ]
                parts += [f"  owner {o}" for o in self.owners() if o["session_id"] == run["session_id"]]
                parts.append(f"  redis {self.place(run['session_id'])}")
        return "\n".join([*parts, self.fleet.report(last=40)])


Own = dict[str, dict[str, str]]


@contextlib.contextmanager
def open_arena(
    server: PostgresServer, *, own: Callable[[Path, str, RealServer], Own] | None = None, **options: Any
) -> Iterator[Arena]:
    """Stores of its own and a fleet on them. ``own``: settings of single processes, made of a short directory, the
    database's address and the running Redis."""
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="oah-a-", dir="/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        database = server.create()
        stack.callback(server.drop, database)
        redis = RealServer("valkey", valkey_binary())
        stack.callback(redis.remove)
        redis.start()
        install_testing_agents(directory / "d")
        url = server.url(database)
        if own is not None:
            options["own"] = own(directory, url, redis)
        fleet = stack.enter_context(
            Fleet(directory / "d", database_url=url, redis_url=redis.url, starter=warm(), **options)
        )
        arena = Arena(fleet, server, database, redis, directory / "ledger")
        stack.callback(arena.close)
        yield arena


# --- harm ----------------------------------------------------------------------------------------------------------


class Killer:
    """Harms processes of a fleet at random and undoes it with the next step. One seed, one story of choices.

    SIGKILL of workers, PTY hosts and controllers; with ``stops`` also SIGSTOP of them, until the next step.
    """

    def __init__(self, fleet: Fleet, seed: int, *, stops: bool = False) -> None:
        self.fleet = fleet
        self.chance = random.Random(seed)
        self.harmed: list[str] = []
        self._signals = (signal.SIGKILL, signal.SIGSTOP) if stops else (signal.SIGKILL,)
        self._dead: list[str] = []
        self._stopped: list[int] = []

    def step(self) -> str:
        """One harm; what was harmed before is well again first."""
        self.revive()
        kind = self.chance.choices(("worker", "host", "controller"), weights=(4, 4, 1))[0]
        names = [
            each for each in self.fleet.pids if each.startswith("controller" if kind == "controller" else "worker")
        ]
        name, number = self.chance.choice(sorted(names)), self.chance.choice(self._signals)
        with contextlib.suppress(OahError, ProcessLookupError):  # between two PTY hosts there is none
            self._harm(name, number, self.fleet.host_pid(name) if kind == "host" else self.fleet.pids[name])
            self.harmed.append(f"{number.name} {kind if kind == 'host' else ''} {name}")
        return self.harmed[-1]

    def revive(self) -> None:
        """Start what is dead, continue what was stopped."""
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()
        while self._dead:
            self.fleet.restart(self._dead.pop())

    def _harm(self, name: str, number: signal.Signals, pid: int) -> None:
        if pid == self.fleet.pids[name] and number is signal.SIGKILL:
            self.fleet.kill(name)
            self._dead.append(name)
            return
        os.kill(pid, number)
        if number is signal.SIGSTOP:
            self._stopped.append(pid)


def writers(ledger: Path) -> list[int]:
    """Living processes that are ledger agents of this ledger."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environ = (entry / "environ").read_bytes().split(b"\0")
                mine = f"OAH_LEDGER={ledger}".encode() in environ
                if mine and b"ledger_agent" in (entry / "cmdline").read_bytes() and processes.alive(int(entry.name)):
                    found.append(int(entry.name))
    return found
