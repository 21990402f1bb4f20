"""What a submit does to a busy session: it waits, is refused, takes the place of the active run, or is said into it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from oah.core.model.ids import RunId, SessionId, WorkerId
from oah.core.model.run import OnBusy, Outcome, RunStatus, StopReason
from oah.errors import Conflict, LimitReached, NotFound
from oah.ports.commands import CommandKind, Delivery
from oah.ports.store import Accepted, Settlement, SubmitLimits
from tests.support.store_clerk import Clerk, accepted, fence_of

S1 = SessionId("s1")
STOPPING = (OnBusy.INTERRUPT, OnBusy.ROLLBACK)


def order(clerk: Clerk) -> list[str]:
    """Queued and active runs in the order in which they will run."""
    return [run.id for run in clerk.store.queue_of(S1, limit=100)]


@pytest.mark.parametrize("on_busy", STOPPING)
def test_the_active_run_is_asked_to_stop_and_the_new_one_is_next(clerk: Clerk, on_busy: OnBusy) -> None:
    for run_id in ("a", "b", "c"):
        clerk.submit(run_id=run_id)
    start = clerk.start(worker="w.9")
    answer = accepted(clerk.send(clerk.new(run_id="x", on_busy=on_busy, by="somebody"))[0])
    assert answer.stopped is not None
    assert (answer.stopped.run_id, answer.stopped.worker_id) == ("a", "w.9")
    assert order(clerk) == ["a", "x", "b", "c"]
    stopped = clerk.run("a")
    assert (stopped.status, stopped.stop_reason, stopped.cancel_requested_by, stopped.voided) == (
        RunStatus.RUNNING,
        StopReason(on_busy.value),
        "somebody",
        on_busy is OnBusy.ROLLBACK,
    )
    clerk.settle(start, RunStatus.CANCELLED, output="half")
    assert clerk.run("a").result == (None if on_busy is OnBusy.ROLLBACK else "half")
    assert [clerk.start().run.id for _ in range(1)] == ["x"]
    clerk.audit()


def test_a_later_interrupt_goes_before_an_earlier_one_and_waits_for_nobody_else(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    for run_id in ("b", "x", "y"):
        clerk.submit(run_id=run_id, on_busy=OnBusy.ENQUEUE if run_id == "b" else OnBusy.INTERRUPT)
    assert order(clerk) == ["a", "y", "x", "b"]
    assert len({run.position for run in clerk.store.queue_of(S1, limit=9)}) == 4
    clerk.audit()


@pytest.mark.parametrize("on_busy", STOPPING)
def test_with_nothing_active_it_is_next_all_the_same(clerk: Clerk, on_busy: OnBusy) -> None:
    clerk.submit(run_id="a")
    answer = accepted(clerk.send(clerk.new(run_id="x", on_busy=on_busy))[0])
    assert answer.stopped is None and order(clerk) == ["x", "a"]
    assert clerk.run("a").cancel_requested_at is None
    clerk.audit()


def test_several_in_one_batch_keep_their_numbers(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    batch = [
        clerk.new(run_id="b"),
        clerk.new(run_id="x", on_busy=OnBusy.ROLLBACK),
        clerk.new(run_id="c"),
        clerk.new(run_id="y", on_busy=OnBusy.INTERRUPT),
    ]
    assert all(isinstance(each, Accepted) for each in clerk.send(*batch))
    assert order(clerk) == ["a", "y", "x", "b", "c"]
    assert clerk.events().count("run.voided") == 1
    clerk.audit()


def test_a_rollback_voids_what_a_cancel_has_stopped_already(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.store.cancel(RunId("a"), None, by="first")
    clerk.submit(run_id="x", on_busy=OnBusy.ROLLBACK, by="second")
    run = clerk.run("a")
    assert (run.stop_reason, run.cancel_requested_by, run.voided) == (StopReason.CANCEL, "first", True)
    after = clerk.settle(start, RunStatus.COMPLETED, keep=True, output="too late")
    assert after.voided and clerk.run("a").result is None
    clerk.store.drop_owner(WorkerId("w.1"), [(S1, fence_of(start).token)])
    clerk.audit()


def test_a_settle_in_doubt_still_says_that_the_run_was_rolled_back(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start()
    clerk.submit(run_id="x", on_busy=OnBusy.ROLLBACK)
    settlement = Settlement(fence_of(start), Outcome(RunStatus.CANCELLED), keep_owner=True)
    clerk.store.settle([settlement])
    assert clerk.store.settle_outcome([settlement])[0].voided


@pytest.mark.parametrize("on_busy", STOPPING)
def test_what_is_refused_stops_nobody(clerk: Clerk, on_busy: OnBusy) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.submit(run_id="b")
    refused = clerk.send(clerk.new(run_id="x", on_busy=on_busy), limits=SubmitLimits(queued_per_session=1))[0]
    assert isinstance(refused, LimitReached)
    run = clerk.run("a")
    assert run.cancel_requested_at is None and not run.voided
    clerk.audit()


def test_reject_counts_what_is_queued_active_delayed_or_waits(clerk: Clerk) -> None:
    def refused() -> bool:
        answer = clerk.send(clerk.new(on_busy=OnBusy.REJECT))[0]
        assert isinstance(answer, Accepted) or (isinstance(answer, Conflict) and answer.code == "session_busy")
        return not isinstance(answer, Accepted)

    assert not refused() and refused()
    start = clerk.start()
    assert refused()
    clerk.behind.query("UPDATE runs SET status = 'waiting_tool' WHERE status = 'running'")
    assert refused()
    clerk.behind.query("UPDATE runs SET status = 'running' WHERE status = 'waiting_tool'")
    clerk.settle(start)
    clerk.submit(run_id="later", delay=timedelta(hours=1))
    assert refused()
    clerk.audit()


def test_of_many_at_once_one_is_not_rejected(clerk: Clerk) -> None:
    with ThreadPoolExecutor(8) as pool:
        news = [clerk.new(on_busy=OnBusy.REJECT) for _ in range(16)]
        answers = list(pool.map(lambda new: clerk.send(new)[0], news))
    assert sum(isinstance(each, Accepted) for each in answers) == 1
    clerk.audit()


def test_interrupts_beside_each_other_and_beside_the_end_of_the_run(clerk: Clerk) -> None:
    """Whoever comes first: one place each, nothing lost, and a mark only where the run was still active."""
    for n in range(12):
        clerk.submit(run_id=f"a{n}")
        start = clerk.start()
        with ThreadPoolExecutor(3) as pool:
            end = pool.submit(clerk.settle, start, RunStatus.COMPLETED)
            news = [clerk.new(run_id=f"{name}{n}", on_busy=OnBusy.INTERRUPT) for name in "xy"]
            answers = [accepted(future.result()[0]) for future in [pool.submit(clerk.send, new) for new in news]]
            assert end.result().applied
        marked = clerk.run(f"a{n}").cancel_requested_at is not None
        assert marked == any(answer.stopped is not None for answer in answers)
        assert {answer.stopped.run_id for answer in answers if answer.stopped} <= {f"a{n}"}
        assert set(order(clerk)) == {f"x{n}", f"y{n}"}
        for _ in range(2):
            clerk.settle(clerk.start())
    clerk.audit()


def test_a_text_for_the_active_run_is_a_command_to_its_worker(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    start = clerk.start(worker="w.9")
    limits = SubmitLimits(queued_per_session=0)
    answer = accepted(clerk.send(clerk.new(run_id="x", on_busy=OnBusy.STEER, by="me", input="hello"), limits=limits)[0])
    assert (answer.run.id, answer.steer) == ("a", "x") and order(clerk) == ["a"]
    spoken = clerk.store.spoken(RunId("x"))
    assert spoken is not None and (spoken.run_id, spoken.taken, spoken.answer) == ("a", False, None)
    (command,) = clerk.store.take_commands(WorkerId("w.9"))
    assert (command.kind, command.by, command.run_id, command.attempt, command.data) == (
        CommandKind.STEER,
        "me",
        "a",
        start.run.attempt,
        {"text": "hello"},
    )
    assert not clerk.store.withdraw_command(command.id)
    number = clerk.store.answer_command(command.id, Delivery.DELIVERED)
    assert number > 0 and clerk.store.answer_command(command.id, Delivery.MISSED) == 0
    spoken = clerk.store.spoken(RunId("x"))
    assert spoken is not None and spoken.answer is Delivery.DELIVERED
    event = clerk.store.events(S1, after=number - 1, limit=1)[0]
    assert (event.type, event.run_id) == ("run.steered", "a")
    assert event.data == {"delivery": "delivered", "by": "me", "request_id": "x"}
    clerk.audit()


def test_a_text_is_a_run_where_nothing_is_active_or_the_active_one_is_about_to_end(clerk: Clerk) -> None:
    clerk.submit(run_id="a", on_busy=OnBusy.STEER)
    clerk.start()
    clerk.store.cancel(RunId("a"), None, by="x")
    answer = accepted(clerk.send(clerk.new(run_id="b", on_busy=OnBusy.STEER))[0])
    assert answer.steer is None and order(clerk) == ["a", "b"]
    clerk.audit()


def test_a_run_that_waits_is_answered_not_spoken_to(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.behind.query("UPDATE runs SET status = 'waiting_tool' WHERE status = 'running'")
    answer = clerk.send(clerk.new(run_id="x", on_busy=OnBusy.STEER, idempotency_key="k", request_hash="h"))[0]
    assert isinstance(answer, Conflict) and answer.code == "run_waiting"
    clerk.behind.query("UPDATE runs SET status = 'running' WHERE status = 'waiting_tool'")
    again = accepted(clerk.send(clerk.new(run_id="y", on_busy=OnBusy.STEER, idempotency_key="k", request_hash="h"))[0])
    assert (again.steer, again.replayed) == ("y", False), "the key was not used up"


def test_the_same_key_asks_for_the_same_text_once(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()

    def say(run_id: str, text: str = "hello") -> object:
        more = {"idempotency_key": "k", "request_hash": text, "input": text, "on_busy": OnBusy.STEER}
        return clerk.send(clerk.new(run_id=run_id, **more))[0]

    first, again = say("x"), say("y")
    assert isinstance(first, Accepted) and isinstance(again, Accepted)
    assert (first.replayed, again.replayed, again.steer, again.run.id) == (False, True, "x", "a")
    other = say("z", "another")
    assert isinstance(other, Conflict) and other.code == "idempotency_conflict"
    assert len(clerk.store.take_commands(WorkerId("w.1"))) == 1
    clerk.audit()


def test_a_command_that_nobody_took_is_withdrawn_for_good(clerk: Clerk) -> None:
    clerk.submit(run_id="a")
    clerk.start()
    clerk.send(clerk.new(run_id="x", on_busy=OnBusy.STEER))
    spoken = clerk.store.spoken(RunId("x"))
    assert spoken is not None and clerk.store.withdraw_command(spoken.command_id)
    assert clerk.store.take_commands(WorkerId("w.1")) == []
    assert clerk.store.spoken(RunId("nothing")) is None


def test_commands_about_runs_and_sessions_go_to_whoever_has_them(clerk: Clerk) -> None:
    assert clerk.store.command_session(S1, CommandKind.CLOSE, by="me") is None
    clerk.submit(run_id="a")
    start = clerk.start(worker="w.9")
    assert clerk.store.command_session(S1, CommandKind.CLOSE, by="me") == "w.9"
    clerk.store.command_run(WorkerId("w.9"), CommandKind.KILL, RunId("a"), 1, by="me", data={"after_ms": 0})
    closes, kills = clerk.store.take_commands(WorkerId("w.9"))
    assert (closes.kind, closes.run_id, closes.data) == (CommandKind.CLOSE, None, {"session_id": "s1"})
    assert (kills.kind, kills.run_id, kills.attempt, kills.data) == (CommandKind.KILL, "a", 1, {"after_ms": 0})
    clerk.settle(start)
    with pytest.raises(NotFound):
        clerk.store.answer_command(closes.id, Delivery.DELIVERED)
