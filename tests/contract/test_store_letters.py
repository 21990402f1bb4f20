"""What dead letters promise: written with the failure, whole; bounded; redriven once, whoever asks how often."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from oah.adapters.sql.store import open_store
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import RunStatus
from oah.errors import Conflict, InvalidRequest, LeaseError, NotFound
from oah.ports.dead_letters import LetterFilter, LetterKind, LetterState, NewLetter
from oah.ports.jobs import JobFence
from oah.ports.store import RecoveryAction
from oah.ports.telemetry import NullTelemetry
from tests.support.store_clerk import Clerk

S1 = SessionId("s1")
DEFAULT = WorkspaceId("default")


def quarantine(clerk: Clerk, run: str | None = None, session: str = "s1", **more: Any) -> str:
    """Submit, start, lose its worker for the last time. The letter's id."""
    run = clerk.submit(session, run, **more).id
    return fail_again(clerk, run, session)


def fail_again(clerk: Clerk, run: str, session: str = "s1") -> str:
    started = clerk.start(session)
    assert started.run.id == run
    assert clerk.recover(clerk.owner(session), RecoveryAction.QUARANTINE).status is RunStatus.FAILED
    return f"dl_{run}.{started.run.attempt}"


def letter(number: int, **more: Any) -> NewLetter:
    given = {
        "id": f"dl_{number}",
        "workspace_id": DEFAULT,
        "kind": LetterKind.MESSAGE,
        "subject": f"m{number}",
        "code": "undeliverable",
        "reason": "nobody reads",
        **more,
    }
    return NewLetter(**given)


def dead(clerk: Clerk, **where: Any) -> list[str]:
    return [each.id for each in clerk.store.dead_letters(LetterFilter(state=LetterState.DEAD, **where)).items]


def test_what_is_done_to_poison_is_about_the_deployment(clerk: Clerk) -> None:
    clerk.store.add_dead_letter(letter(1, kind=LetterKind.POISON, workspace_id=WorkspaceId(""), payload_bytes=b"x"))
    [refused] = clerk.store.redrive_chunk(["dl_1"], None, by="ops")
    assert (refused.code, refused.hint) == ("not_redrivable", "look at it (oah dead-letter show), then purge it")
    clerk.store.purge_chunk(["dl_1"], None, by="ops")
    quarantine(clerk, "a")
    clerk.store.purge_chunk(["dl_a.1"], None, by="ops")
    assert clerk.behind.query("SELECT workspace_id FROM audit ORDER BY id") == [(None,), ("default",)]


def audited(clerk: Clerk) -> list[tuple[Any, ...]]:
    return clerk.behind.query("SELECT actor, action, subject FROM audit WHERE action LIKE 'dead_letter.%' ORDER BY id")


def test_a_quarantined_run_is_buried_whole(clerk: Clerk) -> None:
    name = quarantine(
        clerk, "a", input="the whole task", metadata={"ticket": 7}, timeout=timedelta(seconds=90), max_retries=2
    )
    found = clerk.store.dead_letter(name, DEFAULT)
    assert (found.kind, found.subject, found.session_id, found.state) == (LetterKind.RUN, "a", S1, LetterState.DEAD)
    assert (found.code, found.reason, found.attempts) == ("worker_lost", "worker_lost", 1)
    payload = found.payload
    assert (payload["input"], payload["metadata"]) == ("the whole task", {"ticket": 7})
    assert (payload["session"]["agent"], payload["session"]["lane"]) == ("shell", "default/shell")
    assert (payload["limits"]["timeout_seconds"], payload["limits"]["max_retries"]) == (90.0, 2)
    assert payload["recovery"]["state"] == "quarantined"
    assert found.first_at <= found.last_at
    [listed] = clerk.store.dead_letters(LetterFilter()).items
    assert (listed.id, listed.payload, listed.reason) == (name, {}, "worker_lost")
    event = clerk.store.events(S1, after=0, limit=100)[-2]
    assert (event.type, event.run_id, event.data["dead_letter_id"]) == ("dead_letter.added", "a", name)
    clerk.audit()


