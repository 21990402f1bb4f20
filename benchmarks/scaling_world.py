"""A simulated fleet under the scaling policy: sessions that want runs, pods that take their time to start, a controller
that may restart, lose its leadership or see nothing. Time is counted, never slept; chance has a seed.

The controller here does what the real one does with a decision: it starts pods, takes back those it was draining before
it starts new ones, drains idle pods first, and lets a draining pod go when it is empty.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

from oah.core.policy.scaling import History, Reason, Rules, Signals, decide

HOLDS = {Reason.STEADY, Reason.WINDOW_HOLD, Reason.COOLDOWN_HOLD, Reason.BLIND_HOLD}
P95_OVER = 300.0
"""Seconds that the percentile of waiting looks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`sessions(t)`: how many conversations want a run, always the next when one ends. `arrivals(t)`: runs a second
    that come whatever happens to those before, evenly or (`random_gaps`) as a Poisson process. `away`: (from, until)
    without any leader; the next one remembers nothing. `blind`: (from, until) in which the registry shows nobody and
    says so."""

    name: str
    seconds: int
    rules: Rules
    sessions: Callable[[float], float] = lambda _: 0.0
    arrivals: Callable[[float], float] = lambda _: 0.0
    run_seconds: float = 30.0
    start_seconds: float = 45.0
    tick: int = 5
    step: int = 1
    away: Sequence[tuple[float, float]] = ()
    blind: Sequence[tuple[float, float]] = ()
    random_gaps: bool = False
    seed: int = 1


@dataclass(slots=True, eq=False)
class Pod:
    ready_at: float
    runs: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """In slots, except `waiting`: runs."""

    at: float
    load: float
    desired: int
    actual: int
    running: int
    waiting: int


@dataclass(slots=True)
class Course:
    """What happened. `actions`: (when, from, to, why), sizes in pods. `ended_with`: runs of pods that went."""

    samples: list[Sample] = field(default_factory=list)
    actions: list[tuple[float, int, int, Reason]] = field(default_factory=list)
    ended_with: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    served: int = 0
    slot_seconds: float = 0.0
    busy_seconds: float = 0.0

    @property
    def turns(self) -> int:
        """How often the direction changed."""
        ups = [to > at for _, at, to, _ in self.actions]
        return sum(a != b for a, b in pairwise(ups))

    def wait_p95(self) -> float:
        return _p95(self.waits)


def _p95(waits: Sequence[float]) -> float:
    return sorted(waits)[int(len(waits) * 0.95)] if waits else 0.0


class Fleet:
    """One world; `play` runs it to its end."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.course = Course()
        self._chance = random.Random(scene.seed)
        self._pods = [Pod(ready_at=0.0) for _ in range(scene.rules.minimum)]
        self._queue: deque[float] = deque()
        self._ends: list[tuple[float, int, Pod]] = []
        self._count = 0
        self._owed = 0.0
        self._lately: deque[tuple[float, float]] = deque()
        self._history = History()

    def play(self) -> Course:
        scene = self.scene
        for now in range(0, scene.seconds, scene.step):
            self._finish(now)
            self._submit(now)
            self._claim(now)
            if now % scene.tick == 0:
                self._control(now)
                self._sample(now)
        return self.course

    @property
    def running(self) -> int:
        return len(self._ends)

    def _finish(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, pod = heapq.heappop(self._ends)
            pod.runs -= 1
            self.course.served += 1
        gone = [pod for pod in self._pods if pod.draining and pod.runs == 0]
        self.course.ended_with += [pod.runs for pod in gone]
        self._pods = [pod for pod in self._pods if not (pod.draining and pod.runs == 0)]

    def _submit(self, now: float) -> None:
        scene = self.scene
        self._owed += self._came(scene.arrivals(now) * scene.step)
        wanted = int(scene.sessions(now)) - self.running - len(self._queue) if scene.sessions(now) else 0
        many = max(0, wanted) + int(self._owed)
        self._owed -= int(self._owed)
        self._queue.extend([now] * many)

    def _came(self, mean: float) -> float:
        if not self.scene.random_gaps:
            return mean
        many, left = 0, self._chance.expovariate(1.0)
        while left < mean:
            many, left = many + 1, left + self._chance.expovariate(1.0)
        return many

    def _claim(self, now: float) -> None:
        """Whoever has most free slots asks first."""
        slots = self.scene.rules.slots_per_unit
        free = [(pod.runs, n, pod) for n, pod in enumerate(self._pods) if self._open(pod, now) and pod.runs < slots]
        heapq.heapify(free)
        while self._queue and free:
            runs, n, pod = heapq.heappop(free)
            wait = now - self._queue.popleft()
            self.course.waits.append(wait)
            self._lately.append((now, wait))
            pod.runs = runs + 1
            self._count += 1
            length = self._chance.uniform(0.5, 1.5) * self.scene.run_seconds
            heapq.heappush(self._ends, (now + length, self._count, pod))
            if pod.runs < slots:
                heapq.heappush(free, (pod.runs, n, pod))

    @staticmethod
    def _open(pod: Pod, now: float) -> bool:
        return pod.ready_at <= now and not pod.draining

    def _signals(self, now: float) -> Signals:
        slots = self.scene.rules.slots_per_unit
        live = [pod for pod in self._pods if self._open(pod, now)]
        while self._lately and self._lately[0][0] < now - P95_OVER:
            self._lately.popleft()
        seen = not _within(now, self.scene.blind)
        return Signals(
            ready=len(self._queue),
            running=self.running,
            slots=len(live) * slots if seen else 0,
            idle_slots=sum(slots - pod.runs for pod in live) if seen else 0,
            starting=sum(pod.ready_at > now for pod in self._pods) if seen else len(self._pods),
            oldest_wait=timedelta(seconds=now - self._queue[0] if self._queue else 0),
            wait_p95=timedelta(seconds=_p95([wait for _, wait in self._lately])) if self._lately else None,
            sure=seen,
        )

    def _control(self, now: float) -> None:
        if _within(now, self.scene.away):
            self._history = History()
            return
        current = sum(not pod.draining for pod in self._pods)
        decision = decide(self._signals(now), self.scene.rules, current=current, history=self._history, now=now)
        self._history = decision.history
        if decision.desired != current:
            self.course.actions.append((now, current, decision.desired, decision.reason))
        if decision.desired > current:
            self._grow(decision.desired - current, now)
        else:
            for pod in sorted(self._stays(), key=lambda pod: (pod.ready_at <= now, pod.runs))[
                : current - decision.desired
            ]:
                pod.draining = True

    def _grow(self, more: int, now: float) -> None:
        back = sorted((pod for pod in self._pods if pod.draining), key=lambda pod: -pod.runs)[:more]
        for pod in back:
            pod.draining = False
        late = self.scene.start_seconds
        self._pods += [Pod(now + self._chance.uniform(0.9, 1.1) * late) for _ in range(more - len(back))]

    def _stays(self) -> list[Pod]:
        return [pod for pod in self._pods if not pod.draining]

    def _sample(self, now: float) -> None:
        scene, slots = self.scene, self.scene.rules.slots_per_unit
        actual = sum(pod.ready_at <= now for pod in self._pods) * slots
        load = scene.sessions(now) + scene.arrivals(now) * scene.run_seconds
        desired = len(self._stays()) * slots
        self.course.samples.append(Sample(now, load, desired, actual, self.running, len(self._queue)))
        self.course.slot_seconds += actual * scene.tick
        self.course.busy_seconds += self.running * scene.tick


def _within(now: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(begin <= now < end for begin, end in spans)
