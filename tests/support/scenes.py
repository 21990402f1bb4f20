"""A fleet between two real stores that a test makes fail, and what is true of its runs afterwards.

``worker-1`` reaches Redis and PostgreSQL through proxies of its own (``near``), everybody else through another pair
(``far``): one worker can be cut off, or a whole store. ``Scene.act`` is one test on it: whatever the test broke is
healed at the end, everything that was submitted is terminal, and the judge has found nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.conninfo import conninfo_to_dict

from oah.bootstrap.kit import PROFILES_DIR
from oah.client import Client
from oah.testing import processes
from oah.testing.fleet import Fleet
from oah.testing.ledger import Line, judge, read_ledger
from oah.testing.profiles import install_testing_agents, ledger_runs
from tests.support.proxy import Commits, Proxy
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer
from tests.support.waiting import eventually
from tests.support.warm import warm

LEASE = 6.0
PERIOD = LEASE / 6
LIFE = LEASE - PERIOD
"""How long an agent outlives the last confirmation."""

TERMINAL = ("completed", "failed", "cancelled", "timed_out")


def boottime() -> float:
    """The clock of ledgers and deadlines, in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Ends:
    """One way to both stores."""

    redis: Proxy
    sql: Proxy
    database_url: str

    @property
    def env(self) -> dict[str, str]:
        return {"OAH_REDIS_URL": self.redis.url, "OAH_DATABASE_URL": self.database_url}

    def stall(self) -> None:
        self.redis.stall()
        self.sql.stall()

    def heal(self) -> None:
        self.redis.heal()
        self.sql.heal()


@dataclass
class Scene:
    """The fleet, its stores, and the ways between them."""

    fleet: Fleet
    server: RealServer
    postgres: PostgresServer
    database: str
    near: Ends
    far: Ends
    acts: int = 0

    @property
    def client(self) -> Client:
        return self.fleet.client

    def query(self, statement: str, *arguments: object) -> list[Any]:
        """Straight from the database, past every proxy."""
        with self.postgres.connect(self.database) as connection:
            return connection.execute(statement, arguments or None).fetchall()

    def post(self, path: str, body: object) -> httpx.Response:
        """One request, never repeated."""
        headers = {"authorization": f"Bearer {self.fleet.key}"}
        return httpx.post(f"{self.fleet.url}{path}", json=body, headers=headers, timeout=30)

    def commands(self) -> int:
        """How many Redis has answered to everybody; what scripts call inside does not count."""
        return self.near.redis.replies + self.far.redis.replies

    def epoch(self) -> str | None:
        """The id that Redis has, once it is open."""
        found = self.server.client().hgetall("oah:{0}:epoch")
        return found[b"id"].decode() if found.get(b"state") == b"open" else None

    def kept(self, worker: str) -> list[str]:
        """Runs whose outcomes this worker could not deliver yet."""
        path = self.fleet.data_dir / "workers" / worker / "history.db"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as history:
            return [str(row[0]) for row in history.execute("SELECT run_id FROM outcomes")]

    def worker_ids(self) -> dict[str, str]:
        """Process name → id of its living incarnation, as the registry has it; a predecessor may stand there, too."""
        self.fleet.wait_workers()
        living = [each for each in self.client.workers() if self.fleet.pids.get(each["name"]) == each["pid"]]
        return {worker["name"]: worker["id"] for worker in living}

    @contextmanager
    def only(self, name: str) -> Iterator[None]:
        """Only this worker takes runs."""
        others = [worker_id for other, worker_id in self.worker_ids().items() if other != name]
        for worker_id in others:
            self.client.cordon(worker_id)
        self._wait_cordoned(others, cordoned=True)
        try:
            yield
        finally:
            for worker_id in others:
                self.client.uncordon(worker_id)
            self._wait_cordoned(others, cordoned=False)

    def cordon(self, name: str) -> None:
        """Until it is: a command is a row that the worker has to read."""
        worker_id = self.worker_ids()[name]
        self.client.cordon(worker_id)
        self._wait_cordoned([worker_id], cordoned=True)

    def _wait_cordoned(self, ids: Sequence[str], *, cordoned: bool) -> None:
        def done() -> bool:
            seen = {worker["id"]: worker["cordoned"] for worker in self.client.workers()}
            return all(seen.get(worker_id) is cordoned for worker_id in ids)

        eventually(done, within=20, every=0.1, what=f"workers are cordoned: {cordoned}")

    def stop_postgres(self) -> None:
        """SIGQUIT to the postmaster: every backend ends at once, as in a crash."""
        pid = self.postgres.handle.get_pid()
        os.kill(pid, signal.SIGQUIT)
        eventually(lambda: not processes.alive(pid), within=15, what="PostgreSQL is gone")

    def start_postgres(self) -> None:
        self.postgres.handle.ensure_postgres_running()

    def heal(self) -> None:
        """Whatever the test has broken."""
        if self.server.process is None:
            self.server.start()
        self.server.signal(signal.SIGCONT)
        self.start_postgres()
        self.near.heal()
        self.far.heal()
        self.server.client().config_set("maxmemory", 0)

    @contextmanager
    def act(self) -> Iterator[Act]:
        """One test."""
        self.acts += 1
        act = Act(self, self.fleet.data_dir / f"ledger-{self.acts}")
        try:
            yield act
            act.judge()
        except BaseException as error:
            self.heal()
            error.add_note(act.explain())
            error.add_note(self.fleet.report())
            raise
        finally:
            self.heal()
            self._wake_up()

    def _wake_up(self) -> None:
        """For the next act: what a failed one left running is stopped, whoever died is started again, all take runs."""
        for name in [spec.name for spec in self.fleet.plan.specs()]:
            if name not in self.fleet.pids:
                self.fleet.restart(name)
        self.fleet.wait_ready(within=30)
        for kept in self.client.cordons():  # also of those that were started again just now
            self.client.uncordon(kept["worker_id"])


