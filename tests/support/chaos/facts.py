"""What is true afterwards: from SQL, the ledger, Redis and /proc directly, and from every display besides."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row

from oah.client import Client
from oah.testing import processes
from oah.testing.ledger import read_ledger
from oah.testing.verdict import Facts, Promise, disagreements
from tests.support.chaos.plan import CONTROLLERS, Plan
from tests.support.chaos.stage import Stage
from tests.support.chaos.users import Told
from tests.support.waiting import eventually

Figures = dict[str, dict[str, float]]
_WRONG_HERE = {"durability"}
"""Findings of the doctor that are true of servers under test."""
OPEN = "('queued', 'running', 'waiting_tool')"
TABLES = ("runs", "run_attempts", "run_events", "sessions", "session_owners")
_KEPT = ("epoch", "seq", "lanes", "rings", "ws:", "poison", "wake:")
"""Keys of a shard that may stand when nothing waits: they are counters, settings and hints."""


class Witness:
    """Asks the stores past every proxy."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def sql(self, statement: str, *arguments: object) -> list[dict[str, Any]]:
        """Rows of a query."""
        url = self.stage.postgres.url(self.stage.database)
        with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
            return connection.execute(statement, arguments or None).fetchall()  # type: ignore[arg-type]

    def open_runs(self) -> list[dict[str, Any]]:
        """What is not over."""
        return self.sql(f"SELECT * FROM runs WHERE status IN {OPEN} ORDER BY session_id, position")

    def wait_quiet(self, *, within: float) -> None:
        """Until every run is terminal and no session is owned. Raises AssertionError."""

        def quiet() -> bool:
            self.stage.supervise()
            return not self.open_runs() and not self.sql("SELECT * FROM session_owners")

        eventually(quiet, within=within, every=0.3, what="all runs are over, and nobody owns a session")

    # --- displays ---

    def oah(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the product, with the settings of the fleet."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("OAH_")}
        plan = self.stage.fleet.plan
        env |= {**plan.environment(), "OAH_API_KEY": self.stage.fleet.key}
        command = [sys.executable, "-c", "from oah.cli.main import main; main()", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    def leader_metrics(self) -> dict[str, float]:
        """Series of the controller that leads, labels in their name."""
        for name in CONTROLLERS:
            port = self.stage.fleet.plan.own[name]["OAH_CONTROLLER__PORT"]
            with contextlib.suppress(httpx.TransportError):
                found = _series(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text)
                if found.get("oah_leader"):
                    return found
        return {}

    def figures(self) -> Figures:
        """The same numbers as SQL, HTTP, the command line and the metrics of the leader have them."""
        status = {row["status"]: row["n"] for row in self.sql("SELECT status, count(*) AS n FROM runs GROUP BY status")}
        [more] = self.sql(_COUNTS)
        http = self.stage.fleet.client.queue()
        cli = json.loads(self.oah("queue", "stats", "--json").stdout)
        metrics = self.leader_metrics()

        def gauge(name: str) -> float:
            return sum(value for key, value in metrics.items() if key == name or key.startswith(f"{name}{{"))

        figures: Figures = {}
        for name, key in (("queued", "oah_queued_runs"), ("active", "oah_active_runs")):
            names = ("queued",) if name == "queued" else ("running", "waiting_tool")
            figures[f"{name} runs"] = {
                "sql": sum(status.get(each, 0) for each in names),
                "http": sum(http["runs"].get(each, 0) for each in names),
                "cli": sum(cli["runs"].get(each, 0) for each in names),
                "metrics": gauge(key),
            }
        figures["deferred runs"] = {"sql": more["deferred"], "http": http["dueRunCount"]} | {
            "metrics": gauge("oah_deferred_runs"),
        }
        for label, column, shown in _SHOWN:
            figures[label] = {"sql": more[column], "http": http[shown], "cli": cli[shown]}
        figures["ready sessions"]["metrics"] = gauge("oah_ready_sessions")
        recovery = self.stage.fleet.client.recovery()["counts"]
        states = "SELECT recovery_state AS state, count(*) AS n FROM runs WHERE recovery_state IS NOT NULL GROUP BY 1"
        for row in self.sql(states):
            figures[f"runs that recovery {row['state']}"] = {"sql": row["n"], "http": recovery.get(row["state"], 0)}
        letters = self.sql("SELECT count(*) AS n FROM dead_letters WHERE kind = 'run' AND state = 'dead'")[0]["n"]
        figures["dead letters"] = {"sql": letters, "metrics": gauge("oah_dead_letters_now")}
        figures["stale owners"] = {"sql": more["stale"], "http": http["staleOwnerCount"]}
        figures["stale owners"]["metrics"] = gauge("oah_running_runs_without_heartbeat")
        return figures

    def agreed_figures(self, *, within: float) -> Figures:
        """The figures once they agree (gauges are measured every few seconds), else the last ones that did not."""
        found: Figures = {}

        def agree() -> bool:
            found.update(self.figures())
            return not list(disagreements(found))

        with contextlib.suppress(AssertionError):
            eventually(agree, within=within, every=0.5)
        return found

    # --- residue ---

    def residue(self) -> list[str]:
        """What is left where nothing should be."""
        found = [f"process {pid} lives: {processes.command(pid)[:120]}" for pid in self.agents()]
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.keys_left(), within=60, every=0.5)
        found += [f"key left in Redis: {key} {self._content(key)}" for key in self.keys_left()]
        doctor = self.oah("doctor", "--direct", "--json")
        try:
            findings = json.loads(doctor.stdout)["findings"]
        except ValueError:
            return [*found, f"oah doctor says no document: {doctor.stdout[-300:]}{doctor.stderr[-300:]}"]
        wrong = [each for each in findings if each["level"] == "error" and each["check"] not in _WRONG_HERE]
        return found + [f"oah doctor: {each['check']} {each['message']}" for each in wrong]

    def _content(self, key: str) -> str:
        client = self.stage.redis.client()
        read = {"hash": "HGETALL", "zset": "ZRANGE", "set": "SMEMBERS", "list": "LRANGE", "string": "GET"}
        command = read.get(client.type(key).decode(), "TYPE")
        more = {"ZRANGE": (0, 9, "WITHSCORES"), "LRANGE": (0, 9)}.get(command, ())
        return str(client.execute_command(command, key, *more))[:300]

    def agents(self) -> list[int]:
        """Living processes that were started for a session of this stage."""
        mark = f"OAH_LEDGER={self.stage.ledger}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0") and processes.alive(int(entry.name)):
                        found.append(int(entry.name))
        return found

    def keys_left(self) -> list[str]:
        """Keys of the shard that should be gone when nothing waits, runs or is owned."""
        prefix = "oah:{0}:"
        keys = self.stage.redis.client().scan_iter(match="oah:?0?:*")
        names = sorted(key.decode() for key in keys)
        claims = {f"{prefix}claim:{worker['id']}" for worker in self.stage.fleet.client.workers()}
        return [key for key in names if not key.removeprefix(prefix).startswith(_KEPT) and key not in claims]

    # --- the story ---

    def facts(self, plan: Plan, told: Told, figures: Figures, residue: list[str]) -> Facts:
        """Everything for the judge."""
        wishes = {wish.number: wish for wish in plan.wishes}
        rows = {table: self.sql(f"SELECT * FROM {table}") for table in TABLES}
        promises = [
            Promise(
                run=run,
                session=told.sessions[wishes[number].session],
                may=wishes[number].may - {"cancelled"},
                ordered=wishes[number].ordered,
                grandchild="grandchild" in wishes[number].text,
            )
            for number, run in told.runs.items()
        ]
        return Facts(
            promises=promises,
            runs=rows["runs"],
            attempts=rows["run_attempts"],
            events=rows["run_events"],
            sessions=rows["sessions"],
            owners=rows["session_owners"],
            lines=read_ledger(self.stage.ledger),
            cancels=[(run, str(answer.get("result"))) for run, answer in told.cancels],
            residue=residue,
            figures=figures,
        )

    def story(self, session: str) -> str:
        """All that is known of a session, to read."""
        parts = [f"=== {session}"]
        for row in self.sql("SELECT * FROM sessions WHERE id = %s", session):
            parts.append(f"{ {k: row[k] for k in ('agent', 'pool', 'state', 'holds', 'held', 'queued_count')} }")
        parts += [f"owner {row}" for row in self.sql("SELECT * FROM session_owners WHERE session_id = %s", session)]
        for row in self.sql(_RUNS_OF, session):
            parts.append(f"{row}")
        for row in self.sql(_ATTEMPTS_OF, session):
            one = f"{row['run_id']}#{row['attempt']}"
            parts.append(f"  {one} {row['reason']} {row['worker_id']} {row['started_at']} → {row['outcome']}")
        for row in self.sql(_EVENTS_OF, session):
            one = f"{row['run_id']}#{row['attempt']}"
            parts.append(f"  {row['number']} {row['at']:%H:%M:%S.%f} {row['type']} {one} {row['data']}")
        place = self.stage.redis.client().hgetall(f"oah:{{0}}:session:{session}")
        parts.append(f"redis { {k.decode(): v.decode() for k, v in place.items()} }")
        return "\n".join(parts)