def test_what_only_failed_is_no_dead_letter(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.FAIL)
    clerk.submit(run_id="b")
    clerk.settle(clerk.start(), RunStatus.FAILED)
    assert clerk.store.dead_letters(LetterFilter()).items == ()


def test_a_redrive_queues_the_same_run_and_a_second_one_is_refused(clerk: Clerk) -> None:
    name = quarantine(clerk, "a")
    [done] = clerk.store.redrive_chunk([name], DEFAULT, by="ops")
    assert done.code is None and done.accepted is not None
    run = clerk.run("a")
    assert (run.status, run.attempt, run.recovery_attempts) == (RunStatus.QUEUED, 1, 0)
    assert run.recovery is not None and run.recovery["total"]["recovery_attempts"] == 1
    found = clerk.store.dead_letter(name, None)
    assert (found.state, found.redriven_by) == (LetterState.REDRIVEN, "ops") and found.redriven_at is not None
    assert clerk.events()[-2:] == ["dead_letter.redriven", "run.queued"]
    assert done.accepted.event_number == len(clerk.events())
    [again] = clerk.store.redrive_chunk([name], DEFAULT, by="ops")
    assert (again.code, again.accepted) == ("already_redriven", None)
    assert audited(clerk) == [("ops", "dead_letter.redriven", name)]
    clerk.audit()


def test_a_requeue_by_hand_ends_the_letter_too(clerk: Clerk) -> None:
    name = quarantine(clerk, "a")
    clerk.store.requeue(RunId("a"), DEFAULT, by="someone")
    found = clerk.store.dead_letter(name, None)
    assert (found.state, found.redriven_by) == (LetterState.REDRIVEN, "someone")
    assert clerk.store.redrive_chunk([name], DEFAULT, by="ops")[0].code == "already_redriven"
    assert clerk.events().count("run.queued") == 2


def test_one_that_dies_again_gets_a_new_letter_with_its_whole_history(clerk: Clerk) -> None:
    first = quarantine(clerk, "a")
    before = clerk.store.dead_letter(first, None)
    clerk.store.redrive_chunk([first], DEFAULT, by="ops")
    second = fail_again(clerk, "a")
    after = clerk.store.dead_letter(second, None)
    assert second != first
    assert (after.attempts, after.first_at) == (2, before.first_at)
    assert after.last_at > before.last_at
    assert clerk.store.dead_letter(first, None).state is LetterState.REDRIVEN
    assert [done.code for done in clerk.store.redrive_chunk([first, second], None, by="ops")] == [
        "already_redriven",
        None,
    ]
    assert clerk.run("a").status is RunStatus.QUEUED
    clerk.audit()


def test_many_are_redriven_each_by_itself(clerk: Clerk) -> None:
    clerk.session("s2")
    clerk.session("closed")
    names = [quarantine(clerk, "a"), quarantine(clerk, "b", "s2"), quarantine(clerk, "c", "closed")]
    clerk.store.close_session(SessionId("closed"), None)
    clerk.store.add_dead_letter(letter(1, kind=LetterKind.POISON, payload_bytes=b"\x00\xff"))
    done = clerk.store.redrive_chunk([*names, "dl_1", "dl_nothing", names[0]], None, by="ops")
    assert [(each.id, each.code) for each in done] == [
        (names[0], None),
        (names[1], None),
        (names[2], "session_closed"),
        ("dl_1", "not_redrivable"),
        ("dl_nothing", "not_found"),
    ]
    assert sorted(dead(clerk)) == sorted([names[2], "dl_1"])
    clerk.audit()