class Act:
    """The runs of one test."""

    def __init__(self, scene: Scene, ledger: Path) -> None:
        self.scene = scene
        self.ledger = ledger
        self.runs: list[str] = []
        self._writing: set[str] = set()

    @property
    def client(self) -> Client:
        return self.scene.client

    def session(self, agent: str = "ledger") -> str:
        found: str = self.client.create_session(agent, env={"OAH_LEDGER": str(self.ledger)})["id"]
        if agent == "ledger":
            self._writing.add(found)
        return found

    def sessions(self, count: int, agent: str = "ledger") -> list[str]:
        return [self.session(agent) for _ in range(count)]

    def submit(self, session: str, text: str, **more: Any) -> str:
        run: str = self.client.submit(session, text, **more)["id"]
        self.runs.append(run)
        return run

    def submit_all(self, sessions: Iterable[str], text: str, **more: Any) -> list[str]:
        """One run in each session, in one call."""
        answers = self.client.submit_many([{"session_id": each, "input": text, **more} for each in sessions])
        found = [answer["id"] for answer in answers]
        self.runs += found
        return found

    def rows(self, runs: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Runs of this act as SQL has them."""
        names = "id, session_id, status, attempt, position, recovery_attempts, worker_id, error_code, queued_reason"
        found = self.scene.query(
            f"SELECT {names} FROM runs WHERE id = ANY(%s)", list(self.runs if runs is None else runs)
        )
        return {row[0]: dict(zip(names.split(", "), row, strict=True)) for row in found}

    def wait_running(self, runs: Sequence[str], *, within: float = 30) -> None:
        """Until SQL says that all run, and those that write a ledger write."""

        def all_run() -> bool:
            return all(row["status"] == "running" for row in self.rows(runs).values())

        eventually(all_run, within=within, every=0.1, what="all runs run")
        writers = {run for run, row in self.rows(runs).items() if self._writes(row)}
        eventually(lambda: writers <= {line.run for line in self.lines()}, within=20, every=0.2, what="they write")

    def wait_terminal(self, runs: Sequence[str] | None = None, *, within: float = 60) -> None:
        """Until SQL says that all have ended."""

        def open_runs() -> list[str]:
            return [run for run, row in self.rows(runs).items() if row["status"] not in TERMINAL]

        eventually(lambda: not open_runs(), within=within, every=0.1, what="all runs end")

    def on(self, worker: str, runs: Sequence[str] | None = None) -> list[str]:
        """Which of these run on this worker now."""
        rows = self.rows(runs).items()
        return [r for r, row in rows if row["worker_id"] and row["worker_id"].rpartition(".")[0] == worker]

    def lines(self) -> list[Line]:
        return read_ledger(self.ledger)

    def untouched(self, runs: Sequence[str], status: str = "completed") -> None:
        """These ended well in their first attempt: nobody killed or doubled them."""
        wrong = {
            run: row
            for run, row in self.rows(runs).items()
            if (row["status"], row["attempt"], row["recovery_attempts"]) != (status, 1, 0)
        }
        assert not wrong, f"{len(wrong)} of {len(runs)} were interrupted: {list(wrong.values())[:5]}"

    def judge(self) -> None:
        """All is terminal, and nobody ever saw two agents of a session at once, or an order turned."""
        rows = list(self.rows().values())
        assert len(rows) == len(self.runs)
        assert not [row for row in rows if row["status"] not in TERMINAL], "runs are left"
        ledger = [row for row in rows if self._writes(row)]
        found = judge(self.lines(), ledger_runs(ledger))
        assert not found, f"{len(found)} violations: {found[:5]}"

    def _writes(self, row: dict[str, Any]) -> bool:
        return row["session_id"] in self._writing

    def explain(self) -> str:
        """What is not terminal, and where Redis has it."""
        said = []
        client = self.scene.server.client()
        open_rows = [row for row in self.rows().values() if row["status"] not in TERMINAL]
        for row in open_rows[:10]:
            place = client.hgetall(f"oah:{{0}}:session:{row['session_id']}")
            said.append(f"{row}\n    redis: { {k.decode(): v.decode() for k, v in place.items()} }")
        epoch = client.hgetall("oah:{0}:epoch")
        return f"--- {len(open_rows)} of {len(self.runs)} runs open; epoch {epoch}\n" + "\n".join(said)


COULD_START = """
SELECT count(*) FROM runs r JOIN sessions s ON s.id = r.session_id
WHERE r.status = 'queued' AND NOT r.deferred AND s.held = 0 AND NOT EXISTS (
  SELECT FROM runs a WHERE a.session_id = r.session_id AND a.status IN ('running', 'waiting_tool'))
"""
STARTS = "SELECT coalesce(sum(attempt), 0) FROM runs"


class Stuck:
    """Watches past every proxy what should not last. ``unlisted``: how long, in seconds, a session was leased in Redis
    that nobody works on (a claim whose answer was lost, a free that never came). ``idle``: how long nothing was started
    although something could be, on a fleet with slots to spare. A machine that stalls between two looks has given the
    processes no more time than it has given these looks: of a gap `LONGEST_GAP` counts."""

    LONGEST_GAP = 0.3

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stuck", daemon=True)
        self._since: dict[tuple[str, str], float] = {}
        self._now = 0.0
        self._starts: tuple[int, float] = (0, 0.0)
        self.unlisted = 0.0
        self.idle = 0.0
        self.looks = 0

    def __enter__(self) -> Stuck:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _watch(self) -> None:
        redis = self._scene.server.client()
        with self._scene.postgres.connect(self._scene.database) as database:
            looked = time.monotonic()
            while not self._stop.wait(0.1):
                before, looked = looked, time.monotonic()
                self._now += min(looked - before, self.LONGEST_GAP)
                self._look_at_leases(redis, database)
                self._look_at_starts(database)
                self.looks += 1

    def _look_at_leases(self, redis: Any, database: psycopg.Connection[Any]) -> None:
        leased = [member.decode() for member in redis.zrange("oah:{0}:leases", 0, -1)]
        pipeline = redis.pipeline(transaction=False)
        for session in leased:
            pipeline.hget(f"oah:{{0}}:session:{session}", "token")
        tokens = {(s, (t or b"").decode()) for s, t in zip(leased, pipeline.execute(), strict=True)}
        owned = {(s, t) for s, t in database.execute("SELECT session_id, claim_token FROM session_owners").fetchall()}
        now = self._now
        self._since = {each: self._since.get(each, now) for each in tokens - owned}
        self.unlisted = max([self.unlisted, *(now - since for since in self._since.values())])

    def _look_at_starts(self, database: psycopg.Connection[Any]) -> None:
        waiting = database.execute(COULD_START).fetchall()[0][0]
        starts = int(database.execute(STARTS).fetchall()[0][0])
        now = self._now
        if not waiting or starts != self._starts[0]:
            self._starts = (starts, now)
        self.idle = max(self.idle, now - self._starts[1])


def ends_in(place: Path, server: RealServer, database_url: str, stack: ExitStack) -> Ends:
    """Proxies of their own in this directory."""
    place.mkdir()
    parts = conninfo_to_dict(database_url)
    socket = Path(f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}")
    redis = Proxy(place / "r", server.socket)
    sql = Proxy(place / ".s.PGSQL.5432", socket, replies=Commits)
    for proxy in (redis, sql):
        stack.callback(proxy.close)
    return Ends(redis, sql, f"postgresql://{parts['user']}@/{parts['dbname']}?host={place}")


@contextmanager
def play(
    postgres: PostgresServer,
    server: RealServer,
    *,
    workers: int = 2,
    slots: int = 8,
    cold: bool = False,
    own: Mapping[str, Mapping[str, str]] | None = None,
    profiles: Mapping[str, str] | None = None,
) -> Iterator[Scene]:
    """A scene for as long as the block lasts. ``cold``: neither store is there when the processes
    start, until ``heal``. ``own``: what single processes are told besides. ``profiles``: further agents, as TOML."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="oah-s-", dir="/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        database = postgres.create()
        stack.callback(postgres.drop, database)
        stack.callback(server.remove)
        near, far = (ends_in(directory / name, server, postgres.url(database), stack) for name in ("near", "far"))
        if not cold:
            server.start()
            near.heal()
            far.heal()
        install_testing_agents(directory / "d")
        for name, text in (profiles or {}).items():
            (directory / "d" / PROFILES_DIR / f"{name}.toml").write_text(text)
        fleet = Fleet(
            directory / "d",
            workers=workers,
            slots=slots,
            database_url=far.database_url,
            redis_url=far.redis.url,
            lease_seconds=LEASE,
            own={**(own or {}), "worker-1": {**near.env, **(own or {}).get("worker-1", {})}},
            wait=not cold,
            starter=warm(),
        )
        with fleet:
            yield Scene(fleet, server, postgres, database, near, far)
        assert fleet.stubborn == [], f"had to be killed: {fleet.stubborn}\n{fleet.report()}"
