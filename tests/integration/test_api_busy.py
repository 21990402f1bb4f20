"""Busy sessions and cancels over HTTP: what is answered, what is told to whom, and what is never done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest

from oah.api import state
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import StopReason
from oah.errors import Conflict, InvalidRequest, PayloadTooLarge
from oah.ports.commands import CommandKind, Delivery
from oah.services import steer
from oah.services.cancel import CancelChildren
from tests.support.api import EPOCH, WORKER, Deployment


@contextmanager
def answering(api: Deployment, how: Callable[[], Delivery | None]) -> Iterator[list[str]]:
    """A worker's speaker: takes commands and answers each as told; None: it never answers. Yields what it was told."""
    told: list[str] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.02):
            for command in api.store.take_commands(WORKER):
                told.append(command.data["text"])
                delivery = how()
                if delivery is not None:
                    number = api.store.answer_command(command.id, delivery)
                    api.broker.publish([(api.store.run(command.run_id, None).session_id, number)])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join()


def session(api: Deployment) -> str:
    return str(api.client().create_session("shell")["id"])


def test_an_interrupt_is_next_and_the_owner_is_told(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    first = client.submit(of, "one")["id"]
    apis.start(of)
    waiting = client.submit(of, "two")["id"]
    apis.broker.calls.clear()
    new = client.submit(of, "now", on_busy="interrupt")
    assert [run["id"] for run in client.session_queue(of)] == [first, new["id"], waiting]
    assert "look" in apis.broker.calls
    stopped = client.run(first)
    assert (stopped["status"], stopped["stop_reason"]) == ("running", "interrupt")
    assert stopped["cancel_requested_by"]
    with pytest.raises(Conflict) as refused:
        client.submit(of, "three", on_busy="reject")
    assert refused.value.code == "session_busy"


def test_a_rollback_voids_and_takes_the_children(apis: Deployment) -> None:
    client, of, other = apis.client(), session(apis), session(apis)
    parent = client.submit(of, "one")["id"]
    started = apis.start(of)
    child = client.submit(other, "child", parent_run_id=parent)["id"]
    client.submit(of, "again", on_busy="rollback")
    apis.settle(started, output="half done")
    assert client.run(parent)["voided"] and client.result(parent)["output"] is None
    gone = client.run(child)
    assert (gone["status"], gone["stop_reason"]) == ("cancelled", "parent")
    assert "run.voided" in [event.type for event in apis.store.events(SessionId(of), after=0, limit=99)]


def test_a_cancel_takes_children_and_their_children_and_a_leader_the_rest(apis: Deployment) -> None:
    client = apis.client()
    of, other = session(apis), session(apis)
    top = client.submit(of, "top")["id"]
    middle = client.submit(other, "middle", parent_run_id=top)["id"]
    started = apis.start(other)
    leaf = client.submit(of, "leaf", parent_run_id=middle)["id"]
    assert client.cancel(top)["result"] == "removed"
    runs = {run_id: client.run(run_id) for run_id in (top, middle, leaf)}
    assert {name: run["stop_reason"] for name, run in runs.items()} == {top: "cancel", middle: "parent", leaf: "parent"}
    assert (runs[middle]["status"], runs[leaf]["status"]) == ("running", "cancelled")
    apis.settle(started)
    # A crash between the parent's cancel and its children's.
    top = client.submit(of, "top again")["id"]
    left = [client.submit(other, "left", parent_run_id=top)["id"] for _ in range(3)]
    apis.store.cancel(RunId(top), None, by="me", reason=StopReason.CANCEL)
    assert CancelChildren(apis.store, apis.broker)(EPOCH) == 3
    assert {client.run(run_id)["status"] for run_id in left} == {"cancelled"}
    assert CancelChildren(apis.store, apis.broker)(EPOCH) == 0


def test_a_repeated_cancel_answers_the_same(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    run = client.submit(of, "x")["id"]
    started = apis.start(of)
    assert [client.cancel(run)["result"] for _ in range(2)] == ["signalled", "signalled"]
    apis.settle(started)
    assert client.cancel(run)["result"] == "too_late"


def test_a_cancel_may_say_when_the_agent_is_killed(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    run = client.submit(of, "x")["id"]
    started = apis.start(of)
    client.cancel(run, grace=timedelta(seconds=1.5))
    client.cancel(run, force=True)
    commands = apis.store.take_commands(WORKER)
    assert [(each.kind, each.run_id, each.attempt, each.data) for each in commands] == [
        (CommandKind.KILL, run, started.run.attempt, {"after_ms": 1500}),
        (CommandKind.KILL, run, started.run.attempt, {"after_ms": 0}),
    ]
    with apis.http() as http:
        assert http.post(f"/v1/runs/{run}/cancel", json={"grace_seconds": -1}).status_code == 422


@pytest.mark.parametrize("delivery", [Delivery.DELIVERED, Delivery.UNVERIFIED])
def test_a_text_for_the_live_run_is_answered_by_its_delivery(apis: Deployment, delivery: Delivery) -> None:
    client, of = apis.client(), session(apis)
    run = client.submit(of, "x")["id"]
    apis.start(of)
    with answering(apis, lambda: delivery) as told:
        answer = client.steer(of, "and now?", idempotency_key="k")
        again = client.steer(of, "and now?", idempotency_key="k")
    assert (answer["run_id"], answer["id"], answer["delivery"]) == (run, run, delivery.value)
    assert (again["delivery"], again["replayed"], told) == (delivery.value, True, ["and now?"])
    assert [run["id"] for run in client.session_queue(of)] == [run]
    with pytest.raises(Conflict) as refused:
        client.steer(of, "something else", idempotency_key="k")
    assert refused.value.code == "idempotency_conflict"


def test_an_agent_that_cannot_be_spoken_to_is_a_conflict(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    client.submit(of, "x")
    apis.start(of)
    with answering(apis, lambda: Delivery.UNSUPPORTED), pytest.raises(Conflict) as refused:
        client.steer(of, "hello")
    assert refused.value.code == "steer_unsupported"


def test_a_text_that_comes_too_late_is_a_run_once(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    live = client.submit(of, "x")["id"]
    apis.start(of)
    with answering(apis, lambda: Delivery.MISSED):
        answer = client.steer(of, "late", idempotency_key="k")
        again = client.steer(of, "late", idempotency_key="k")
    assert answer["delivery"] == again["delivery"] == "queued" and answer["id"] == again["id"] != live
    assert [run["id"] for run in client.session_queue(of)] == [live, answer["id"]]


def test_a_text_for_an_idle_session_is_a_run(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    answer = client.steer(of, "hello")
    assert (answer["delivery"], answer["status"]) == ("queued", "queued")
    assert client.run(answer["id"])["input"] == "hello"


def test_texts_that_wait_leave_room_for_everybody_else(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    client.submit(of, "x")
    apis.start(of)
    with ExitStack() as others, apis.http() as http:
        for _ in range(state.STEERS_AT_ONCE):
            others.enter_context(apis.state.steering())
        answer = http.post(f"/v1/sessions/{of}/runs", json={"input": "one more", "on_busy": "steer"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert http.post(f"/v1/sessions/{of}/runs", json={"input": "a run"}).status_code == 202
    assert apis.store.take_commands(WORKER) == [], "nothing was said"


def test_a_worker_that_does_not_answer(apis: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steer, "PATIENCE", timedelta(seconds=0.3))
    client, of = apis.client(), session(apis)
    client.submit(of, "x")
    apis.start(of)
    with answering(apis, lambda: None):
        assert client.steer(of, "taken")["delivery"] == "unverified"
    with apis.http() as http:
        body = {"input": "never taken", "on_busy": "steer"}
        answer = http.post(f"/v1/sessions/{of}/runs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (503, "worker_silent")
    assert apis.store.take_commands(WORKER) == [], "it is not said later"


@pytest.mark.parametrize(
    ("text", "error"),
    [("press \x03", InvalidRequest), ("\x1b[A", InvalidRequest), ("x" * 4_001, PayloadTooLarge)],
)
def test_keys_are_no_text(apis: Deployment, text: str, error: type[Exception]) -> None:
    client, of = apis.client(), session(apis)
    with pytest.raises(error):
        client.steer(of, text)


def test_what_acts_now_cannot_wait(apis: Deployment) -> None:
    client, of = apis.client(), session(apis)
    for on_busy in ("interrupt", "rollback", "steer"):
        with pytest.raises(InvalidRequest):
            client.submit(of, "x", on_busy=on_busy, delay=timedelta(seconds=5))
    [answer] = client.submit_many([{"session_id": of, "input": "x", "on_busy": "steer"}])
    assert answer["error"]["code"] == "on_busy_unsupported"
