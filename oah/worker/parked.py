"""Warm agents of parked sessions: bounded, least recently used first, ended by a keeper, never by a slot in a hurry.

Whoever takes an agent out of here owns it. While the keeper ends one, a slot that wants the same session waits, so that
a session never has two trees.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from oah.core.model.ids import ClaimToken, SessionId
from oah.errors import AgentError
from oah.ports.agent import Agent
from oah.ports.clock import Clock

CLOSE_GRACE = timedelta(seconds=2)
"""How politely a warm agent is ended: it is idle, so it has nothing to finish."""


@dataclass(frozen=True, slots=True)
class Warm:
    """One parked agent. ``since`` is monotonic seconds."""

    session_id: SessionId
    token: ClaimToken
    agent: Agent
    since: float


class Ended(Protocol):
    """Told of every agent the keeper has ended."""

    def __call__(self, warm: Warm, *, empty: bool) -> None: ...


class Parked:
    """Thread safe. ``ended`` is told of every agent the keeper has ended: (warm, tree verified empty).

    ``may_end`` is asked before: a session that was claimed for its next run keeps its agent.
    """

    def __init__(
        self,
        *,
        capacity: int,
        idle: timedelta,
        clock: Clock,
        ended: Ended,
        may_end: Callable[[SessionId, ClaimToken], bool] = lambda session_id, token: True,
    ) -> None:
        self._capacity = capacity
        self._idle = idle.total_seconds()
        self._clock = clock
        self._ended = ended
        self._may_end = may_end
        self._lock = threading.Condition()
        self._warm: OrderedDict[SessionId, Warm] = OrderedDict()
        self._ending: set[SessionId] = set()

    def put(self, session_id: SessionId, token: ClaimToken, agent: Agent) -> None:
        """Keep an idle agent."""
        with self._lock:
            self._warm[session_id] = Warm(session_id, token, agent, self._clock.monotonic())

    def take(self, session_id: SessionId) -> Agent | None:
        """The session's warm agent, for its next run; waits while the keeper ends it.

        Raises AgentError ``agent_unkillable``: it is of no use any more, and its tree is not empty.
        """
        with self._lock:
            while session_id in self._ending:
                self._lock.wait(1.0)
            warm = self._warm.pop(session_id, None)
        if warm is None:
            return None
        if warm.agent.warm:
            return warm.agent
        if not warm.agent.close(timedelta(0)):
            raise AgentError("the agent's process tree could not be killed", code="agent_unkillable")
        return None

    def sessions(self) -> list[SessionId]:
        """Parked sessions, the least recently used first."""
        with self._lock:
            return list(self._warm)

    def expired(self) -> list[SessionId]:
        """Those over the capacity, idle for too long, or dead."""
        now = self._clock.monotonic()
        with self._lock:
            over = max(len(self._warm) - self._capacity, 0)
            return [
                session_id
                for index, (session_id, warm) in enumerate(self._warm.items())
                if index < over or now - warm.since > self._idle or not warm.agent.alive()
            ]

    def end(self, sessions: Iterable[SessionId]) -> None:
        """End agents: close, verify, tell. Blocks; called by the keeper and by drain."""
        for session_id in sessions:
            with self._lock:
                warm = self._warm.get(session_id)
                if warm is None or not self._may_end(session_id, warm.token):
                    continue
                del self._warm[session_id]
                self._ending.add(session_id)
            try:
                self._ended(warm, empty=warm.agent.close(CLOSE_GRACE))
            finally:
                with self._lock:
                    self._ending.discard(session_id)
                    self._lock.notify_all()

    def __len__(self) -> int:
        with self._lock:
            return len(self._warm)
