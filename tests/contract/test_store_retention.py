"""What retention promises: only what has ended goes, children first, in windows; numbers of events keep no holes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.adapters.sql.columns import MICROSECOND
from oah.core.model.artifact import output_key, recording_key
from oah.core.model.ids import RunId, SessionId, WorkerId
from oah.core.model.run import RunStatus
from oah.core.policy.retention import Aged, Rules, plan
from oah.errors import Broken, Conflict, NotFound, Unavailable
from oah.ports.dead_letters import LetterFilter
from oah.ports.retention import Mark
from oah.ports.store import CommandKind, RecoveryAction
from oah.ports.telemetry import NullTelemetry
from oah.services.prune import Prune
from oah.services.stream import Subject, lost_before
from tests.support.store_clerk import Clerk

S1 = SessionId("s1")
DAY = timedelta(days=1)
RULES = Rules()


def age(clerk: Clerk, by: timedelta, *columns: str, where: str = "1 = 1") -> None:
    """Let moments (``table.column``) be older."""
    given: Any = by if clerk.url.startswith("postgres") else by // MICROSECOND
    for name in columns:
        table, column = name.split(".")
        clerk.behind.query(f"UPDATE {table} SET {column} = {column} - ? WHERE {where}", given)


def age_all(clerk: Clerk, by: timedelta) -> None:
    """Everything that has happened so far."""
    age(
        clerk,
        by,
        *("runs.ended_at", "runs.created_at", "run_events.at", "run_attempts.ended_at", "sessions.closed_at"),
        *("dead_letters.last_at", "audit.at", "idempotency_keys.created_at", "workers.started_at"),
        *("worker_commands.at", "jobs.created_at", "jobs.ended_at"),
    )


def done(clerk: Clerk, run: str, session: str = "s1", **more: Any) -> str:
    """A run that completes."""
    clerk.submit(session, run)
    clerk.settle(clerk.start(session), **more)
    return run


def count(clerk: Clerk, table: str, where: str = "1 = 1") -> int:
    return int(clerk.behind.query(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs")


def prune(clerk: Clerk, blobs: DirectoryBlobs, rules: Rules = RULES, **more: Any) -> dict[Aged, int]:
    """Whole laps; only what was not nothing."""
    keeper = Prune(clerk.store, blobs, more.pop("registry", None), NullTelemetry(), rules, windows=None, **more)
    return {what: number for what, number in keeper().items() if number}


def test_a_run_goes_with_everything_that_belongs_to_it_and_nothing_else(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    clerk.session("s2")
    done(clerk, "old")
    clerk.submit("s2", "again")
    clerk.start("s2")
    clerk.recover(clerk.owner("s2"))
    clerk.settle(clerk.start("s2"))
    age_all(clerk, 31 * DAY)
    done(clerk, "young")
    clerk.submit(run_id="waits")
    assert prune(clerk, blobs) == {Aged.EVENTS: 9, Aged.RUNS: 2}
    for run in ("old", "again"):
        with pytest.raises(NotFound):
            clerk.run(run)
        for table in ("run_events", "run_steps", "run_attempts"):
            assert count(clerk, table, f"run_id = '{run}'") == 0
    assert clerk.run("young").status is RunStatus.COMPLETED
    assert clerk.run("waits").status is RunStatus.QUEUED
    assert clerk.events() == ["run.queued", "run.started", "run.completed", "run.queued"]
    assert prune(clerk, blobs) == {}


def test_events_go_before_their_run(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    done(clerk, "a")
    age_all(clerk, 15 * DAY)
    assert prune(clerk, blobs) == {Aged.EVENTS: 3}
    assert clerk.run("a").result == "done"
    assert clerk.events() == []


def test_what_has_not_ended_keeps_its_events_and_all_after_them(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    done(clerk, "first")
    clerk.submit(run_id="long")
    started = clerk.start()
    clerk.submit(run_id="later", delay=90 * DAY)
    age_all(clerk, 60 * DAY)
    assert prune(clerk, blobs) == {Aged.EVENTS: 3, Aged.RUNS: 1}
    assert clerk.events() == ["run.queued", "run.started", "run.queued"]
    clerk.settle(started)
    assert prune(clerk, blobs) == {Aged.EVENTS: 2}, "up to the first event of the one that waits"
    numbers = [event.number for event in clerk.store.events(S1, after=0, limit=10)]
    assert numbers == [6, 7], "what is left has no gaps"
    assert clerk.run("later").status is RunStatus.QUEUED
    clerk.store.cancel(RunId("later"), None, by="someone")
    age_all(clerk, 60 * DAY)
    assert prune(clerk, blobs)[Aged.RUNS] == 2
    assert clerk.events() == []


def test_a_stream_that_asks_for_what_is_gone_is_told(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    done(clerk, "a")
    age_all(clerk, 15 * DAY)
    done(clerk, "b")
    prune(clerk, blobs)
    seen = clerk.store.session(S1, None).event_seq
    assert seen == 6
    about = Subject(S1, None, seen)
    assert [lost_before(clerk.store, about, after=number) for number in (0, 1, 2, 3, 4, 6)] == [
        3,
        3,
        3,
        None,
        None,
        None,
    ]
    assert [e.number for e in clerk.store.events_since({S1: 0}, limit=10)] == [4, 5, 6]
    age_all(clerk, 15 * DAY)
    prune(clerk, blobs)
    assert lost_before(clerk.store, about, after=2) == 6, "all are gone: begin behind the last"
    assert lost_before(clerk.store, about, after=6) is None


def test_a_dead_letter_keeps_its_run_until_it_is_redriven_purged_or_old(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for run in ("a", "b"):
        clerk.submit(run_id=run)
        clerk.start()
        clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    age_all(clerk, 40 * DAY)
    assert Aged.RUNS not in prune(clerk, blobs)
    assert {clerk.run(run).status for run in ("a", "b")} == {RunStatus.FAILED}
    clerk.store.purge_chunk(["dl_a.1"], None, by="ops")
    age(clerk, 15 * DAY, "run_events.at")
    assert prune(clerk, blobs)[Aged.RUNS] == 1
    with pytest.raises(NotFound):
        clerk.run("a")
    age_all(clerk, 60 * DAY)
    gone = prune(clerk, blobs)
    assert (gone[Aged.DEAD_LETTERS], gone[Aged.RUNS]) == (1, 1)
    assert clerk.store.dead_letters(LetterFilter()).items == ()


def test_a_parent_goes_after_its_children(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    clerk.session("child")
    done(clerk, "parent")
    clerk.submit("child", "c", parent_run_id=RunId("parent"))
    age_all(clerk, 40 * DAY)
    assert Aged.RUNS not in prune(clerk, blobs)
    clerk.settle(clerk.start("child"))
    age_all(clerk, 40 * DAY)
    assert prune(clerk, blobs)[Aged.RUNS] == 1, "the child; the parent was looked at before"
    assert prune(clerk, blobs)[Aged.RUNS] == 1


def test_blobs_go_first_and_a_death_in_between_leaves_nothing(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for key in ("rec/a", "out/a", "rec/b"):
        blobs.put(key, b"x")
    from oah.core.model.run import Outcome
    from oah.ports.store import Settlement
    from tests.support.store_clerk import fence_of

    for run in ("a", "b"):
        clerk.submit(run_id=run)
        outcome = Outcome(
            RunStatus.COMPLETED,
            "long",
            recording_blob=f"rec/{run}",
            result_blob="out/a" if run == "a" else None,
        )
        clerk.store.settle([Settlement(fence_of(clerk.start()), outcome)])
        if run == "a":
            age_all(clerk, 15 * DAY)
    blobs.delete("rec/a")  # as a pass that died between the file and the reference
    assert prune(clerk, blobs)[Aged.RECORDINGS] == 1
    assert clerk.store.attempts(RunId("a"))[0].recording_blob is None
    assert clerk.store.attempts(RunId("b"))[0].recording_blob == "rec/b"
    assert sorted(blobs.keys()) == ["out/a", "rec/b"]
    assert clerk.run("a").result_blob == "out/a", "results live as long as their run"
    age_all(clerk, 31 * DAY)
    gone = prune(clerk, blobs)
    assert (gone[Aged.RECORDINGS], gone[Aged.RUNS]) == (1, 2)
    assert list(blobs.keys()) == []


def test_what_no_row_names_goes_with_its_run(clerk: Clerk, blobs: DirectoryBlobs, tmp_path: Path) -> None:
    """A lost attempt's recording, the long answer of one that was tried again."""
    for run in ("old", "older"):
        done(clerk, run)
    age_all(clerk, 31 * DAY)
    done(clerk, "young")
    for run in ("old", "older", "young"):
        for key in (recording_key(run, 1), recording_key(run, 2), output_key(run, 1)):
            blobs.put(key, b"x")
    assert prune(clerk, blobs)[Aged.RUNS] == 2
    assert sorted(blobs.keys()) == ["outputs/young/1.txt", "recordings/young/1.cast", "recordings/young/2.cast"]
    assert sorted(path.name for path in (tmp_path / "blobs").glob("*/*")) == ["young", "young"], "no empty folder"