def test_two_redrives_and_a_requeue_at_once_queue_it_once(clerk: Clerk, store_url: str) -> None:
    other = open_store(store_url)
    for turn in range(5):
        name = quarantine(clerk, f"a{turn}")
        with ThreadPoolExecutor(3) as pool:
            redrives = [pool.submit(each.redrive_chunk, [name], None, by="ops") for each in (clerk.store, other)]
            requeue = pool.submit(_requeue, other, f"a{turn}")
        codes = [*(str(each.result()[0].code) for each in redrives), requeue.result()]
        assert sum(code in ("None", "requeued") for code in codes) == 1, codes
        assert clerk.events().count("run.queued") == 2 * (turn + 1)
        clerk.store.cancel(RunId(f"a{turn}"), None, by="test")
    other.close()
    clerk.audit()


def _requeue(store: Any, run: str) -> str:
    try:
        store.requeue(RunId(run), None, by="hand")
    except Conflict as error:
        return error.code
    return "requeued"


def test_a_purge_deletes_the_letter_and_nothing_else(clerk: Clerk) -> None:
    name = quarantine(clerk, "a")
    assert clerk.store.purge_chunk([name], WorkspaceId("other"), by="thief")[0].code == "not_found"
    [done] = clerk.store.purge_chunk([name], DEFAULT, by="ops")
    assert done.code is None
    with pytest.raises(NotFound):
        clerk.store.dead_letter(name, None)
    assert clerk.events()[-1] == "dead_letter.purged"
    assert clerk.run("a").status is RunStatus.FAILED
    assert audited(clerk) == [("ops", "dead_letter.purged", name)]
    assert clerk.store.purge_chunk([name], DEFAULT, by="ops")[0].code == "not_found"
    clerk.store.requeue(RunId("a"), None, by="ops")
    assert fail_again(clerk, "a") != name


def test_another_workspaces_letters_are_not_there(clerk: Clerk) -> None:
    other = WorkspaceId("ws2")
    clerk.store.create_workspace(other, "two", weight=1, max_active_runs=None, max_queued_runs=None)
    clerk.session("theirs", workspace=other)
    name = quarantine(clerk, "a", "theirs", workspace_id=other)
    with pytest.raises(NotFound):
        clerk.store.dead_letter(name, DEFAULT)
    assert dead(clerk, workspace_id=DEFAULT) == []
    assert dead(clerk, workspace_id=other) == [name]
    for act in (clerk.store.redrive_chunk, clerk.store.purge_chunk):
        assert act([name], DEFAULT, by="thief")[0].code == "not_found"
    assert clerk.run("a").status is RunStatus.FAILED


def test_filters_and_pages(clerk: Clerk) -> None:
    for number in range(7):
        session = S1 if number % 2 else None
        clerk.store.add_dead_letter(letter(number, session_id=session, code="odd" if number % 2 else "even"))
    name = quarantine(clerk, "a")
    assert dead(clerk, limit=3) == [name, "dl_6", "dl_5"]
    page = clerk.store.dead_letters(LetterFilter(limit=3))
    seen = [each.id for each in page.items]
    while page.next_cursor is not None:
        page = clerk.store.dead_letters(LetterFilter(limit=3, cursor=page.next_cursor))
        seen += [each.id for each in page.items]
    assert seen == [name, *(f"dl_{number}" for number in reversed(range(7)))]
    assert dead(clerk, kind=LetterKind.RUN) == [name]
    assert dead(clerk, code="odd") == ["dl_5", "dl_3", "dl_1"]
    assert dead(clerk, session_id=S1) == [name, "dl_5", "dl_3", "dl_1"]
    since = clerk.store.dead_letter("dl_5", None).last_at
    assert dead(clerk, since=since) == [name, "dl_6"]
    clerk.store.redrive_chunk([name], None, by="ops")
    assert name not in dead(clerk)
    assert [e.id for e in clerk.store.dead_letters(LetterFilter(state=LetterState.REDRIVEN)).items] == [name]


