"""What the outbox of webhooks promises: a delivery with its event or neither, once per webhook; a log of all tries."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import OnBusy, Outcome, RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.webhooks import TEST, Again, Delivered, GivenUp, subscription
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.dead_letters import LetterFilter, LetterKind, LetterState
from oah.ports.store import RecoveryAction, Settlement
from oah.ports.webhooks import DeliveryState, NewWebhook, Round, Tried, Webhook
from tests.support.store_clerk import Clerk, fence_of

SECOND = timedelta(seconds=1)
OTHER = WorkspaceId("ws_other")


def webhook(clerk: Clerk, name: str = "wh_a", events: list[str] | None = None, **more: Any) -> Webhook:
    """A webhook of the default workspace."""
    values = {"workspace_id": DEFAULT_WORKSPACE, "url": "https://example.org/x", "secret": "whsec_x", **more}
    return clerk.store.create_webhook(
        NewWebhook(id=name, events=subscription(events), timeout=10 * SECOND, by="someone", **values)
    )


def told(clerk: Clerk, name: str = "wh_a") -> list[tuple[str, str | None]]:
    """Type and run of what it is told, oldest first."""
    found = clerk.store.deliveries(name, None, limit=1_000).items
    return [(each.type, each.run_id) for each in sorted(found, key=lambda each: (each.session_id or "", each.number))]


def take(clerk: Clerk, name: str = "wh_a", *, limit: int = 16, hold: timedelta = 30 * SECOND) -> Round:
    return clerk.store.take_deliveries(name, limit=limit, hold=hold)


def end(clerk: Clerk, found: Round, verdict: Any, *, off_after: int = 100, **entry: Any) -> bool:
    tried = [Tried(sending=each, verdict=verdict, entry=entry) for each in found.sendings]
    return clerk.store.end_deliveries(found.webhook_id, tried, pause=60 * SECOND, off_after=off_after)


def due(clerk: Clerk, delivery: str) -> None:
    """Let it be due now, and its webhook be asked."""
    clerk.behind.query("UPDATE webhook_deliveries SET next_at = created_at WHERE id = ?", delivery)
    clerk.behind.query("UPDATE webhooks SET not_before = NULL")


def end_run(clerk: Clerk, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> None:
    clerk.submit(run_id=run_id)
    clerk.settle(clerk.start(), status)


def test_every_end_of_a_run_is_told_once(clerk: Clerk) -> None:
    webhook(clerk)
    for status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.TIMED_OUT, RunStatus.CANCELLED):
        end_run(clerk, f"r-{status}", status)
    clerk.submit(run_id="removed")
    clerk.store.cancel(RunId("removed"), None, by="someone")
    clerk.submit(run_id="released")
    start = clerk.start()
    clerk.store.release([fence_of(start)])
    start = clerk.start()
    clerk.store.cancel(RunId("released"), None, by="someone")
    clerk.store.release([fence_of(start)])
    clerk.submit(run_id="lost")
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    assert told(clerk) == [
        ("run.completed", "r-completed"),
        ("run.failed", "r-failed"),
        ("run.timed_out", "r-timed_out"),
        ("run.cancelled", "r-cancelled"),
        ("run.cancelled", "removed"),
        ("run.cancelled", "released"),
        ("run.quarantined", "lost"),
        ("dead_letter.added", "lost"),
        ("run.failed", "lost"),
    ]
    clerk.audit()


def test_what_ends_nothing_is_told_to_who_asked_for_it(clerk: Clerk) -> None:
    webhook(clerk, events=["run.*", "dead_letter.*"])
    clerk.submit(run_id="a")
    clerk.start()
    clerk.recover(clerk.owner())
    start = clerk.start()
    clerk.submit(run_id="b", on_busy=OnBusy.ROLLBACK)
    clerk.settle(start, RunStatus.CANCELLED)
    clerk.settle(clerk.start(), RunStatus.FAILED)
    clerk.submit(run_id="c")
    clerk.start()
    clerk.recover(clerk.owner(), RecoveryAction.QUARANTINE)
    clerk.store.requeue(RunId("c"), None, by="someone")
    assert told(clerk) == [
        ("run.recovered", "a"),
        ("run.voided", "a"),
        ("run.cancelled", "a"),
        ("run.failed", "b"),
        ("run.quarantined", "c"),
        ("dead_letter.added", "c"),
        ("run.failed", "c"),
        ("dead_letter.redriven", "c"),
    ]
    clerk.audit()


def test_only_what_was_asked_for_is_told_and_only_to_who_is_there(clerk: Clerk) -> None:
    webhook(clerk, "wh_failed", ["run.failed"])
    webhook(clerk, "wh_group", ["run.*"])
    webhook(clerk, "wh_letters", ["dead_letter.*"])
    off = webhook(clerk, "wh_off")
    clerk.store.update_webhook(off.id, None, {"active": False}, by="someone")
    clerk.store.create_workspace(OTHER, "other", weight=1, max_active_runs=None, max_queued_runs=None)
    webhook(clerk, "wh_other", workspace_id=OTHER)
    end_run(clerk, "a")
    end_run(clerk, "b", RunStatus.FAILED)
    webhook(clerk, "wh_late")
    assert told(clerk, "wh_failed") == [("run.failed", "b")]
    assert told(clerk, "wh_group") == [("run.completed", "a"), ("run.failed", "b")], "and nothing that is not over"
    assert told(clerk, "wh_letters") == told(clerk, "wh_off") == told(clerk, "wh_other") == told(clerk, "wh_late") == []
    assert clerk.store.due_webhooks(limit=10) == ["wh_failed", "wh_group"]


def test_a_settle_that_is_undone_tells_nobody(clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook(clerk)
    clerk.submit(run_id="a")
    start = clerk.start()
    seen = []
    with clerk.store._database.hot() as sql:  # type: ignore[attr-defined]
        statements = type(sql)

    def power_cut(sql: Any, sessions: Any) -> None:
        seen.extend(sql._cursor.execute("SELECT type FROM webhook_deliveries").fetchall())
        raise RuntimeError("power cut")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(statements, "look", power_cut)
        clerk.settle(start)
    assert seen == [("run.completed",)], "it was written in the transaction of the event"
    assert told(clerk) == []
    assert clerk.run("a").status is RunStatus.RUNNING
    clerk.settle(start)
    assert told(clerk) == [("run.completed", "a")]


def test_telling_twice_tells_once(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    with clerk.store._database.hot() as sql:  # type: ignore[attr-defined]
        sql.tell_webhooks([("s1", number) for number in range(1, 4)] * 2)
        sql.tell_webhooks([])
    assert told(clerk) == [("run.completed", "a")]


def test_a_batch_tells_each_of_its_sessions(clerk: Clerk) -> None:
    webhook(clerk)
    names = [f"s{number:02d}" for number in range(20)]
    for name in names:
        clerk.session(name)
        clerk.submit(name, f"run-{name}")
    starts = [clerk.start(name) for name in names]
    clerk.store.settle([Settlement(fence_of(each), Outcome(RunStatus.COMPLETED)) for each in starts])
    assert told(clerk) == [("run.completed", f"run-{name}") for name in names]


def test_the_body_says_what_happened_and_stays(clerk: Clerk) -> None:
    webhook(clerk)
    clerk.submit(run_id="a", metadata={"ticket": 7}, input="secret input")
    clerk.settle(clerk.start(), RunStatus.FAILED, output="secret output")
    clerk.store.requeue(RunId("a"), None, by="someone")
    found = take(clerk)
    [sending] = found.sendings
    body = json.loads(sending.body)
    assert (body["id"], body["type"], body["workspace_id"]) == (sending.id, "run.failed", DEFAULT_WORKSPACE)
    assert (body["session_id"], body["number"], body["session"]["agent"]) == ("s1", 3, "shell")
    run = body["run"]
    assert (run["id"], run["status"], run["attempt"], run["metadata"]) == ("a", "failed", 1, {"ticket": 7})
    assert run["error"] == {"code": "agent_failed", "message": "it broke"}
    assert run["started_at"] <= run["ended_at"] == body["created_at"]
    assert "secret" not in sending.body
    end(clerk, found, Again(SECOND))
    clerk.behind.query("DELETE FROM run_events")
    due(clerk, sending.id)
    assert take(clerk).sendings[0].body == sending.body, "a receiver hears the same each time"


def test_a_delivery_is_taken_by_one_until_its_time_is_up(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    first = take(clerk)
    assert [each.tries for each in first.sendings] == [1]
    again = take(clerk)
    assert again.sendings == ()
    assert again.wait is not None
    assert 35 * SECOND < again.wait <= 40 * SECOND, "its time-out and the hold"
    assert clerk.store.due_webhooks(limit=10) == []
    due(clerk, first.sendings[0].id)
    assert clerk.store.due_webhooks(limit=10) == ["wh_a"]
    second = take(clerk)
    assert [each.tries for each in second.sendings] == [2]
    end(clerk, first, Delivered())
    assert clerk.store.delivery("wh_a", first.sendings[0].id, None).state is DeliveryState.PENDING, (
        "no word of the past"
    )
    end(clerk, second, Delivered(), status=204)
    found = clerk.store.delivery("wh_a", first.sendings[0].id, None)
    assert found.state is DeliveryState.DELIVERED
    assert [(entry["try"], entry["outcome"]) for entry in found.log] == [(1, "interrupted"), (2, "delivered")]
    assert found.log[1]["status"] == 204
    assert take(clerk).wait is None


def test_rounds_that_fail_are_followed_by_pauses_and_single_tries(clerk: Clerk) -> None:
    webhook(clerk)
    for name in "abc":
        end_run(clerk, name)
    found = take(clerk)
    assert len(found.sendings) == 3
    end(clerk, found, Again(timedelta(0)), error="refused")
    paused = take(clerk)
    assert paused.sendings == ()
    assert paused.wait is not None
    assert 55 * SECOND < paused.wait <= 60 * SECOND
    assert clerk.store.due_webhooks(limit=10) == []
    due(clerk, found.sendings[0].id)
    probe = take(clerk)
    assert len(probe.sendings) == 1
    assert probe.failures == 1
    end(clerk, probe, Delivered())
    assert len(take(clerk).sendings) == 2, "it is back: all that wait"
    assert clerk.store.webhook("wh_a", None).failures == 0


def test_what_is_given_up_becomes_a_dead_letter_that_is_told_to_nobody(clerk: Clerk) -> None:
    webhook(clerk, events=["run.*", "dead_letter.*"])
    end_run(clerk, "a")
    found = take(clerk)
    end(clerk, found, GivenUp("exhausted"), error="refused")
    delivery = clerk.store.delivery("wh_a", found.sendings[0].id, None)
    assert delivery.state is DeliveryState.FAILED
    [letter] = clerk.store.dead_letters(LetterFilter(kind=LetterKind.OUTBOX)).items
    assert "https://" not in f"{letter.reason} {letter.payload}", (
        "addresses carry secrets; who reads letters sees the host"
    )
    assert (letter.subject, letter.session_id, letter.code) == (delivery.id, "s1", "webhook_exhausted")
    assert clerk.store.dead_letter(letter.id, None).payload["body"] == found.sendings[0].body
    assert clerk.events()[-1] == "dead_letter.added"
    assert told(clerk) == [("run.completed", "a")], "or it would go on for ever"
    clerk.audit()

    again = clerk.store.redeliver("wh_a", delivery.id, None, by="someone")
    assert (again.state, again.tries) == (DeliveryState.PENDING, 0)
    assert clerk.store.dead_letter(letter.id, None).state is LetterState.REDRIVEN
    due(clerk, delivery.id)
    end(clerk, take(clerk), GivenUp("exhausted"))
    assert len(clerk.store.dead_letters(LetterFilter(kind=LetterKind.OUTBOX, state=LetterState.DEAD)).items) == 1
    clerk.audit()


def test_a_dead_letter_of_a_delivery_is_redriven_as_itself(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    found = take(clerk)
    end(clerk, found, GivenUp("exhausted"))
    [letter] = clerk.store.dead_letters(LetterFilter(kind=LetterKind.OUTBOX)).items
    clerk.store.update_webhook("wh_a", None, {"active": False}, by="someone")
    [refused] = clerk.store.redrive_chunk([letter.id], None, by="someone")
    assert refused.code == "webhook_inactive"
    assert clerk.store.dead_letter(letter.id, None).state is LetterState.DEAD
    clerk.store.update_webhook("wh_a", None, {"active": True}, by="someone")
    [done] = clerk.store.redrive_chunk([letter.id], None, by="someone")
    assert done.code is None
    [again] = take(clerk).sendings
    assert (again.id, again.body, again.tries) == (found.sendings[0].id, found.sendings[0].body, 1)
    [twice] = clerk.store.redrive_chunk([letter.id], None, by="someone")
    assert twice.code == "already_redriven"
    clerk.audit()


def test_a_redelivery_has_the_same_id_and_body(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    first = take(clerk)
    end(clerk, first, Delivered())
    clerk.store.redeliver("wh_a", first.sendings[0].id, None, by="someone")
    second = take(clerk)
    assert [(each.id, each.body) for each in second.sendings] == [(each.id, each.body) for each in first.sendings]
    clerk.store.redeliver("wh_a", first.sendings[0].id, None, by="someone")
    end(clerk, second, Delivered())
    assert clerk.store.delivery("wh_a", first.sendings[0].id, None).state is DeliveryState.PENDING, (
        "asked for meanwhile"
    )


@pytest.mark.parametrize(("verdict", "reason"), [(GivenUp("gone", gone=True), "gone"), (Again(SECOND), "failing")])
def test_a_receiver_that_is_gone_is_switched_off(clerk: Clerk, verdict: Any, reason: str) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    end_run(clerk, "b")
    assert end(clerk, take(clerk, limit=1), verdict, off_after=2) == (reason == "gone")
    if reason == "failing":
        clerk.behind.query("UPDATE webhooks SET not_before = NULL")
        assert end(clerk, take(clerk), verdict, off_after=2)
    found = clerk.store.webhook("wh_a", None)
    assert (found.active, found.off_reason) == (False, reason)
    rows = clerk.behind.query("SELECT actor, subject FROM audit WHERE action = 'webhook.deactivated'")
    assert rows == [("webhooks", "wh_a")]
    end_run(clerk, "c")
    assert len(told(clerk)) == 2, "nothing new is told"
    assert take(clerk).wait is None
    with pytest.raises(Conflict):
        clerk.store.redeliver("wh_a", clerk.store.deliveries("wh_a", None).items[0].id, None, by="someone")
    with pytest.raises(Conflict):
        clerk.store.add_test_delivery("wh_a", None, by="someone")
    on = clerk.store.update_webhook("wh_a", None, {"active": True}, by="someone")
    assert (on.active, on.failures, on.off_reason, on.not_before) == (True, 0, None, None)
    assert clerk.store.due_webhooks(limit=10) == ["wh_a"], "what was pending goes on"


def test_a_test_delivery_counts_for_nothing(clerk: Clerk) -> None:
    webhook(clerk)
    first, second = (clerk.store.add_test_delivery("wh_a", None, by="someone") for _ in range(2))
    assert first.id != second.id
    assert (first.type, first.session_id) == (TEST, None)
    found = take(clerk)
    assert json.loads(found.sendings[0].body)["type"] == TEST
    assert not end(clerk, found, GivenUp("test_failed"), off_after=1)
    assert clerk.store.delivery("wh_a", first.id, None).state is DeliveryState.FAILED
    assert clerk.store.dead_letters(LetterFilter(kind=LetterKind.OUTBOX)).items == ()
    assert clerk.store.webhook("wh_a", None).active


def test_webhooks_are_kept_listed_changed_and_deleted(clerk: Clerk) -> None:
    made = webhook(clerk, description="ours")
    assert (made.events, made.timeout, made.active, made.created_by) == (
        subscription(None),
        10 * SECOND,
        True,
        "someone",
    )
    changed = clerk.store.update_webhook(
        "wh_a", None, {"url": "https://example.org/y", "events": ("run.*",), "timeout": SECOND, "secret": "s"}, by="x"
    )
    assert (changed.url, changed.events, changed.timeout) == ("https://example.org/y", ("run.*",), SECOND)
    with pytest.raises(InvalidRequest):
        clerk.store.update_webhook("wh_a", None, {"workspace_id": "x"}, by="x")
    for name in ("wh_b", "wh_c"):
        webhook(clerk, name)
    page = clerk.store.webhooks(None, limit=2)
    rest = clerk.store.webhooks(DEFAULT_WORKSPACE, cursor=page.next_cursor, limit=2)
    assert [each.id for each in (*page.items, *rest.items)] == ["wh_c", "wh_b", "wh_a"]
    end_run(clerk, "a")
    taken = take(clerk)
    clerk.store.delete_webhook("wh_a", None, by="x")
    assert take(clerk) == Round(webhook_id="wh_a")
    assert not end(clerk, taken, Delivered()), "what is on its way finds nothing any more"
    for look in (clerk.store.webhook, clerk.store.deliveries):
        with pytest.raises(NotFound):
            look("wh_a", None)
    assert clerk.behind.query("SELECT count(*) FROM webhook_deliveries WHERE webhook_id = 'wh_a'") == [(0,)]
    actions = [row[0] for row in clerk.behind.query("SELECT action FROM audit WHERE subject = 'wh_a' ORDER BY id")]
    assert actions == ["webhook.created", "webhook.changed", "webhook.deleted"]
    with pytest.raises(NotFound):
        webhook(clerk, "wh_d", workspace_id=WorkspaceId("nowhere"))


def test_another_workspaces_webhooks_are_not_there(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    [delivery] = clerk.store.deliveries("wh_a", DEFAULT_WORKSPACE).items
    assert clerk.store.webhooks(OTHER).items == ()
    for call in (
        lambda: clerk.store.webhook("wh_a", OTHER),
        lambda: clerk.store.update_webhook("wh_a", OTHER, {"active": False}, by="x"),
        lambda: clerk.store.delete_webhook("wh_a", OTHER, by="x"),
        lambda: clerk.store.deliveries("wh_a", OTHER),
        lambda: clerk.store.delivery("wh_a", delivery.id, OTHER),
        lambda: clerk.store.redeliver("wh_a", delivery.id, OTHER, by="x"),
        lambda: clerk.store.add_test_delivery("wh_a", OTHER, by="x"),
        lambda: clerk.store.delivery("wh_b", delivery.id, None),
    ):
        with pytest.raises(NotFound):
            call()
    assert clerk.store.webhook("wh_a", None).active
    assert clerk.store.session(SessionId("s1"), None).id == "s1"


def test_the_log_is_bounded(clerk: Clerk) -> None:
    webhook(clerk)
    end_run(clerk, "a")
    for _ in range(40):
        found = take(clerk)
        end(clerk, found, Again(timedelta(0)))
        due(clerk, found.sendings[0].id)
    log = clerk.store.delivery("wh_a", found.sendings[0].id, None).log
    assert [entry["try"] for entry in log] == list(range(9, 41))


def test_many_settle_deliver_and_change_at_once(clerk: Clerk) -> None:
    """Nobody waits for each other in a circle, and each delivery is tried by one at a time."""
    names = [f"p{number}" for number in range(4)]
    for name in names:
        clerk.session(name)
    for name in ("wh_a", "wh_b", "wh_gone"):
        webhook(clerk, name)
    sent: Counter[tuple[str, int]] = Counter()
    ended = threading.Event()

    def work(name: str) -> None:
        for number in range(10):
            clerk.submit(name, f"{name}.{number}")
            clerk.settle(clerk.start(name), RunStatus.FAILED if number % 2 else RunStatus.COMPLETED)

    def deliver(name: str) -> None:
        while True:
            last = ended.is_set()
            found = take(clerk, name, limit=3)
            if not found.sendings:
                if last:
                    return
                ended.wait(0.02)
                continue
            sent.update((each.id, each.tries) for each in found.sendings)
            given_up = any(each.type == "run.failed" for each in found.sendings)
            clerk.store.end_deliveries(
                name,
                [Tried(sending=each, verdict=GivenUp("x") if given_up else Delivered()) for each in found.sendings],
                pause=timedelta(0),
                off_after=1_000,
            )

    def change() -> None:
        for number in range(10):
            clerk.store.update_webhook("wh_b", None, {"description": str(number)}, by="someone")
            for delivery in clerk.store.deliveries("wh_a", None, state=DeliveryState.FAILED, limit=2).items:
                clerk.store.redeliver("wh_a", delivery.id, None, by="someone")
        clerk.store.delete_webhook("wh_gone", None, by="someone")

    with ThreadPoolExecutor(12) as threads:
        delivering = [threads.submit(deliver, name) for name in ("wh_a", "wh_a", "wh_b", "wh_b", "wh_gone")]
        working = [threads.submit(work, name) for name in names]
        changing = threads.submit(change)
        for each in (*working, changing):
            each.result(60)
        ended.set()
        for each in delivering:
            each.result(60)
    for name in ("wh_a", "wh_b"):
        found = clerk.store.deliveries(name, None, limit=1_000).items
        assert len(found) == 40
        assert not [each for each in found if each.state is DeliveryState.PENDING]
    assert {each.webhook_id for each in clerk.store.deliveries("wh_b", None, limit=1_000).items} == {"wh_b"}
    b = {each.id for each in clerk.store.deliveries("wh_b", None, limit=1_000).items}
    assert {sent[delivery, 1] for delivery in b} == {1}, "one try each"
    clerk.audit()
