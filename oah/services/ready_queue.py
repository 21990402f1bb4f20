"""The ready queue, governed: SQL against the broker, page by page, and what a repeatable step puts right at once.

A walk has three parts: sessions with queued runs, owner rows, entries of the ready sets. What looks wrong is looked at
again two seconds later: a run on its way between the stores is no fault, the same fault twice is. Every step rests on
what the stores say when it is done, so that a repair that comes late does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.policy import ready_faults
from oah.core.policy.ready_faults import Fault, Owned
from oah.errors import InvalidRequest, NotFound
from oah.ports.broker import Broker, LeaseView
from oah.ports.ready import EVERY, Fit, ReadyEntry, ReadySet
from oah.ports.store import OwnerRow, QueuedSession, Store
from oah.services.place import Places

SECOND_LOOK = 2.0
PAGE = 1_000

Faults = dict[Fault, set[SessionId]]


class Part(StrEnum):
    """Parts of the walk, in order."""

    SESSIONS = "sessions"
    OWNERS = "owners"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Look:
    """One page: how much was looked at of which part, the faults that were there twice, where to go on."""

    epoch: EpochId
    part: Part
    looked: int
    faults: Mapping[Fault, tuple[SessionId, ...]] = field(default_factory=dict)
    strays: tuple[ReadyEntry, ...] = ()
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class _Where:
    part: Part
    after: str = ""
    ready_set: ReadySet | None = None
    first: int = 0


@dataclass(slots=True)
class _Found:
    looked: int
    after: _Where | None
    faults: Faults = field(default_factory=dict)
    strays: list[ReadyEntry] = field(default_factory=list)

    def add(self, fault: Fault | None, session: SessionId) -> None:
        if fault is not None:
            self.faults.setdefault(fault, set()).add(session)


@dataclass(frozen=True, slots=True)
class Doubts:
    """What one look found."""

    epoch: EpochId
    where: _Where
    limit: int
    found: _Found


class ReadyQueue:
    """Raises Unavailable, EpochMismatch (a rebuild began meanwhile), NotFound (no leader has ever run)."""

    def __init__(self, store: Store, broker: Broker, *, lease: timedelta, pause: Callable[[float], object]) -> None:
        self._store = store
        self._broker = broker
        self._places = Places(store, broker)
        self._lease = lease
        self._pause = pause

    def look(self, cursor: str | None = None, *, limit: int = PAGE) -> Look:
        """A page of the walk, both looks. Raises InvalidRequest for a cursor that is none."""
        doubts = self.begin(cursor, limit=limit)
        if doubts.found.faults:
            self._pause(SECOND_LOOK)
        return self.confirm(doubts)

    def begin(self, cursor: str | None = None, *, limit: int = PAGE) -> Doubts:
        """The first look at a page."""
        where, epoch = _parse(cursor), self.epoch()
        return Doubts(epoch, where, limit, self._once(epoch, where, limit))

    def confirm(self, doubts: Doubts) -> Look:
        """The second, where there is anything to be seen."""
        found = doubts.found
        faults, strays = found.faults, found.strays
        if faults:
            again = self._once(doubts.epoch, doubts.where, doubts.limit, again=found)
            faults = {fault: names & again.faults.get(fault, set()) for fault, names in faults.items()}
            strays = [entry for entry in again.strays if entry in set(strays)]
        return Look(
            epoch=doubts.epoch,
            part=doubts.where.part,
            looked=found.looked,
            faults={fault: tuple(sorted(names)) for fault, names in faults.items() if names},
            strays=tuple(strays),
            next_cursor=None if found.after is None else _written(found.after),
        )

    def walk(self, *, limit: int = PAGE) -> Iterator[Look]:
        """All pages."""
        cursor: str | None = None
        while True:
            look = self.look(cursor, limit=limit)
            yield look
            cursor = look.next_cursor
            if cursor is None:
                return

    def mend(self, look: Look) -> list[SessionId]:
        """Put right what may be: whose faults they were. What is not so any more stays as it is."""
        gone = self._named(look, Fault.STALE, Fault.FOREIGN)
        if gone:
            self._broker.cancel(look.epoch, gone)
        placed = self._named(look, Fault.NO_PLACE, Fault.READY_WHILE_HELD, Fault.TORN)
        if look.strays:
            self._broker.weed(look.epoch, look.strays)
        asked = sorted({*gone, *placed})
        if asked:  # what became eligible since is ready again
            self._places.put(look.epoch, self._store.queued_sessions_of(asked, look.epoch))
        return sorted({*asked, *(entry.session_id for entry in look.strays)})

    def reconcile(self, cursor: str | None = None, *, limit: int = PAGE) -> int:
        """Tell the broker once more of every session of this page with queued runs and no owner; how many."""
        where = _parse(cursor)
        if where.part is not Part.SESSIONS:
            return 0
        epoch = self.epoch()
        page = self._store.queued_sessions(epoch, after=_after(where), limit=limit)
        free = [each for each in page if each.owner is None]
        self._places.put(epoch, free)
        return len(free)

    def epoch(self) -> EpochId:
        """Raises NotFound."""
        epoch = self._store.current_epoch()
        if epoch is None:
            raise NotFound("SQL has no epoch yet: no leader has ever run", hint="start oah-controller")
        return epoch

    def _named(self, look: Look, *faults: Fault) -> list[SessionId]:
        return sorted({name for fault in faults for name in look.faults.get(fault, ())})

    def _once(self, epoch: EpochId, where: _Where, limit: int, again: _Found | None = None) -> _Found:
        match where.part:
            case Part.SESSIONS:
                return self._sessions(epoch, where, limit, again)
            case Part.OWNERS:
                return self._owners(epoch, where, limit, again)
            case Part.READY:
                return self._ready(epoch, where, limit)

    def _sessions(self, epoch: EpochId, where: _Where, limit: int, again: _Found | None) -> _Found:
        if again is None:
            page = self._store.queued_sessions(epoch, after=_after(where), limit=limit)
        else:
            page = self._store.queued_sessions_of(_suspects(again), epoch)
        full = len(page) == limit
        found = _Found(len(page), _Where(Part.SESSIONS, page[-1].session_id) if full else _Where(Part.OWNERS))
        free = [each for each in page if each.owner is None]
        for each, view in zip(free, self._views(epoch, [each.session_id for each in free]), strict=True):
            eligible = each.ready_class is not None
            found.add(ready_faults.of_queued(view.place, held=bool(each.holds), eligible=eligible), each.session_id)
        return found

    def _owners(self, epoch: EpochId, where: _Where, limit: int, again: _Found | None) -> _Found:
        rows: Sequence[OwnerRow]
        if again is None:
            rows = self._store.owners(after=_after(where), limit=limit)
        else:
            rows = self._store.owners_of(_suspects(again))
        full = len(rows) == limit
        found = _Found(len(rows), _Where(Part.OWNERS, rows[-1].session_id) if full else _Where(Part.READY))
        for row, view in zip(rows, self._views(epoch, [row.session_id for row in rows]), strict=True):
            seen = Owned(row.age, row.token, view.place, view.token)
            found.add(ready_faults.of_owner(seen, lease=self._lease), row.session_id)
        return found

    def _ready(self, epoch: EpochId, where: _Where, limit: int) -> _Found:
        """As many sets as fit into the page; a set that is longer goes on with the next."""
        sets = self._broker.ready_sets([each.id for each in self._store.workspaces()])
        found, left = _Found(0, None), limit
        for each in sets:
            if where.ready_set is not None and each < where.ready_set:
                continue
            first = where.first if each == where.ready_set else 0
            if left <= 0:
                found.after = _Where(Part.READY, ready_set=each, first=first)
                break
            entries = self._broker.ready_entries(epoch, each, first=first, limit=left)
            self._judge(epoch, each, entries, found)
            if len(entries) == left:
                found.after = _Where(Part.READY, ready_set=each, first=first + left)
                break
            left -= len(entries)
        return found

    def _judge(self, epoch: EpochId, where: ReadySet, entries: Sequence[ReadyEntry], found: _Found) -> None:
        found.looked += len(entries)
        for entry in entries:
            if entry.fit is Fit.STRAY:
                found.strays.append(entry)
            found.add({Fit.STRAY: Fault.STRAY, Fit.TORN: Fault.TORN}.get(entry.fit), entry.session_id)
        if where.workspace_id != EVERY:
            return  # each stands in the set of all, too, or is torn
        names = [entry.session_id for entry in entries if entry.fit is not Fit.STRAY]
        queued = {each.session_id: each for each in self._store.queued_sessions_of(names, epoch)} if names else {}
        known = self._store.known_sessions([name for name in names if name not in queued])
        for name in names:
            found.add(_against(queued.get(name), known=name in queued or name in known), name)

    def _views(self, epoch: EpochId, names: Sequence[SessionId]) -> list[LeaseView]:
        return self._broker.leases(epoch, names) if names else []


def _against(session: QueuedSession | None, *, known: bool) -> Fault | None:
    return ready_faults.of_ready(
        known=known,
        eligible=session is not None and session.ready_class is not None,
        held=session is not None and bool(session.holds),
        owned=session is not None and session.owner is not None,
    )


def _suspects(found: _Found) -> list[SessionId]:
    return sorted({name for names in found.faults.values() for name in names})


def _after(where: _Where) -> SessionId | None:
    return SessionId(where.after) if where.after else None


def _written(where: _Where) -> str:
    if where.ready_set is None:
        return f"{where.part},{where.after}"
    at = where.ready_set
    workspace = at.workspace_id.encode("utf-8", "surrogateescape").hex()
    return ",".join((where.part, str(at.lane), at.ready_class, workspace, str(where.first)))


def _parse(cursor: str | None) -> _Where:
    if cursor is None:
        return _Where(Part.SESSIONS)
    try:
        part, *words = cursor.split(",")
        match words:
            case [after] if not after or part != Part.READY:
                return _Where(Part(part), after)
            case [lane, ready_class, workspace, first] if part == Part.READY:
                name = WorkspaceId(bytes.fromhex(workspace).decode("utf-8", "surrogateescape"))
                at = ReadySet(Lane.parse(lane), ReadyClass(ready_class), name)
                return _Where(Part.READY, ready_set=at, first=max(0, int(first)))
            case _:
                pass
    except (ValueError, InvalidRequest):
        pass
    raise InvalidRequest("this is no cursor of ours", hint="pass next_cursor of the page before")


def of_session(store: Store, broker: Broker, session_id: SessionId) -> tuple[OwnerRow | None, LeaseView | None]:
    """Its owner in SQL and its place in the broker; None before the first epoch. Raises Unavailable, EpochMismatch."""
    epoch = store.current_epoch()
    owners = store.owners_of([session_id])
    return (owners[0] if owners else None), (None if epoch is None else broker.leases(epoch, [session_id])[0])


@dataclass(slots=True)
class Report:
    """Pages, added up."""

    looked: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))
    faults: dict[Fault, list[SessionId]] = field(default_factory=dict)

    def add(self, look: Look) -> None:
        """One more."""
        self.looked[look.part] += look.looked
        for fault, names in look.faults.items():
            known = self.faults.setdefault(fault, [])
            known += [name for name in names if name not in known]