def test_a_subject_that_is_dead_gets_no_second_letter(clerk: Clerk) -> None:
    assert clerk.store.add_dead_letter(letter(1, attempts=3, failing_for=timedelta(hours=1)))
    first = clerk.store.dead_letter("dl_1", None)
    assert not clerk.store.add_dead_letter(letter(2, subject="m1", attempts=2, code="again"))
    found = clerk.store.dead_letter("dl_1", None)
    assert (found.attempts, found.code, found.first_at) == (5, "again", first.first_at)
    assert found.last_at > first.last_at > first.first_at + timedelta(minutes=59)
    assert clerk.store.dead_letters(LetterFilter()).items[0].id == "dl_1"


def test_bytes_are_kept_as_they_were_and_what_cannot_be_stored_is_refused(clerk: Clerk) -> None:
    value = bytes(range(256)) * 40
    clerk.store.add_dead_letter(letter(1, kind=LetterKind.POISON, workspace_id=WorkspaceId(""), payload_bytes=value))
    assert clerk.store.dead_letter("dl_1", None).payload_bytes == value
    with pytest.raises(NotFound):
        clerk.store.dead_letter("dl_1", DEFAULT)
    for bad in ({"subject": "\0"}, {"payload": {"x": "\0"}}, {"payload": {"x": float("nan")}}):
        with pytest.raises(InvalidRequest):
            clerk.store.add_dead_letter(letter(2, **bad))
    assert clerk.store.add_dead_letter(letter(3, reason="a NUL\0 in words"))
    assert clerk.store.redrive_chunk(["\0"], None, by="ops") == []


def test_the_501st_evicts_the_first_visibly(clerk: Clerk) -> None:
    run = quarantine(clerk, "a")
    for number in range(501):
        clerk.store.add_dead_letter(letter(number, session_id=S1))
    other = letter(1_000, workspace_id=WorkspaceId("ws2"))
    clerk.store.add_dead_letter(other)
    clerk.store.close()
    clerk.store = open_store(clerk.url)  # the bound is counted in SQL: a restart changes nothing
    [gone] = clerk.store.evict_dead_letters(keep=500, since=None)
    assert (gone.id, gone.session_id, gone.number) == ("dl_0", S1, len(clerk.events()))
    event = clerk.store.events(S1, after=gone.number - 1, limit=1)[0]
    assert (event.type, event.data["dead_letter_id"], event.data["keep"]) == ("dead_letter.evicted", "dl_0", 500)
    assert audited(clerk) == [("system", "dead_letter.evicted", "dl_0")]
    with pytest.raises(NotFound):
        clerk.store.dead_letter("dl_0", None)
    assert clerk.store.count_dead_letters()[LetterKind.MESSAGE] == 501, "500 here and one elsewhere"
    assert clerk.store.evict_dead_letters(keep=500, since=None) == []
    assert clerk.store.dead_letter(run, None).state is LetterState.DEAD, "kinds do not push each other out"


def test_redriven_letters_count_against_nobody(clerk: Clerk) -> None:
    names = [quarantine(clerk, f"a{n}") for n in range(3)]
    clerk.store.redrive_chunk(names[:1], None, by="ops")
    assert clerk.store.evict_dead_letters(keep=2, since=None) == []
    assert [each.id for each in clerk.store.evict_dead_letters(keep=1, since=timedelta(minutes=1))] == [names[1]]
    assert dead(clerk) == [names[2]]
    assert clerk.store.dead_letter(names[0], None).state is LetterState.REDRIVEN


def test_an_eviction_looks_only_where_something_was_written(clerk: Clerk) -> None:
    for number in range(3):
        clerk.store.add_dead_letter(letter(number))
    clerk.behind.query(
        "UPDATE dead_letters SET last_at = last_at - ?",
        timedelta(hours=1) if clerk.url.startswith("post") else 3_600_000_000,
    )
    assert clerk.store.evict_dead_letters(keep=1, since=timedelta(minutes=1)) == []
    clerk.store.add_dead_letter(letter(3))
    evicted = clerk.store.evict_dead_letters(keep=1, since=timedelta(minutes=1), limit=2)
    assert sorted(each.id for each in evicted) == ["dl_0", "dl_1"], "the rest is another pass's"
    assert [each.id for each in clerk.store.evict_dead_letters(keep=1, since=timedelta(minutes=1))] == ["dl_2"]


