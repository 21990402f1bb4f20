"""The measurements. Each is a function `(quick) -> dict` and needs nothing but this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median, quantiles
from typing import Any

from benchmarks.fairness import fairness
from benchmarks.mail import mail
from benchmarks.world import LANE, World, cpu_seconds, world
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.run import ReadyClass
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.dispatch import ClaimRequest, Free, Hear, Release, Target

Figures = dict[str, Any]
SOCKETS = "Unix sockets; Valkey without persistence"
DURABLE = {"postgresql": "fsync=on, synchronous_commit=on", "sqlite": "WAL, synchronous=FULL"}


def throughput(*, quick: bool) -> Figures:
    """No-op runs a second with one worker process: from the first start to the last settle, by the database's clock.

    The queue is full before the worker starts; a controller runs beside it.
    """
    rows = []
    for database in ("postgresql", "sqlite"):
        for slots in (1, 16, 64):
            runs = (2_000 if slots == 1 else 10_000) // (5 if quick else 1)
            rows.append(_drain(database, slots=slots, sessions=min(2_000, runs // 5), runs=runs))
    return {"what": "no-op runs/s, one worker process", "servers": SOCKETS, "rows": rows}


def _drain(database: str, *, slots: int, sessions: int, runs: int) -> Figures:
    with world(database) as w:
        w.start("controller", "run")
        epoch = w.epoch()
        ids = w.sessions(sessions)
        for turn in range(runs // sessions):
            for first in range(0, sessions, 200):
                w.submit([w.run(s, f"{turn}") for s in ids[first : first + 200]], epoch)
        if w.postgres:
            w.query("SELECT 1")
        before = _counters(w)
        worker = w.start("worker", "run", "--slots", str(slots), OAH_WORKER__PROFILES='["noop"]')
        began = time.monotonic()
        w.wait_settled(runs, within=300)
        wall = time.monotonic() - began
        seconds = _span(w)
        after = _counters(w)
        cpu = cpu_seconds([worker.pid])
        return {
            "database": database,
            "durability": DURABLE[database],
            "slots": slots,
            "runs": runs,
            "runs_per_second": round((runs - 1) / seconds, 1),
            "seconds": round(seconds, 3),
            "wall_seconds_with_start": round(wall, 3),
            "worker_cpu_us_per_run": round(cpu / runs * 1e6, 1),
            "redis_commands_per_run": round((after["commands"] - before["commands"]) / runs, 3),
            "redis_round_trips_per_run": round((after["reads"] - before["reads"]) / runs, 3),
            "redis_us_per_run": round((after["redis_us"] - before["redis_us"]) / runs, 1),
            "sql_transactions_per_run": round((after["commits"] - before["commits"]) / runs, 3) if w.postgres else None,
        }


def _span(w: World) -> float:
    if w.postgres:
        text = "SELECT extract(epoch FROM max(ended_at) - min(started_at)) FROM runs"
        return float(w.query(text)[0][0])
    first, last = w.query("SELECT min(started_at), max(ended_at) FROM runs")[0]
    return float(last - first) / 1e6


def _counters(w: World) -> dict[str, float]:
    info = w.client.info("all")
    stats = w.client.info("commandstats")
    commits = 0.0
    if w.postgres:
        time.sleep(1.1)  # backends report their counters at most once a second
        commits = float(w.query("SELECT sum(xact_commit) FROM pg_stat_database WHERE datname = 'oah'")[0][0])
    return {
        "commands": float(info["total_commands_processed"]),
        "reads": float(info.get("total_reads_processed", 0)),
        "redis_us": float(sum(each["usec"] for name, each in stats.items() if name.startswith("cmdstat_eval"))),
        "commits": commits,
    }


def submit(*, quick: bool) -> Figures:
    """Accepted runs a second: one transaction a batch, then one pipeline to the broker."""
    rows = []
    for database in ("postgresql", "sqlite"):
        for size in (1, 16, 64, 256):
            with world(database) as w:
                w.start("controller", "run")
                epoch = w.epoch()
                ids = w.sessions(500)
                batches = max((400 if size == 1 else 6_000 // size) // (4 if quick else 1), 10)
                began = time.monotonic()
                for batch in range(batches):
                    w.submit([w.run(ids[(batch * size + n) % len(ids)]) for n in range(size)], epoch)
                seconds = time.monotonic() - began
                rows.append(
                    {
                        "database": database,
                        "durability": DURABLE[database],
                        "batch": size,
                        "runs_per_second": round(batches * size / seconds, 1),
                    }
                )
    return {"what": "submits/s, one caller, committed and enqueued", "servers": SOCKETS, "rows": rows}


def latency(*, quick: bool) -> Figures:
    """Idle system: submit call → the run's start, by the database's clock from the row's insertion."""
    rows = []
    for database in ("postgresql", "sqlite"):
        with world(database) as w:
            w.start("controller", "run")
            epoch = w.epoch()
            w.start("worker", "run", "--slots", "4", OAH_WORKER__PROFILES='["noop"]')
            ids = w.sessions(50)
            calls: list[float] = []
            total = 100 if quick else 500
            w.submit([w.run(ids[0])], epoch)
            w.wait_settled(1, within=60)
            for n in range(total):
                began = time.perf_counter()
                w.submit([w.run(ids[n % len(ids)])], epoch)
                calls.append((time.perf_counter() - began) * 1e3)
                time.sleep(0.02)
            w.wait_settled(total + 1, within=60)
            unit = (
                "extract(epoch FROM started_at - queued_at) * 1000" if w.postgres else "(started_at - queued_at) / 1e3"
            )
            waits = sorted(float(row[0]) for row in w.query(f"SELECT {unit} FROM runs"))
            rows.append(
                {
                    "database": database,
                    "durability": DURABLE[database],
                    "samples": len(waits),
                    "submit_to_start_ms": _spread(waits),
                    "submit_call_ms": _spread(calls),
                }
            )
    return {"what": "idle latency, four slots, 20 ms between submits", "servers": SOCKETS, "rows": rows}


