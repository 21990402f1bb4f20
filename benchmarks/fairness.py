"""How fairly slots are shared: real scripts on a real server, time that is simulated.

    python -m benchmarks.fairness [--sessions 100000]

Workers with slots claim as workers do (`core/policy/claim_order`, a claim for whatever slots are idle), each run takes
its time of a clock that only this program turns, and what ends is freed. So an hour of load takes seconds, and what is
measured is what the broker and the policy decide, nothing else.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any

from oah.adapters.embedded.open import open_server
from oah.adapters.redis.connect import open_broker
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.policy.claim_order import Rules, View, order
from oah.ports.broker import Broker, ClaimRequest, Free, Hear, Target, WorkspaceLimit

LANE = Lane("default", "shell")
LEASE = timedelta(hours=10)
"""Nobody is lost here, and the server's clock stands still for us."""


@dataclass(frozen=True, slots=True)
class Start:
    """A run that began. Seconds of the simulated clock."""

    workspace: str
    ready_class: ReadyClass
    submitted: float
    at: float

    @property
    def waited(self) -> float:
        """From its submit."""
        return self.at - self.submitted


@dataclass(slots=True)
class _Worker:
    name: WorkerId
    idle: int
    claims: int = 0


@dataclass
class Pool:
    """Workers, sessions with one run each, and a clock."""

    broker: Broker
    epoch: EpochId
    workers: int = 2
    slots: int = 4
    rules: Rules = field(default_factory=Rules)
    lane: Lane = LANE
    seconds: float = 1.0
    """What a run takes."""
    seed: int = 1

    def __post_init__(self) -> None:
        self.now = 0.0
        self.starts: list[Start] = []
        self.running: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        """The most that ran at once, by workspace, and of all (``""``)."""
        self.claims = 0
        self.claim_seconds = 0.0
        self._numbers = itertools.count(1)
        self._chance = random.Random(self.seed)
        self._submitted: dict[SessionId, tuple[str, ReadyClass, float]] = {}
        self._ends: list[tuple[float, int, _Worker, SessionId, ClaimToken]] = []
        self._workers = [_Worker(WorkerId(f"w{n}.1"), self.slots) for n in range(self.workers)]

    def submit(
        self, workspace: str, runs: int, ready_class: ReadyClass = ReadyClass.INTERACTIVE, *, priority: int = 0
    ) -> None:
        """So many sessions of a workspace get a run each, now."""
        hears = []
        for _ in range(runs):
            session = SessionId(f"{workspace}-{next(self._numbers)}")
            self._submitted[session] = (workspace, ready_class, self.now)
            run, ws = RunId(f"run-{session}"), WorkspaceId(workspace)
            hears.append(Hear(session, run, self.lane, ws, ready_class, priority=priority))
        for begin in range(0, len(hears), 5_000):
            self.broker.enqueue(self.epoch, hears[begin : begin + 5_000])

    def run(self, until: float) -> list[Start]:
        """Let time pass; what began meanwhile. A worker claims whenever a slot of its is idle."""
        first = len(self.starts)
        for worker in self._workers:
            self._claim(worker)
        while self._ends and self._ends[0][0] <= until:
            self.now, _, worker, session, token = heapq.heappop(self._ends)
            self.broker.free(self.epoch, [Free(session, token, Target.IDLE)])
            self.running.subtract((session.rpartition("-")[0], ""))
            worker.idle += 1
            for each in self._workers:
                if each.idle:
                    self._claim(each)
        self.now = until
        return self.starts[first:]

    def _claim(self, worker: _Worker) -> None:
        worker.claims += 1
        self.claims += 1
        token = ClaimToken(f"{next(self._numbers):032x}")
        view = View((self.lane,), worker.idle)
        chosen = order(view, self.rules, counter=worker.claims)
        request = ClaimRequest(worker.name, token, LEASE, worker.claims, worker.idle, chosen)
        begun = time.perf_counter()
        reply = self.broker.claim(self.epoch, request)
        self.claim_seconds += time.perf_counter() - begun
        for claimed in reply.sessions:
            workspace, ready_class, submitted = self._submitted.pop(claimed.session_id)
            self.starts.append(Start(workspace, ready_class, submitted, self.now))
            self.running.update((workspace, ""))
            self.peak |= self.running
            takes = self.seconds * self._chance.uniform(0.95, 1.05)
            number = next(self._numbers)
            heapq.heappush(self._ends, (self.now + takes, number, worker, claimed.session_id, claimed.token))
        worker.idle -= len(reply.sessions)


