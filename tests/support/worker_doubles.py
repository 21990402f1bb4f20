"""Doubles for tests of one part of a worker: stores and brokers that fail when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import Outcome, ReadyClass, Run, RunClass, RunStatus, StartReason
from oah.core.model.session import Session, SessionState
from oah.core.policy import claim_order
from oah.errors import OahError
from oah.ports.agent import Agent, TurnControl, TurnRequest, TurnResult
from oah.ports.opening import Opening
from oah.ports.store import AfterRun, RunFence, Settlement, Started
from oah.ports.telemetry import NullTelemetry
from oah.worker.context import WorkerContext, WorkerRules
from oah.worker.work import Finished
from tests.support.clock import StillClock

WORKER = WorkerId("w.1")


class Scripted:
    """Answers any method with what was scripted for it, oldest first; the last answer stays. Remembers the calls."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, list[Any]] = {name: list(given) for name, given in answers.items()}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.answers:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            given = self.answers[name]
            answer = given.pop(0) if len(given) > 1 else given[0]
            if isinstance(answer, OahError):
                raise answer
            return answer(*args, **kwargs) if callable(answer) else answer

        return call

    def called(self, name: str) -> int:
        """How often."""
        return sum(1 for each, _, _ in self.calls if each == name)


class Log:
    """An outcome log in memory."""

    def __init__(self) -> None:
        self.rows: dict[RunFence, Settlement] = {}

    def keep(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            self.rows.setdefault(settlement.fence, settlement)

    def kept(self) -> list[Settlement]:
        return list(self.rows.values())

    def delivered(self, fences: Sequence[RunFence]) -> None:
        for fence in fences:
            self.rows.pop(fence, None)

    def worker_ids(self) -> tuple[str, ...]:
        return ()

    def incarnation(self, worker_id: str) -> None: ...

    def close(self) -> None: ...


def epochs() -> Scripted:
    """One epoch."""
    return Scripted(current=[EpochId("e1")], refresh=[EpochId("e1")])


def context(store: Any, broker: Any, *, clock: StillClock | None = None, **rest: Any) -> WorkerContext:
    """A context whose ports are the doubles given."""
    rules = WorkerRules(
        slots=2,
        parked=2,
        lease=timedelta(seconds=30),
        warm_idle=timedelta(seconds=600),
        affinity=timedelta(seconds=2),
        drain_grace=timedelta(seconds=1),
        heartbeat=timedelta(seconds=5),
    )
    parts: dict[str, Any] = {
        "worker_id": WORKER,
        "name": "w",
        "host": "h",
        "version": "0",
        "pid": 1,
        "pool": "default",
        "lanes": (Lane("default", "noop"),),
        "rules": rules,
        "store": store,
        "broker": broker,
        "witness_broker": broker,
        "epochs": epochs(),
        "clock": clock or StillClock(),
        "ids": SimpleNamespace(nonce=lambda: "f" * 32, chance=lambda: 0.0, new=lambda kind: f"{kind}_1"),
        "telemetry": NullTelemetry(),
        "agent_host": Scripted(live=[()], extend=[None], marked=[None], acknowledged_at=[1e9], abandon=[None]),
        "agents": None,
        "outcomes": Log(),
        "recover": Scripted(__call__=[[]]),
        "promote": lambda: None,
        "claim_rules": claim_order.Rules(),
        "figures": lambda: SimpleNamespace(cpu_percent=0.0, rss_bytes=0),
        "data_dir": Path("/nowhere"),
        "homes": None,
        "home_rules": lambda profile: None,
        "one_engine": False,
    }
    return WorkerContext(**{**parts, **rest})


def fence(number: int = 1, token: str = "a") -> RunFence:
    """The fence of a run of its own session."""
    return RunFence(SessionId(f"ses_{number}"), RunId(f"run_{number}"), 1, ClaimToken(token * 32))


def finished(of: RunFence, agent: Agent | None = None) -> Finished:
    """A completed run."""
    settlement = Settlement(of, Outcome(RunStatus.COMPLETED, "done"), keep_owner=agent is not None)
    return Finished(settlement, ReadyClass.INTERACTIVE, 0.1, agent)


def settled(*, waiting: ReadyClass | None = None) -> AfterRun:
    """SQL took it."""
    return AfterRun(True, waiting, event_number=3, status=RunStatus.COMPLETED)


def refused(status: RunStatus | None = RunStatus.QUEUED) -> AfterRun:
    """The fence refused it."""
    return AfterRun(False, None, status=status)


def started(session_id: SessionId, token: ClaimToken) -> Started:
    """SQL has started a run of that session under that token."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    workspace = WorkspaceId("default")
    session = Session(session_id, workspace, Lane("default", "noop"), SessionState.OPEN, moment)
    run = Run(
        RunId(f"run_of_{session_id}"),
        session_id,
        workspace,
        2,
        RunClass.INTERACTIVE,
        RunStatus.RUNNING,
        "true",
        moment,
        moment,
        attempt=1,
        worker_id=WORKER,
        claim_token=token,
    )
    return Started(session, run, StartReason.FIRST, 2)


class WarmAgent:
    """An idle agent. ``on_close`` happens while it is ended; ``empty`` says what came of it."""

    def __init__(self, on_close: Callable[[], object] = lambda: None, *, empty: bool = True) -> None:
        self.agent_id = "agent"
        self.warm = True
        self.closed = 0
        self._on_close = on_close
        self._empty = empty

    @property
    def opening(self) -> Opening:
        return Opening()

    def bind(self, *, run_id: str, attempt: int) -> None: ...

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        raise AssertionError("not in these tests")

    def alive(self) -> bool:
        return self.warm

    def close(self, grace: timedelta) -> bool:
        self.closed += 1
        self._on_close()
        return self._empty