def _spread(values: list[float]) -> Figures:
    cuts = quantiles(values, n=100)
    return {"p50": round(median(values), 3), "p99": round(cuts[98], 3), "max": round(max(values), 3)}


def claim(*, quick: bool) -> Figures:
    """Server-side µs of one claim by the number of ready sessions, warm; Redis bytes per session and further run."""
    rows = []
    sizes = (200, 20_000) if quick else (200, 20_000, 200_000)
    for size in sizes:
        with world("sqlite") as w:
            epoch = EpochId(w.ids.nonce())
            assert w.broker.mint(epoch, seen=None) and w.broker.open(epoch)
            empty = _memory(w)
            sessions = [SessionId(w.ids.new("ses")) for _ in range(size)]
            _hear(w, epoch, sessions)
            ready = _memory(w)
            _hear(w, epoch, sessions)
            twice = _memory(w)
            # The first two of each kind warm caches and scripts.
            warm = [_server_us(w, epoch, 300, rotate=False) for _ in range(12)][2:]
            rounds = [_server_us(w, epoch, 300, rotate=True) for _ in range(12)][2:]
            rows.append(
                {
                    "ready_sessions": size,
                    "claims": 300 * len(rounds),
                    "server_us_warm": round(median(warm), 2),
                    "server_us_rotating": round(median(rounds), 2),
                    "bytes_per_ready_session": round((ready - empty) / size, 1),
                    "bytes_per_further_run": round((twice - ready) / size, 1),
                }
            )
    return {
        "what": "server time of a claim and of giving back, the mean of both scripts. warm: back to its old place, so "
        "the next claim takes it again; rotating: to the end, so every claim takes a session not touched for long",
        "servers": SOCKETS,
        "rows": rows,
        "ratio_warm": round(rows[-1]["server_us_warm"] / rows[0]["server_us_warm"], 3),
        "ratio_rotating": round(rows[-1]["server_us_rotating"] / rows[0]["server_us_rotating"], 3),
    }


def _server_us(w: World, epoch: EpochId, count: int, *, rotate: bool) -> float:
    """Mean µs inside the server of the scripts of so many claims and their frees."""
    w.client.config_resetstat()
    _claim_many(w, epoch, count, rotate=rotate)
    stats = w.client.info("commandstats")
    scripts = [each for name, each in stats.items() if name.startswith("cmdstat_evalsha")]
    return float(sum(s["usec"] for s in scripts) / sum(s["calls"] for s in scripts))


def _hear(w: World, epoch: EpochId, sessions: list[SessionId]) -> None:
    for first in range(0, len(sessions), 1_000):
        batch = sessions[first : first + 1_000]
        w.broker.enqueue(
            epoch,
            [Hear(s, RunId(w.ids.new("run")), LANE, DEFAULT_WORKSPACE, ReadyClass.INTERACTIVE) for s in batch],
        )


def _claim_many(w: World, epoch: EpochId, count: int, *, rotate: bool) -> None:
    worker, lease = WorkerId("bench.1"), timedelta(seconds=30)
    order = ((LANE, ReadyClass.INTERACTIVE),)
    for n in range(count):
        token = ClaimToken(w.ids.nonce())
        for claimed in w.broker.claim(epoch, ClaimRequest(worker, token, lease, n + 1, 1, order)).sessions:
            if rotate:
                w.broker.free(epoch, [Free(claimed.session_id, token, Target.READY, ReadyClass.INTERACTIVE)])
            else:
                w.broker.release(epoch, [Release(claimed.session_id, token, ReadyClass.INTERACTIVE)])


def _memory(w: World) -> int:
    return int(w.client.info("memory")["used_memory_dataset"])


def idle(*, quick: bool) -> Figures:
    """What a worker that has nothing to do costs: Redis commands a second and CPU, a controller and one without."""
    seconds = 15 if quick else 40
    with world("postgresql") as w:
        controller = w.start("controller", "run")
        w.epoch()
        base = _window(w, [controller.pid], seconds)
        worker = w.start("worker", "run", "--slots", "8")
        w.store.check()
        time.sleep(8)  # it has started and said so
        both = _window(w, [worker.pid], seconds)
    return {
        "what": f"idle for {seconds} s, default lease (30 s)",
        "servers": SOCKETS,
        "controller_redis_commands_per_second": base["commands"],
        "worker_redis_commands_per_second": round(both["commands"] - base["commands"], 3),
        "worker_cpu_percent": both["cpu"],
        "controller_cpu_percent": base["cpu"],
    }


def _window(w: World, pids: list[int], seconds: float) -> dict[str, float]:
    cpu, commands = cpu_seconds(pids), w.client.info("stats")["total_commands_processed"]
    time.sleep(seconds)
    after = w.client.info("stats")["total_commands_processed"]
    return {
        "commands": round((after - commands - 1) / seconds, 3),
        "cpu": round((cpu_seconds(pids) - cpu) / seconds * 100, 2),
    }


ALL: dict[str, Callable[..., Figures]] = {
    "throughput": throughput,
    "submit": submit,
    "latency": latency,
    "claim": claim,
    "idle": idle,
    "mail": mail,
    "fairness": fairness,
}
