"""Redrive and purge dead letters: by id or filter, looked at first if wanted, many of them as a job.

A redrive of a run is a requeue: the same run, and so the same identity for whoever waits for it, gets a new attempt;
its counters restart. The letter says in the same transaction that it was redriven, so that nothing is redriven twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from oah.core.model.ids import EpochId, WorkspaceId
from oah.errors import InvalidRequest, LeaseError, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Ids
from oah.ports.dead_letters import DeadLetter, LetterDone, LetterFilter, LetterKind, LetterState
from oah.ports.jobs import Job, JobFence, JobQueue
from oah.ports.store import Store
from oah.services import jobs
from oah.services.jobs import Work
from oah.services.place import Places
from oah.services.submit import hear

INLINE = 200
"""Letters that a request handles itself; more are a job."""
MOST = 10_000
"""Letters of one job: its row holds their ids, so that it does what was looked at and nothing that died since."""
CHUNK = 100
PAGE = 500


class Act(StrEnum):
    """What is to be done; also the kind of the job."""

    REDRIVE = "redrive"
    PURGE = "purge"


@dataclass(frozen=True, slots=True)
class Done:
    """``items`` for a request, ``job`` for a large one. ``more``: the filter finds further ones: ask again."""

    items: tuple[LetterDone, ...] = ()
    job: Job | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class ManageLetters:
    """Raises InvalidRequest, Unavailable (SQL). What the broker misses the relay lets it hear."""

    store: Store
    broker: Broker
    queue: JobQueue
    ids: Ids

    def __call__(
        self,
        act: Act,
        which: Sequence[str] | LetterFilter,
        workspace_id: WorkspaceId | None,
        *,
        epoch: Callable[[], EpochId | None],
        by: str,
        dry_run: bool = False,
    ) -> Done:
        """``workspace_id``: the only one whose letters the caller sees."""
        if isinstance(which, LetterFilter):
            found = self._find(which)
            names = [each.id for each in found]
        else:
            names = list(dict.fromkeys(which))
            if len(names) > MOST:
                raise InvalidRequest(f"at most {MOST} ids at a time", code="too_many_ids")
            found = self._look(names, workspace_id) if dry_run else []
        more, names = len(names) > MOST, names[:MOST]
        if dry_run:
            return Done(tuple(_outlook(act, names, found)), more=more)
        if len(names) > INLINE:
            return Done(job=self._ask(act, names, workspace_id, by=by), more=more)
        return Done(tuple(self._now(act, names, workspace_id, epoch=epoch, by=by)), more=more)

    def _find(self, where: LetterFilter) -> list[DeadLetter]:
        """Dead or not, as the filter says; one more than may be handled, to know that there are more."""
        found: list[DeadLetter] = []
        cursor: str | None = None
        while len(found) <= MOST:
            page = self.store.dead_letters(replace(where, cursor=cursor, limit=PAGE))
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    def _look(self, names: Sequence[str], workspace_id: WorkspaceId | None) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        for begin in range(0, len(names), PAGE):
            ids = tuple(names[begin : begin + PAGE])
            found += self.store.dead_letters(LetterFilter(workspace_id=workspace_id, ids=ids, limit=PAGE)).items
        return found

    def _ask(self, act: Act, names: Sequence[str], workspace_id: WorkspaceId | None, *, by: str) -> Job:
        arguments = {"ids": list(names), "workspace": workspace_id}
        return jobs.ask(
            self.store,
            self.queue,
            self.ids,
            act.value,
            workspace_id=workspace_id,
            arguments=arguments,
            total=len(names),
            by=by,
        )

    def _now(
        self,
        act: Act,
        names: Sequence[str],
        workspace_id: WorkspaceId | None,
        *,
        epoch: Callable[[], EpochId | None],
        by: str,
    ) -> list[LetterDone]:
        done: list[LetterDone] = []
        for begin in range(0, len(names), CHUNK):
            done += _chunk(
                self.store, self.broker, act, names[begin : begin + CHUNK], workspace_id, epoch=epoch, by=by, fence=None
            )
        return done


def work_of(store: Store, broker: Broker, act: Act, *, epoch: Callable[[], EpochId | None]) -> Work:
    """The job's work: the next chunk of its ids, with the progress in the same transaction."""

    def work(job: Job, fence: JobFence) -> bool:
        names = job.arguments["ids"]
        begin = job.done + job.failed
        named = job.arguments.get("workspace")
        workspace_id = None if named is None else WorkspaceId(named)
        chunk = names[begin : begin + CHUNK]
        if chunk:
            _chunk(store, broker, act, chunk, workspace_id, epoch=epoch, by=job.created_by, fence=fence)
        return begin + len(chunk) >= len(names)

    return work


def _chunk(
    store: Store,
    broker: Broker,
    act: Act,
    names: Sequence[str],
    workspace_id: WorkspaceId | None,
    *,
    epoch: Callable[[], EpochId | None],
    by: str,
    fence: JobFence | None,
) -> list[LetterDone]:
    commit = store.redrive_chunk if act is Act.REDRIVE else store.purge_chunk
    done = commit(names, workspace_id, by=by, fence=fence)
    accepted = [each.accepted for each in done if each.accepted is not None]
    if accepted:
        try:
            under = hear(broker, store, epoch(), accepted)
            if under is not None:  # as after a requeue: who waited for a retry waits no longer
                sessions = {each.run.session_id for each in accepted}
                Places(store, broker).put(under, store.queued_sessions_of(list(sessions), under))
        except (Unavailable, LeaseError):
            return done  # committed: the relay lets the broker hear of them
    return done


def _outlook(act: Act, names: Sequence[str], found: Sequence[DeadLetter]) -> list[LetterDone]:
    """What would become of each, as far as the letters themselves say."""
    letters = {each.id: each for each in found}
    return [_would(act, name, letters.get(name)) for name in names]


def _would(act: Act, name: str, letter: DeadLetter | None) -> LetterDone:
    if letter is None:
        return LetterDone(name, "not_found", f"no dead letter {name}")
    if act is Act.PURGE:
        return LetterDone(name, kind=letter.kind)
    if letter.state is LetterState.REDRIVEN:
        return LetterDone(name, "already_redriven", f"{name} was redriven by {letter.redriven_by}", kind=letter.kind)
    if letter.kind not in REDRIVABLE:
        words = f"a letter of kind {letter.kind} cannot be redriven"
        return LetterDone(name, "not_redrivable", words, kind=letter.kind)
    return LetterDone(name, kind=letter.kind)


REDRIVABLE = frozenset({LetterKind.RUN, LetterKind.OUTBOX, LetterKind.MESSAGE})