_RUNS_OF = """
SELECT id, position, status, attempt, queued_reason, worker_id, deferred, due_at, dispatched_epoch, error_code,
  stop_reason, recovery_attempts, failed_attempts, input FROM runs WHERE session_id = %s ORDER BY position
"""
_ATTEMPTS_OF = """
SELECT a.* FROM run_attempts a JOIN runs r ON r.id = a.run_id WHERE r.session_id = %s ORDER BY a.started_at
"""
_EVENTS_OF = "SELECT * FROM run_events WHERE session_id = %s AND type <> 'run.output' ORDER BY number"
_COUNTS = """
SELECT
  (SELECT count(*) FROM runs WHERE status = 'queued' AND deferred) AS deferred,
  (SELECT count(*) FROM runs r WHERE status = 'queued' AND NOT deferred AND EXISTS (
     SELECT FROM sessions s WHERE s.id = r.session_id AND s.held = 0)
     AND NOT EXISTS (SELECT FROM session_owners o WHERE o.session_id = r.session_id)) AS ready_runs,
  (SELECT count(DISTINCT session_id) FROM runs r WHERE status = 'queued' AND NOT deferred AND EXISTS (
     SELECT FROM sessions s WHERE s.id = r.session_id AND s.held = 0)
     AND NOT EXISTS (SELECT FROM session_owners o WHERE o.session_id = r.session_id)) AS ready_sessions,
  (SELECT count(DISTINCT session_id) FROM runs WHERE status IN ('running', 'waiting_tool')) AS active_sessions,
  (SELECT count(*) FROM sessions s WHERE held <> 0 AND EXISTS (
     SELECT FROM runs r WHERE r.session_id = s.id AND r.status = 'queued' AND NOT r.deferred)) AS held,
  (SELECT count(*) FROM session_owners WHERE seen_at < clock_timestamp() - interval '6 seconds') AS stale
"""
_SHOWN = (
    ("ready runs", "ready_runs", "readyQueueDepth"),
    ("ready sessions", "ready_sessions", "uniqueReadySessionCount"),
    ("active sessions", "active_sessions", "activeSessionCount"),
    ("held sessions", "held", "heldSessionCount"),
)