def test_two_evictions_at_once_take_each_letter_once(clerk: Clerk, store_url: str) -> None:
    other = open_store(store_url)
    sessions = [clerk.session(f"e{n}") for n in range(4)]
    for number in range(40):
        clerk.store.add_dead_letter(letter(number, session_id=sessions[number % 4]))
    with ThreadPoolExecutor(4) as pool:
        found = [
            pool.submit(each.evict_dead_letters, keep=10, since=None) for each in (clerk.store, other, clerk.store)
        ]
        adding = pool.submit(lambda: [other.add_dead_letter(letter(100 + n, session_id=sessions[n])) for n in range(4)])
    assert all(adding.result())
    evicted = [each.id for one in found for each in one.result()]
    evicted += [each.id for each in clerk.store.evict_dead_letters(keep=10, since=None)]
    assert len(evicted) == len(set(evicted)) == 34
    assert len(dead(clerk)) == 10
    events = [
        e.data["dead_letter_id"]
        for s in sessions
        for e in clerk.store.events(s, after=0, limit=100)
        if "evict" in e.type
    ]
    assert sorted(events) == sorted(evicted), "each is told once"
    other.close()
    clerk.audit()


def test_a_chunk_of_a_job_counts_with_what_it_did_or_not_at_all(clerk: Clerk) -> None:
    names = [quarantine(clerk, f"a{n}") for n in range(3)]
    clerk.store.create_job("job1", "redrive", workspace_id=DEFAULT, arguments={}, total=4, by="ops")
    with pytest.raises(LeaseError):
        clerk.store.redrive_chunk(names[:1], DEFAULT, by="ops", fence=JobFence("job1", "me"))
    assert clerk.run("a0").status is RunStatus.FAILED, "undone with the chunk"
    clerk.store.claim_job("job1", "me", stale_for=timedelta(seconds=30))
    fence = JobFence("job1", "me")
    clerk.store.redrive_chunk(names[:2], DEFAULT, by="ops", fence=fence)
    clerk.store.redrive_chunk([names[0], names[2]], DEFAULT, by="ops", fence=fence)
    job = clerk.store.job("job1", None)
    assert (job.done, job.failed, job.cursor) == (3, 1, names[2])
    assert [(item.number, item.subject, item.outcome) for item in clerk.store.job_items("job1")] == [
        (1, names[0], "redriven"),
        (2, names[1], "redriven"),
        (3, names[0], "already_redriven"),
        (4, names[2], "redriven"),
    ]


def test_letters_are_counted_once_they_are_committed(clerk: Clerk) -> None:
    counted: Counter[tuple[str, str]] = Counter()

    class Telemetry(NullTelemetry):
        def count(self, name: str, value: float = 1, **labels: str) -> None:
            if name == "oah_dead_letters_total":
                counted[labels["kind"], labels["what"]] += int(value)

    clerk.store.close()
    clerk.store = open_store(clerk.url, telemetry=Telemetry())
    names = [quarantine(clerk, f"a{n}") for n in range(4)]
    clerk.store.redrive_chunk([names[0], names[0], "dl_nothing"], None, by="ops")
    clerk.store.redrive_chunk([names[0]], None, by="ops")
    clerk.store.requeue(RunId("a1"), None, by="hand")
    clerk.store.purge_chunk([names[2]], None, by="ops")
    with pytest.raises(LeaseError):
        clerk.store.purge_chunk([names[3]], None, by="ops", fence=JobFence("no job", "me"))
    clerk.store.add_dead_letter(letter(1))
    clerk.store.add_dead_letter(letter(2, subject="m1"))
    clerk.store.add_dead_letter(letter(3))
    clerk.store.evict_dead_letters(keep=1, since=None)
    assert +counted == {
        ("run", "added"): 4,
        ("run", "redriven"): 2,
        ("run", "purged"): 1,
        ("message", "added"): 2,
        ("message", "evicted"): 1,
    }
