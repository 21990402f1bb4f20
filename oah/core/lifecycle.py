"""Transition tables of run, worker, session, session place and message; the documentation's diagrams come from them.

What is not in a table does not happen: SQL's compare-and-sets and the broker's scripts are tested against these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from oah.core.model.message import MessageState
from oah.core.model.run import RunStatus
from oah.core.model.session import Place, SessionState
from oah.core.model.worker import WorkerState
from oah.errors import Broken

S = TypeVar("S", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Step(Generic[S]):
    """One arrow: by what, from where, to where."""

    by: str
    source: S
    target: S


@dataclass(frozen=True, slots=True)
class Table(Generic[S]):
    """The arrows of one machine and where it begins."""

    name: str
    first: S
    steps: tuple[Step[S], ...]

    def allows(self, source: S, target: S, *, by: str | None = None) -> bool:
        """Whether an arrow leads from `source` to `target` (by `by`, when given)."""
        return any(s.source == source and s.target == target and by in (None, s.by) for s in self.steps)

    def targets(self, source: S, *, by: str | None = None) -> frozenset[S]:
        """Where one may get from `source`."""
        return frozenset(s.target for s in self.steps if s.source == source and by in (None, s.by))

    def require(self, source: S, target: S) -> None:
        """Raises Broken where no arrow leads from `source` to `target`."""
        if not self.allows(source, target):
            raise Broken(f"{self.name} cannot go from {source} to {target}")

    def mermaid(self) -> str:
        """The diagram, as the documentation shows it."""
        arrows: dict[tuple[S, S], list[str]] = {}
        for step in self.steps:
            arrows.setdefault((step.source, step.target), []).append(step.by)
        lines = ["stateDiagram-v2", f"    [*] --> {self.first}"]
        lines += [f"    {source} --> {target}: {', '.join(by)}" for (source, target), by in arrows.items()]
        final = [s for s in type(self.first) if not self.targets(s)]
        return "\n".join([*lines, *(f"    {state} --> [*]" for state in final)])


def _steps(arrows: Mapping[str, Mapping[S, tuple[S, ...]]]) -> tuple[Step[S], ...]:
    return tuple(
        Step(by, source, target)
        for by, each in arrows.items()
        for source, targets in each.items()
        for target in targets
    )


_R = RunStatus
_ACTIVE_ENDS = (_R.COMPLETED, _R.FAILED, _R.CANCELLED, _R.TIMED_OUT)

RUN: Table[RunStatus] = Table(
    "run",
    _R.QUEUED,
    _steps(
        {
            "start": {_R.QUEUED: (_R.RUNNING,)},
            "wait": {_R.RUNNING: (_R.WAITING_TOOL,)},
            "resume": {_R.WAITING_TOOL: (_R.RUNNING,)},
            "settle": {_R.RUNNING: _ACTIVE_ENDS, _R.WAITING_TOOL: _ACTIVE_ENDS},
            "retry": {_R.RUNNING: (_R.QUEUED,), _R.WAITING_TOOL: (_R.QUEUED,)},
            "release": {_R.RUNNING: (_R.QUEUED,), _R.WAITING_TOOL: (_R.QUEUED,)},
            "recover": {
                _R.RUNNING: (_R.QUEUED, _R.FAILED, _R.CANCELLED),
                _R.WAITING_TOOL: (_R.QUEUED, _R.FAILED, _R.CANCELLED),
            },
            "cancel": {_R.QUEUED: (_R.CANCELLED,)},
            "expire": {_R.QUEUED: (_R.TIMED_OUT,)},
            "requeue": {
                _R.COMPLETED: (_R.QUEUED,),
                _R.FAILED: (_R.QUEUED,),
                _R.CANCELLED: (_R.QUEUED,),
                _R.TIMED_OUT: (_R.QUEUED,),
            },
        }
    ),
)
"""`requeue` is an operator's; which statuses the interface lets through is the service's rule."""

_W = WorkerState

WORKER: Table[WorkerState] = Table(
    "worker",
    _W.STARTING,
    _steps(
        {
            "ready": {_W.STARTING: (_W.IDLE,)},
            "claim": {_W.IDLE: (_W.BUSY,)},
            "rest": {_W.BUSY: (_W.IDLE,)},
            "stop": {_W.STARTING: (_W.STOPPING,), _W.IDLE: (_W.STOPPING,), _W.BUSY: (_W.STOPPING,)},
        }
    ),
)

SESSION: Table[SessionState] = Table(
    "session",
    SessionState.OPEN,
    _steps(
        {
            "close": {SessionState.OPEN: (SessionState.CLOSING, SessionState.CLOSED)},
            "last run ends": {SessionState.CLOSING: (SessionState.CLOSED,)},
        }
    ),
)

_P = Place

PLACE: Table[Place] = Table(
    "session place",
    _P.IDLE,
    _steps(
        {
            "enqueue": {_P.IDLE: (_P.READY,)},
            "ensure": {_P.IDLE: (_P.READY,), _P.HELD: (_P.READY,)},
            "hold": {_P.IDLE: (_P.HELD,), _P.READY: (_P.HELD,)},
            "claim": {_P.READY: (_P.LEASED,), _P.PARKED: (_P.LEASED,)},
            "renew": {_P.LEASED: (_P.READY,), _P.PARKED: (_P.READY,)},
            "restore": {
                _P.IDLE: (_P.LEASED, _P.PARKED),
                _P.READY: (_P.LEASED, _P.PARKED),
                _P.HELD: (_P.LEASED, _P.PARKED),
                _P.LEASED: (_P.PARKED,),
                _P.PARKED: (_P.LEASED,),
            },
            "free": {
                _P.LEASED: (_P.READY, _P.PARKED, _P.IDLE, _P.HELD),
                _P.PARKED: (_P.READY, _P.IDLE, _P.HELD),
            },
            "release": {_P.LEASED: (_P.READY,)},
            "recover": {
                _P.IDLE: (_P.READY, _P.HELD),
                _P.LEASED: (_P.READY, _P.HELD, _P.IDLE),
                _P.PARKED: (_P.READY, _P.HELD, _P.IDLE),
            },
            "cancel": {_P.READY: (_P.IDLE,)},
        }
    ),
)
"""Scripts as arrows; where a script leaves a session in its place there is none. `free` of a leased session whose
`heard` is set goes to `ready` instead of `idle`."""

_M = MessageState

MESSAGE: Table[MessageState] = Table(
    "message",
    _M.QUEUED,
    _steps(
        {
            "inject": {_M.QUEUED: (_M.DELIVERED,)},
            "turn over": {_M.QUEUED: (_M.ACKED,), _M.DELIVERED: (_M.ACKED,)},
            "agent acks": {_M.DELIVERED: (_M.ACKED,)},
            "run lost": {_M.DELIVERED: (_M.QUEUED,)},
            "time to live": {_M.QUEUED: (_M.EXPIRED,)},
            "give up": {_M.QUEUED: (_M.DEAD,), _M.DELIVERED: (_M.DEAD,)},
            "redrive": {_M.EXPIRED: (_M.QUEUED,), _M.DEAD: (_M.QUEUED,)},
        }
    ),
)
"""For the agent of a session. `turn over` comes with the injection where a program does not show what it has taken."""