def _series(text: str) -> dict[str, float]:
    found = re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, flags=re.M)
    return {name: float(value) for name, value in found}


def still_life(witness: Witness, client: Client, tell: Callable[[str], None]) -> tuple[Figures, list[str]]:
    """A moment in which nothing moves and every kind of waiting is there, so that figures can be compared that are not
    all zero: held, delayed, without a worker, running. What displays say of it, and runs that do not say why they
    wait. Everything is cancelled afterwards."""
    env = {"OAH_LEDGER": str(witness.stage.ledger)}
    held, delayed, running = (client.create_session("ledger", env=env)["id"] for _ in range(3))
    nobody = [client.create_session("ledger", pool="nobody", env=env)["id"] for _ in range(2)]
    client.pause_session(held)
    waiting = [client.submit(session, "0.1")["id"] for session in (held, held, *nobody, nobody[0])]
    waiting += [client.submit(delayed, "0.1", delay=3600)["id"] for _ in range(2)]
    active = client.submit(running, "60")["id"]
    behind = client.submit(running, "0.1")["id"]
    eventually(lambda: client.run(active)["status"] == "running", within=90, every=0.1, what="one runs")
    figures = witness.agreed_figures(within=60)
    silent = [run for run in [*waiting, behind] if not client.run(run).get("wait_reason")]
    tell(f"still life: { {name: shown['sql'] for name, shown in figures.items()} }")
    for run in [*waiting, behind, active]:
        client.cancel(run)
    client.resume_session(held)
    eventually(lambda: client.run(active)["status"] == "cancelled", within=90, every=0.1, what="it is cancelled")
    return figures, silent
