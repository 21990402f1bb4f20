"""The hot statements as a contract: each dialect writes them once, the stores above give them their meaning.

All run inside a transaction that somebody else opened and will commit. Values cross as the driver has them; what they
mean is made of them in ``rows.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from oah.adapters.sql.rows import parsed
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Session
from oah.core.policy.rate import Rate
from oah.ports.store import RunFence


@dataclass(slots=True)
class SubmitSession:
    """A locked session with what a submit counts on; mutable, because members of one batch follow each other."""

    session: Session
    next_position: int
    queued_in_workspace: int
    workspace_cap: int | None
    queued: int
    number: int
    front: int = 0
    """The next position before all others; counts down."""
    rate: Rate | None = None
    """Of its workspace."""


class ParentRow(NamedTuple):
    """A run whose agent starts others. ``depth``: runs above it; ``live``, ``in_all``: its children; ``opened``:
    sessions that it has opened."""

    attempt: int
    token: str | None
    active: bool
    stopping: bool
    depth: int
    live: int
    in_all: int
    opened: int


class KeyRow(NamedTuple):
    """An idempotency key to take."""

    workspace_id: str
    key: str
    request_hash: str
    run_id: str


class RunRow(NamedTuple):
    """A run to insert; moments as datetimes, JSON as text."""

    id: str
    session_id: str
    workspace_id: str
    parent_run_id: str | None
    position: int
    number: int
    run_class: str
    class_rank: int
    input: str
    metadata: str
    delay_us: int | None
    due_at: datetime | None
    timeout_ms: int | None
    deadline_at: datetime | None
    max_retries: int | None
    order_mode: str
    start_timeout_us: int | None
    idle_timeout_ms: int | None
    step_timeout_ms: int | None
    retry: str | None
    recovery_strategy: str | None
    recovery_max_attempts: int | None
    data: str
    priority: int = 0
    front: bool = False


class Inserted(NamedTuple):
    """What the database decided about an inserted run."""

    created_at: datetime
    due_at: datetime | None
    due_in: timedelta | None
    start_by: datetime | None


class ActiveRow(NamedTuple):
    """The active run of a session, as a submit finds it. ``stopping``: somebody has asked it to stop before;
    ``waiting``: it waits for somebody's answer."""

    run_id: str
    attempt: int
    worker_id: str | None
    stopping: bool
    voided: bool
    waiting: bool
    parent_run_id: str | None


class CommandRow(NamedTuple):
    """A text for an active run. ``data`` is JSON."""

    worker_id: str
    kind: str
    given_by: str
    run_id: str
    attempt: int
    data: str
    request_id: str


class ClaimRow(NamedTuple):
    """A session to start under a token; ``held``: only say who has it."""

    session_id: str
    token: str
    suspect_place: bool
    held: bool


class StartRow(NamedTuple):
    """What a start found: the owner (of the row, else of the active run), the first eligible run, and the run if it
    was started."""

    session_id: str
    owner_worker: str | None
    owner_token: str | None
    owner_parked: bool
    owner_age_us: int | None
    active: bool
    first_run: str | None
    number: int
    reason: str | None
    run: Sequence[Any] | None


class SettleRow(NamedTuple):
    """A fenced outcome; texts are clean, ``data`` is the event's JSON."""

    session_id: str
    run_id: str
    attempt: int
    token: str
    status: str
    result: str
    result_blob: str | None
    exit_code: int | None
    error_code: str | None
    error_message: str | None
    recording_blob: str | None
    agent: str
    keep_owner: bool
    data: str
    agent_reason: str | None = None
    home_mode: str | None = None
    session_ref: str | None = None
    """None: the session's stays; so does its ``home`` (JSON)."""
    home: str | None = None


class FencedRow(NamedTuple):
    """What a fenced write did: the status now (None: refused), its event's number, and whether the run was rolled
    back meanwhile."""

    status: str | None
    number: int
    voided: bool = False


class OutputRow(NamedTuple):
    """A fenced ``run.output`` event."""

    session_id: str
    run_id: str
    attempt: int
    token: str
    data: str


@dataclass(frozen=True, slots=True)
class Look:
    """A session as it stands now: the highest waiting class and the holds, against the database's clock."""

    waiting: ReadyClass | None
    held: bool
    holds: Mapping[str, int | None]
    now_us: int
    number: int
    priority: int = 0
    """Of the first eligible run."""

    @property
    def reasons(self) -> tuple[HoldReason, ...]:
        """Why it is held."""
        return tuple(HoldReason(reason) for reason in self.holds) if self.held else ()

    @property
    def until_in(self) -> timedelta | None:
        """When the last hold ends by itself; None: one of them never does, or there is none."""
        return remaining(self.holds, self.now_us) if self.held else None


