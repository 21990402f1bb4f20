"""Messages for agents over HTTP: sent and read with keys of people and of runs, acknowledged, woken by hand."""

from __future__ import annotations

import httpx
import pytest

from oah.ports.messages import Injected
from oah.ports.store import RunFence
from oah.services.run_keys import run_key
from tests.support.api import Deployment


def session_of(api: Deployment, **more: object) -> str:
    with api.http() as http:
        made = http.post("/v1/sessions", json={"agent": "shell", **more})
        assert made.status_code == 201, made.text
        return str(made.json()["id"])


def begin(api: Deployment, session: str) -> tuple[RunFence, httpx.Client]:
    """A run of it that goes on, and its agent's voice."""
    with api.http() as http:
        http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
    fence = api.fence(api.start(session))
    return fence, httpx.Client(base_url=api.url, headers={"authorization": f"Bearer {run_key(fence)}"}, timeout=20)


def test_sent_listed_read(api: Deployment) -> None:
    session, client = session_of(api), api.client("runner")
    sent = client.send_to_session(session, "hello", priority="urgent")
    assert (sent["state"], sent["mode"], sent["seq"], sent["wake_run_id"]) == ("queued", "wait", 1, None)
    assert sent["expires_at"] is not None
    again = client.send_to_session(session, "hello", idempotency_key="k")
    same = client.send_to_session(session, "hello", idempotency_key="k")
    assert (again["id"], same["seq"]) == (same["id"], 2)
    assert [each["id"] for each in client.session_messages(session)] == [again["id"], sent["id"]]
    assert "text" not in client.session_messages(session)[0]
    whole = client.session_message(session, sent["id"])
    assert (whole["text"], whole["priority"]) == ("hello", "urgent")
    assert client.message_cursors(session) == {"received": 0, "acked": 0, "last": 2}
    assert client.session(session)["unsettled_messages"] == 2
    hops = [each["hop"] for each in client.trace_message(sent["id"])["hops"]]
    assert "message.queued" in hops


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"text": "x", "mode": "shout"}, 422, "invalid_request"),
        ({"text": "x", "priority": "high"}, 400, "invalid_request"),
        ({"text": "a\0b"}, 400, "not_text"),
        ({"text": " ", "mode": "run"}, 400, "invalid_request"),
        ({"text": "x", "ttl_seconds": 0}, 400, "invalid_ttl"),
        ({"text": "x", "callback": "wh_nothing"}, 404, "not_found"),
        ({"text": "x" * 1_048_577}, 413, "payload_too_large"),
    ],
)
def test_what_is_refused(api: Deployment, body: dict[str, object], status: int, code: str) -> None:
    session = session_of(api)
    with api.http("runner") as http:
        answer = http.post(f"/v1/sessions/{session}/messages", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert http.get(f"/v1/sessions/{session}/messages").json()["items"] == []


def test_a_closed_session_says_so(api: Deployment) -> None:
    session = session_of(api)
    with api.http("runner") as http:
        http.delete(f"/v1/sessions/{session}")
        answer = http.post(f"/v1/sessions/{session}/messages", json={"text": "x"})
        assert (answer.status_code, answer.json()["code"]) == (409, "session_closed")
        assert http.post(f"/v1/sessions/{session}/wake").status_code == 409


def test_the_agent_reads_and_acknowledges_with_the_key_of_its_run(api: Deployment) -> None:
    session, other = session_of(api), session_of(api)
    client = api.client("runner")
    sent = client.send_to_session(session, "for you")
    fence, agent = begin(api, session)
    with agent:
        [message] = api.store.take_messages(fence, limit=1, most_attempts=5).messages
        done = Injected(message_id=message.message_id, delivery_id=message.delivery_id, outcome="confirmed")
        api.store.injected(fence, [done])
        assert agent.get(f"/v1/sessions/{session}/messages/{sent['id']}").json()["text"] == "for you"
        for wrong in (-1, 10**30):
            refused = agent.post(f"/v1/sessions/{session}/messages/ack", json={"up_to": wrong})
            assert refused.status_code in (400, 422), refused.text
        acked = agent.post(f"/v1/sessions/{session}/messages/ack", json={"up_to": 9})
        assert acked.json() == {"received": 1, "acked": 1, "last": 1}
        assert client.session_message(session, sent["id"])["state"] == "acked"
        for path in (f"/v1/sessions/{other}/messages", f"/v1/sessions/{other}/messages/{sent['id']}"):
            assert agent.get(path).status_code == 404
        assert agent.post(f"/v1/sessions/{other}/messages/ack", json={"up_to": 1}).status_code == 404
        told = agent.post(f"/v1/sessions/{other}/messages", json={"text": "from inside"})
        assert told.status_code == 202
        assert told.json()["sender"]["session_id"] == session
        as_run = agent.post(f"/v1/sessions/{other}/messages", json={"text": "x", "mode": "run"})
        assert (as_run.status_code, as_run.json()["code"]) == (403, "forbidden")
        assert agent.post(f"/v1/sessions/{other}/wake").status_code == 403


def test_eager_sessions_are_woken_and_by_hand_lazy_ones_too(api: Deployment) -> None:
    client = api.client("runner")
    eager = session_of(api, wake="eager")
    sent = client.send_to_session(eager, "hello")
    assert client.run(sent["wake_run_id"])["kind"] == "wake"
    assert client.session(eager)["wake"]["run_id"] == sent["wake_run_id"]
    lazy = session_of(api)
    assert client.session(lazy)["wake"]["mode"] == "lazy"
    assert client.wake_session(lazy)["why_not"] == "nothing_waits"
    client.send_to_session(lazy, "hello")
    woken = client.wake_session(lazy)
    assert (woken["waiting"], client.run(woken["run_id"])["metadata"]) == (1, {"by_hand": "key:" + _key(api)})
    assert client.update_session(lazy, wake="eager")["wake"]["mode"] == "eager"
    as_run = client.send_to_session(lazy, "echo hi", mode="run")
    assert client.run(as_run["run_id"])["input"] == "echo hi"


def _key(api: Deployment) -> str:
    with api.http() as http:
        return next(str(each["id"]) for each in http.get("/v1/keys").json()["items"] if each["name"] == "runner")


def test_without_a_live_turn_steer_waits(api: Deployment) -> None:
    session, client = session_of(api), api.client("runner")
    sent = client.send_to_session(session, "listen", mode="steer")
    assert (sent["mode"], sent["state"], sent["outcome"]) == ("steer", "queued", None)