def p95(values: Iterable[float]) -> float:
    """Of at least two."""
    return quantiles(list(values), n=20, method="inclusive")[-1]


def flood(pool: Pool, *, big: int, small: int) -> dict[str, Any]:
    """One workspace has `big` runs queued; another comes with `small`. How long do those wait?"""
    pool.submit("big", big)
    pool.run(until=5.0)
    pool.submit("small", small)
    begun = [start for start in pool.run(until=5.0 + small) if start.workspace == "small"]
    assert len(begun) == small, "all of them began"
    waits = sorted(start.waited for start in begun)
    return {"big": big, "small": small, "p50": round(waits[small // 2], 2), "p95": round(p95(waits), 2)}


def weights(pool: Pool, shares: dict[str, int], *, seconds: float) -> dict[str, float]:
    """Everybody has always more than fits: what each got, as parts of the smallest weight."""
    pool.broker.limits(pool.epoch, [WorkspaceLimit(WorkspaceId(name), weight) for name, weight in shares.items()])
    for name in shares:
        pool.submit(name, int(pool.workers * pool.slots * seconds * 2))
    got = Counter(start.workspace for start in pool.run(until=seconds))
    least = min(shares, key=lambda name: shares[name])
    return {name: round(got[name] / got[least] * shares[least], 3) for name in shares}


def classes(pool: Pool, *, seconds: float) -> dict[str, Any]:
    """Every class has always more than fits: how often each began, and the longest gap between two of its starts."""
    kinds = (ReadyClass.INTERACTIVE, ReadyClass.SUBAGENT, ReadyClass.BACKGROUND)
    for kind in kinds:
        pool.submit("ws", int(pool.workers * pool.slots * seconds * 2), kind)
    started = pool.run(until=seconds)
    found: dict[str, Any] = {}
    for kind in kinds:
        moments = [0.0, *(start.at for start in started if start.ready_class is kind), seconds]
        gap = max(later - earlier for earlier, later in itertools.pairwise(moments))
        found[str(kind)] = {"starts": len(moments) - 2, "longest_gap": round(gap, 2)}
    return found


def measure(broker: Broker, *, sessions: int) -> dict[str, Any]:
    """All three, on an empty broker, each in a lane of its own."""
    epoch = EpochId("fairness")
    assert broker.mint(epoch, seen=broker.view().id) and broker.open(epoch)
    begun = time.perf_counter()
    pools = {name: Pool(broker, epoch, lane=Lane("default", name)) for name in ("flood", "weights", "classes")}
    flooded = flood(pools["flood"], big=sessions, small=10)
    claim = pools["flood"].claim_seconds / pools["flood"].claims
    return {
        "what": "seconds that runs wait; 8 slots, runs of 1 s",
        "flood": {**flooded, "claim_ms": round(claim * 1000, 3)},
        "weights": weights(pools["weights"], {"one": 1, "three": 3}, seconds=120),
        "classes": classes(pools["classes"], seconds=120),
        "took_seconds": round(time.perf_counter() - begun, 1),
    }


def fairness(*, quick: bool) -> dict[str, Any]:
    """On a server of its own."""
    return _measured(5_000 if quick else 100_000)


def _measured(sessions: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        server = open_server("embedded://", data_dir=Path(directory))
        with closing(open_broker("embedded://", server=server)) as broker:
            return measure(broker, sessions=sessions)


def main(words: Sequence[str]) -> None:
    """Print JSON."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sessions", type=int, default=100_000, help="of the workspace that floods")
    given = asked.parse_args(words)
    print(json.dumps(_measured(given.sessions), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