def remaining(holds: Mapping[str, int | None], now_us: int) -> timedelta | None:
    """Time until the last of the holds has ended, never negative; None where one of them has no end."""
    ends = list(holds.values())
    if not ends or any(end is None for end in ends):
        return None
    last = max(end for end in ends if end is not None)
    return timedelta(microseconds=max(0, last - now_us))


def look_of(waiting: str | None, held: int, holds: Any, now_us: int, number: int, priority: int = 0) -> Look:
    """A Look of raw columns."""
    found = parsed(holds) if held else {}
    return Look(None if waiting is None else ReadyClass(waiting), bool(held), found, now_us, number, priority)


class Statements(Protocol):
    """What both dialects offer inside an open transaction. Session ids come sorted and without repeats."""

    def lock(self, sessions: Sequence[str]) -> dict[str, Sequence[Any]]:
        """Lock the rows in id order; those that exist, in the order of SESSION_COLUMNS."""
        ...

    def pauses(self) -> list[tuple[str, str]]:
        """Kind and subject of what is paused, at the time of the last lock."""
        ...

    def lock_only(self, sessions: Sequence[str]) -> None:
        """Lock the rows in id order and read nothing of them."""
        ...

    def lock_for_submit(self, sessions: Sequence[str]) -> dict[str, SubmitSession]: ...
    def take_keys(self, keys: Sequence[KeyRow]) -> dict[tuple[str, str], KeyRow]:
        """Take the keys (waiting for whoever is taking one of them); returns those that were taken before."""
        ...

    def drop_keys(self, keys: Sequence[KeyRow]) -> None: ...
    def lock_rates(self, workspaces: Sequence[str]) -> tuple[dict[str, int], int]:
        """How far ahead each is, locked in the order given (sorted), and the database's clock, in microseconds."""
        ...

    def save_rates(self, ahead: Mapping[str, int]) -> None:
        """Of those that are locked."""
        ...

    def parents(self, runs: Sequence[str]) -> dict[str, ParentRow]:
        """Counted under the locks of their sessions."""
        ...

    def active_sessions(self, sessions: Sequence[str]) -> set[str]:
        """Those with an active run."""
        ...

    def active_run(self, session: str) -> ActiveRow | None:
        """Its active run."""
        ...

    def stop_run(self, run: str, by: str, reason: str, *, void: bool) -> None:
        """Ask an active run to stop, unless somebody has; ``void`` what it did in any case."""
        ...

    def tell(self, session: str, number: int, run: str, attempt: int, kind: str, data: str) -> None:
        """An event under a number that the caller has counted; the session counts it too."""
        ...

    def put_command(self, command: CommandRow) -> None: ...
    def steered(self, requests: Sequence[str]) -> dict[str, str]:
        """The runs into which these requests went, of those that became a command."""
        ...

    def insert_runs(self, runs: Sequence[RunRow]) -> dict[str, Inserted]: ...
    def heard(self, runs: Sequence[str], epoch: str) -> None: ...
    def start(self, worker: str, epoch: str, claims: Sequence[ClaimRow]) -> list[StartRow]: ...
    def settle(self, rows: Sequence[SettleRow]) -> list[FencedRow]: ...
    def release(self, fences: Sequence[RunFence]) -> list[FencedRow]: ...
    def output(self, rows: Sequence[OutputRow]) -> list[int | None]: ...
    def tell_webhooks(self, events: Sequence[tuple[str, int]]) -> None:
        """A delivery for each active webhook that asked for one of these events (session, number), once, in this
        transaction. Without webhooks: one probe."""
        ...

    def look(self, sessions: Sequence[str]) -> dict[str, Look]: ...
    def hold(self, session: str, holds: Mapping[str, int | None]) -> None:
        """Write the holds (reason → its end in microseconds) and what is derived from them."""
        ...

    def read_runs(self, runs: Sequence[str]) -> dict[str, Sequence[Any]]:
        """Rows in the order of RUN_COLUMNS."""
        ...

    def drop_owners(self, worker: str, sessions: Sequence[tuple[str, str]]) -> set[str]:
        """Delete owner rows without an active run behind them; the sessions whose row went."""
        ...
