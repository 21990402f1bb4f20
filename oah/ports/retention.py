"""What ages out of SQL, in bounded batches that read by index.

A lap walks what is old enough in the order of its age, one window after the other; what cannot go yet is walked past
and met again by the next lap. Ages are durations by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from oah.core.model.ids import RunId, SessionId
from oah.core.policy.retention import Aged


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a lap came: the last row that was looked at."""

    keys: tuple[str | int, ...]
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """``count`` rows went (or would go). ``mark``: where the next window begins; None: the lap is over."""

    count: int
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recording of an attempt of a run that ended long ago."""

    run_id: RunId
    attempt: int
    key: str


@dataclass(frozen=True, slots=True)
class Recordings:
    """A window of them."""

    items: tuple[Recorded, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class AgedRuns:
    """Runs that may go, and the blobs that only they name."""

    ids: tuple[RunId, ...] = ()
    blobs: tuple[str, ...] = field(default=())
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Archived:
    """Sessions that ended long ago and have an archive of their home."""

    ids: tuple[SessionId, ...] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """Of some sessions those that ended long ago and have no agent any more, and those that no row tells of."""

    closed: frozenset[SessionId] = frozenset()
    unknown: frozenset[SessionId] = frozenset()


class RetentionStore(Protocol):
    """Deletes of what nobody needs any more. Nothing that has not ended is touched."""

    def prune(
        self,
        what: Aged,
        age: timedelta,
        *,
        after: Mark | None,
        limit: int,
        keep: Collection[str] = (),
        dry_run: bool = False,
    ) -> Pruned:
        """One window of everything but recordings and runs. ``keep``: ids of workers that live."""
        ...

    def aged_recordings(self, age: timedelta, *, after: Mark | None, limit: int) -> Recordings:
        """Of a window of ``limit`` ended runs. Their blobs go first, the references by ``forget_recordings``."""
        ...

    def forget_recordings(self, recordings: Sequence[Recorded]) -> None: ...
    def aged_archives(self, age: timedelta, *, after: Mark | None, limit: int) -> Archived:
        """Of a window of ``limit`` closed sessions. Their blobs go first, the references by ``forget_archives``."""
        ...

    def forget_archives(self, sessions: Sequence[SessionId]) -> None: ...
    def over(self, sessions: Sequence[SessionId], age: timedelta) -> Over:
        """A closed session takes no run ever again. One whose process could not be killed is not over."""
        ...

    def aged_runs(self, age: timedelta, *, after: Mark | None, limit: int, with_events: bool = False) -> AgedRuns:
        """Of a window of ``limit`` ended runs those that nothing needs: no event, no dead letter, no child.
        ``with_events``: those, too, whose events would have to go first."""
        ...

    def prune_runs(self, runs: Sequence[RunId], age: timedelta) -> int:
        """Delete them with their steps and attempts, unless something has happened to them since; how many went."""
        ...
