"""The last decisions of a leader, for people: what was recovered, restored, repaired, minted, and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime

from oah.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing that a leader did. ``subject``: the session, run or epoch it is about."""

    at: datetime
    kind: str
    subject: str
    outcome: str
    reason: str
    run_id: str | None = None
    worker_id: str | None = None


class Decisions:
    """A ring of the last ``keep`` decisions, newest last. Safe to read from another thread."""

    def __init__(self, clock: Clock, *, keep: int = 500) -> None:
        self._clock = clock
        self._ring: deque[Decision] = deque(maxlen=keep)

    def note(
        self,
        kind: str,
        subject: str,
        outcome: str,
        reason: str,
        *,
        run_id: str | None = None,
        worker_id: str | None = None,
    ) -> None:
        """Remember one; the oldest is forgotten."""
        self._ring.append(Decision(self._clock.now(), kind, subject, outcome, reason, run_id, worker_id))

    def last(self, *, limit: int = 100) -> list[Decision]:
        """The newest first."""
        return list(self._ring.copy())[::-1][:limit]