def test_a_store_of_blobs_that_is_away_costs_no_row(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    class Away(DirectoryBlobs):
        def delete(self, key: str) -> bool:
            raise Unavailable("away")

    done(clerk, "a")
    clerk.behind.query("UPDATE run_attempts SET recording_blob = 'rec/a'")
    age_all(clerk, 31 * DAY)
    with pytest.raises(Unavailable):
        prune(clerk, Away(blobs.root if hasattr(blobs, "root") else Path("/nonexistent")))
    assert clerk.store.attempts(RunId("a"))[0].recording_blob == "rec/a"
    assert prune(clerk, blobs)[Aged.RUNS] == 1


def test_keys_live_for_a_day_and_as_long_as_their_run_is_not_over(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for run in ("a", "b", "c"):
        clerk.submit(run_id=run, idempotency_key=f"key-{run}", request_hash="h")
    clerk.settle(clerk.start())
    age(clerk, 25 * timedelta(hours=1), "idempotency_keys.created_at", where="key <> 'key-b'")
    assert prune(clerk, blobs, Rules(runs=None)) == {Aged.IDEMPOTENCY_KEYS: 1}
    assert sorted(row[0] for row in clerk.behind.query("SELECT key FROM idempotency_keys")) == ["key-b", "key-c"]


def test_closed_sessions_go_when_nothing_of_them_is_left(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for name in ("closed", "young", "unused"):
        clerk.session(name)
    done(clerk, "a", "closed")
    done(clerk, "b")
    clerk.store.close_session(SessionId("closed"), None)
    clerk.store.close_session(SessionId("unused"), None)
    age_all(clerk, 31 * DAY)
    clerk.store.close_session(SessionId("young"), None)
    gone = prune(clerk, blobs)
    assert (gone[Aged.SESSIONS], gone[Aged.RUNS]) == (2, 2)
    assert sorted(row[0] for row in clerk.behind.query("SELECT id FROM sessions")) == ["s1", "young"]


def test_what_goes_by_age_alone(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    store = clerk.store
    for name in ("old", "alive", "owns"):
        store.record_worker(WorkerId(name), name, "here")
        store.command_worker(WorkerId(name), CommandKind.CORDON, by="ops")
    clerk.submit(run_id="a")
    clerk.start(worker="owns")
    for job in ("done", "open"):
        store.create_job(job, "redrive", workspace_id=None, arguments={}, total=1, by="ops")
    store.cancel_job("done", None, by="ops")
    clerk.behind.query("INSERT INTO job_items (job_id, number, subject, outcome) VALUES ('done', 1, 'x', 'redriven')")
    age_all(clerk, 100 * DAY)
    store.command_worker(WorkerId("young"), CommandKind.CORDON, by="ops")

    class Registry:
        def workers(self) -> list[Any]:
            return [type("Report", (), {"id": "alive"})()]

    gone = prune(clerk, blobs, registry=Registry())
    assert gone[Aged.AUDIT] >= 3
    assert (gone[Aged.JOBS], gone[Aged.COMMANDS], gone[Aged.WORKERS]) == (1, 3, 1)
    assert sorted(row[0] for row in clerk.behind.query("SELECT id FROM workers")) == ["alive", "owns"]
    assert [row[0] for row in clerk.behind.query("SELECT id FROM jobs")] == ["open"]
    assert count(clerk, "job_items") == 0
    assert count(clerk, "audit") == 1


def test_zero_keeps_for_ever(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    done(clerk, "a")
    age_all(clerk, 1_000 * DAY)
    kept = Rules(
        events=None,
        recordings=None,
        runs=None,
        dead_letters=None,
        audit=None,
        jobs=None,
        webhook_deliveries=None,
        workers=None,
    )
    assert prune(clerk, blobs, kept) == {}
    assert clerk.events() == ["run.queued", "run.started", "run.completed"]


def test_a_dry_run_counts_and_touches_nothing(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for number in range(4):
        done(clerk, f"r{number}")
    age_all(clerk, 31 * DAY)
    keeper = Prune(clerk.store, blobs, None, NullTelemetry(), RULES, window=3, windows=None)
    told = {what: number for what, number in keeper(dry_run=True).items() if number}
    assert told == {Aged.EVENTS: 12, Aged.RUNS: 4}
    assert len(clerk.events()) == 12
    assert {what: number for what, number in keeper().items() if number} == told


def test_windows_are_bounded_and_a_lap_goes_on_where_it_stopped(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for number in range(7):
        done(clerk, f"r{number}")
    clerk.submit("s1", "dead")
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    age(clerk, 15 * DAY, "run_events.at")
    prune(clerk, blobs)
    age_all(clerk, 31 * DAY)
    age(clerk, 31 * DAY, "runs.ended_at", where="id = 'dead'")  # the oldest, and it may not go
    keeper = Prune(clerk.store, blobs, None, NullTelemetry(), RULES, window=2, windows=1)
    went = [keeper()[Aged.RUNS] for _ in range(5)]
    assert went == [1, 2, 2, 2, 0], "what stays is walked past"
    assert clerk.run("dead").status is RunStatus.FAILED
    stopped = Prune(clerk.store, blobs, None, NullTelemetry(), RULES)
    assert stopped(lambda: False) == {plan(RULES)[0].what: 0}


def test_a_requeue_against_the_prune_of_its_run(clerk: Clerk, blobs: DirectoryBlobs) -> None:
    for number in range(12):
        run = done(clerk, f"r{number}")
        age_all(clerk, 31 * DAY)
        clerk.store.prune(Aged.EVENTS, 14 * DAY, after=None, limit=100)
        with ThreadPoolExecutor(2) as pool:
            pruned = pool.submit(clerk.store.prune_runs, [RunId(run)], 30 * DAY)
            requeued = pool.submit(_requeue, clerk, run)
        assert (pruned.result(), requeued.result()) in [(1, False), (0, True)]
        if requeued.result():
            assert clerk.run(run).status is RunStatus.QUEUED
            assert len(clerk.store.attempts(RunId(run))) == 1, "nothing of it has gone"
            clerk.settle(clerk.start())


def _requeue(clerk: Clerk, run: str) -> bool:
    try:
        clerk.store.requeue(RunId(run), None, by="ops")
    except (NotFound, Conflict):
        return False
    return True


def test_runs_and_recordings_have_ways_of_their_own(clerk: Clerk) -> None:
    with pytest.raises(Broken):
        clerk.store.prune(Aged.RUNS, DAY, after=None, limit=1)
    assert clerk.store.prune_runs([], DAY) == 0
    assert clerk.store.prune(Aged.EVENTS, DAY, after=Mark(("zzz",)), limit=1).mark is None


def test_the_plan_puts_children_first_and_bounds_what_hangs_together() -> None:
    order = [due.what for due in plan(RULES)]
    for before, after in (
        (Aged.DEAD_LETTERS, Aged.RUNS),
        (Aged.IDEMPOTENCY_KEYS, Aged.RUNS),
        (Aged.EVENTS, Aged.RUNS),
        (Aged.RECORDINGS, Aged.RUNS),
        (Aged.RUNS, Aged.SESSIONS),
    ):
        assert order.index(before) < order.index(after)
    ages = {due.what: due.age for due in plan(Rules(events=None, recordings=40 * DAY, runs=timedelta(hours=1)))}
    assert ages[Aged.RUNS] == ages[Aged.EVENTS] == ages[Aged.RECORDINGS] == DAY, "never before its keys"
    assert ages[Aged.IDEMPOTENCY_KEYS] == DAY
    assert Aged.RUNS not in {due.what for due in plan(Rules(runs=None))}
