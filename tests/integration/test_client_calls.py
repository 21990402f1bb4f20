"""The client: against a real API, and against servers that misbehave."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from oah.api.app import create_app
from oah.api.server import Server
from oah.client import Client
from oah.client import transport as wire
from oah.core.model.drain import AtDeadline, Drain, drain_from
from oah.errors import (
    Backpressure,
    Broken,
    Conflict,
    Forbidden,
    InDoubt,
    InvalidRequest,
    LimitReached,
    NotFound,
    OahError,
    PayloadTooLarge,
    Unauthorized,
    Unavailable,
)
from tests.support import eventually


def test_the_main_job(apis):
    client = apis.client()
    session = client.create_session("shell", title="t", labels={"a": "b"})["id"]
    run = client.submit(session, "echo hi", timeout=timedelta(seconds=30), run_class="background")
    assert run["status"] == "queued"
    assert run["replayed"] is False
    assert client.session(session)["queued_count"] == 1
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, run["id"], timeout=30)
        eventually(lambda: apis.state.streams._feeds)
        assert not waiting.done()
        apis.work(session, output="hi")
        done = waiting.result(20)
    assert done["status"] == "completed"
    assert client.wait(run["id"], timeout=0)["status"] == "completed", "one that has ended is not waited for"
    assert client.result(run["id"])["output"] == "hi"
    assert client.attempts(run["id"])[0]["attempt"] == 1
    assert client.steps(run["id"]) == []
    with pytest.raises(NotFound) as caught:
        client.recording(run["id"])
    assert caught.value.code == "no_recording"


def test_the_rest_of_the_methods(api):
    client = api.client()
    session = client.create_session("python", pool="default", cwd="/tmp", env={"A": "1"}, metadata={"x": 1})["id"]
    assert client.update_session(session, title="new")["title"] == "new"
    run = client.submit(session, "1")["id"]
    assert [one["id"] for one in client.session_queue(session)] == [run]
    assert client.pause_session(session)["holds"]
    assert not client.resume_session(session)["holds"]
    assert client.note(run, "n")["note"] == "n"
    with pytest.raises(Conflict) as caught:
        client.send_input(run, "y")
    assert caught.value.code == "run_not_waiting"
    assert client.cancel(run)["result"] == "removed"
    assert client.requeue(run)["status"] == "queued"
    assert [one["id"] for one in client.runs(session=session, status="queued", run_class="interactive")] == [run]
    assert client.runs(created_after=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
    api.report_worker()
    assert client.workers()[0]["name"] == "w1"
    assert client.worker("w1")["slots"] == 8
    for method, kind in ((client.cordon, "cordon"), (client.uncordon, "uncordon"), (client.drain, "drain")):
        assert method("w1")["command"] == kind
    for pool, kind in ((client.cordon_pool, "cordon"), (client.uncordon_pool, "uncordon")):
        told = {"pool": "default", "workers": [client.worker("w1")["id"]], "gone": [], "command": kind}
        assert pool("default") == told
        assert [each["name"] for each in client.cordons()] == (["w1"] if kind == "cordon" else [])
    client.cordon("w1", for_seconds=7200)
    [kept] = client.cordons()
    assert kept["alive"] and kept["until"] > kept["at"] and kept["by"].startswith("key:")
    client.uncordon("w1")
    with pytest.raises(NotFound):
        client.drain_pool("nobody", then="wait")
    client.drain("w1", deadline_seconds=2.5, then="fail", stay=True)
    commands = api.store.take_commands(client.worker("w1")["id"])
    assert [(one.kind, one.by.partition(":")[0]) for one in commands] == [
        ("cordon", "key"), ("uncordon", "key"), ("drain", "key"),
        ("cordon", "key"), ("uncordon", "key"), ("cordon", "key"), ("uncordon", "key"), ("drain", "key"),
    ]  # fmt: skip
    assert [drain_from(one.data) for one in commands if one.kind == "drain"] == [
        Drain(), Drain(timedelta(seconds=2.5), AtDeadline.FAIL, stay=True),
    ]  # fmt: skip
    assert client.queue()["globalActiveWorkers"] == 1
    assert client.recovery()["counts"]["requeued"] == 1
    assert client.controller()["epoch"]["id"] == "epoch-1"
    assert [one["name"] for one in client.agents()] == ["exec", "noop", "python", "shell"]
    made = client.create_workspace("w", weight=2)
    assert client.update_workspace("w", weight=3)["weight"] == 3
    assert client.workspace(made["id"])["name"] == "w"
    assert {one["name"] for one in client.workspaces()} >= {"default", "foreign", "w"}
    key = client.create_key("k", workspace="w", scopes=["read"], expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert key["secret"]
    assert [one["id"] for one in client.keys(workspace="w")] == [key["id"]]
    assert client.revoke_key(key["id"])["revoked_at"]
    assert client.health()["status"] == "ok"
    assert client.ready()["status"] == "ready"
    assert "oah_http_requests_total" in client.metrics()
    assert [one["id"] for one in client.sessions(workspace="default", state="open", limit=5)] == [session]
    assert client.close_session(session, cancel=True)["state"] == "closed"


def test_lists_follow_their_pages(api, monkeypatch):
    monkeypatch.setattr("oah.client.calls.PAGE", 3)
    client = api.client()
    session = client.create_session("shell")["id"]
    client.submit_many([{"session_id": session, "input": str(index)} for index in range(10)])
    assert len(client.runs()) == 10
    assert len(client.runs(limit=7)) == 7
    assert len({run["id"] for run in client.runs()}) == 10


def test_many_at_once(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    answers = client.submit_many(
        [
            {"session_id": session, "input": "1", "run_class": "subagent"},
            {"session_id": session, "input": ""},
            {"session_id": session, "input": "3", "idempotency_key": "k"},
            {"session_id": session, "input": "3", "idempotency_key": "k"},
        ]
    )
    assert answers[1]["error"]["code"] == "empty_input"
    assert answers[2]["id"] == answers[3]["id"]
    assert client.run(answers[0]["id"])["class"] == "subagent"


def test_waiting_has_an_end(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    run = client.submit(session, "x")["id"]
    with pytest.raises(TimeoutError):
        client.wait(run, timeout=timedelta(seconds=1.5))
    with pytest.raises(TimeoutError):
        list(client.stream(run, timeout=0.2))
    assert client.run(run)["status"] == "queued", "the run goes on"


def test_a_wait_survives_the_api_process(api):
    client = api.client(retries=20)
    session = client.create_session("shell")["id"]
    run = client.submit(session, "x")["id"]
    port = api.server.port
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, run, timeout=60)
        eventually(lambda: api.state.streams._feeds)
        api.server.stop(timedelta(seconds=1))
        assert api.server.join(timedelta(seconds=10))
        api.store.start("w", "epoch-1", [])
        started = api.start(session)
        second = Server(create_app(api.context), port=port)
        second.start()
        assert second.started.wait(60)
        assert second.failure is None
        try:
            api.settle(started)
            assert waiting.result(30)["status"] == "completed"
        finally:
            second.stop(timedelta(seconds=1))
            second.join(timedelta(seconds=10))


def test_errors_are_typed(api):
    client = api.client(retries=0)
    session = client.create_session("shell")["id"]
    run = client.submit(session, "x", idempotency_key="k")["id"]
    for kind, code, call in (
        (InvalidRequest, "unknown_agent", lambda: client.create_session("nope")),
        (InvalidRequest, "empty_input", lambda: client.submit(session, "")),
        (InvalidRequest, "invalid_text", lambda: client.steer(session, "\x03")),
        (PayloadTooLarge, "payload_too_large", lambda: client.submit(session, "x" * 2_000_000)),
        (PayloadTooLarge, "payload_too_large", lambda: client.submit(session, "x" * 20_000_000)),
        (Conflict, "session_busy", lambda: client.submit(session, "x", on_busy="reject")),
        (Conflict, "idempotency_conflict", lambda: client.submit(session, "y", idempotency_key="k")),
        (Conflict, "run_requeue_invalid_status", lambda: client.requeue(run)),
        (NotFound, "not_found", lambda: client.run("run_nothing")),
        (NotFound, "not_found", lambda: client.run("")),
        (NotFound, "not_found", lambda: client.run("..")),
        (NotFound, "not_found", lambda: client.run("../sessions")),
        (NotFound, "not_found", lambda: list(client.stream("run_nothing"))),
        (NotFound, "not_found", lambda: client.wait("run_nothing", timeout=1)),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.code == code
    with pytest.raises(Forbidden):
        api.client("reader").submit(session, "x")
    with Client(api.url, "wrong") as stranger, pytest.raises(Unauthorized):
        stranger.runs()
    with Client(api.url) as nobody, pytest.raises(Unauthorized):
        nobody.runs()
    api.store.off()
    with pytest.raises(Unavailable) as caught:
        client.run(run)
    assert caught.value.retry_after == timedelta(seconds=2)
    with pytest.raises(Unavailable):
        client.ready()


# --- servers that misbehave ------------------------------------------------------------------------------------------


class Scripted(httpx.BaseTransport):
    """Answers one after the other; an exception is raised, the last answer repeats."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def handle_request(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def pauses(monkeypatch):
    """Pauses between repeats, noted instead of waited."""
    noted = []
    monkeypatch.setattr(wire.time, "sleep", noted.append)
    return noted


def problem(status, code, headers=None):
    return httpx.Response(status, json={"code": code, "detail": "d", "hint": "h"}, headers=headers)


def ok(document):
    return httpx.Response(202, json=document)


def scripted(*answers, **more):
    transport = Scripted(*answers)
    return Client("http://x", "k", transport=transport, **more), transport


def test_a_lost_answer_is_repeated_with_the_same_key(pauses):
    client, transport = scripted(
        httpx.ReadError("reset"), httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), ok({"id": "run_1"})
    )
    assert client.submit("ses_1", "x")["id"] == "run_1"
    keys = [request.headers["idempotency-key"] for request in transport.requests]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32
    assert pauses == sorted(pauses) or max(pauses) < 1
    client.submit("ses_1", "x")
    assert transport.requests[-1].headers["idempotency-key"] != keys[0], "another submit has another key"


def test_retry_after_is_honoured(pauses):
    client, _ = scripted(problem(503, "unavailable", {"retry-after": "7"}), ok({"id": "run_1"}))
    client.submit("ses_1", "x")
    assert len(pauses) == 1
    assert 7 <= pauses[0] <= 9


def test_pauses_grow_and_spread(pauses):
    client, transport = scripted(problem(503, "unavailable"), retries=6)
    with pytest.raises(Unavailable):
        client.run("run_1")
    assert len(transport.requests) == 7
    assert len(pauses) == 6
    assert all(0.05 * 2**n <= pause <= 0.1 * 2**n for n, pause in enumerate(pauses))
    assert len({wire.pause(3) for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", InvalidRequest),
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
        (404, "not_found", NotFound),
        (409, "session_busy", Conflict),
        (413, "payload_too_large", PayloadTooLarge),
        (422, "invalid_request", InvalidRequest),
        (429, "queue_full", LimitReached),
        (500, "broken", Broken),
    ],
)
def test_what_the_caller_must_fix_is_not_repeated(pauses, status, code, kind):
    client, transport = scripted(problem(status, code))
    with pytest.raises(kind) as caught:
        client.run("run_1")
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.message, caught.value.hint) == (code, "d", "h")
    assert len(transport.requests) == 1
    assert pauses == []


@pytest.mark.parametrize(("code", "kind"), [("in_doubt", InDoubt), ("backpressure", Backpressure), ("x", Unavailable)])
def test_kinds_of_absence(pauses, code, kind):
    client, _ = scripted(problem(503, code), retries=1)
    with pytest.raises(kind):
        client.run("run_1")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, text="<html>not here</html>"),
        httpx.Response(404, json=["no", "problem"]),
        httpx.Response(404, content=b"\xff"),
        httpx.Response(302, headers={"location": "http://evil"}),
        httpx.Response(418, text=""),
    ],
)
def test_answers_that_are_no_problem_documents(pauses, answer):
    client, transport = scripted(answer)
    with pytest.raises(OahError):
        client.run("run_1")
    assert len(transport.requests) == 1, "a redirect is not followed: it would carry the key elsewhere"


def test_an_api_that_is_not_there_says_so(pauses):
    client = Client("http://127.0.0.1:9", "k", retries=1)
    with pytest.raises(Unavailable) as caught:
        client.runs()
    assert caught.value.code == "api_unreachable"
    assert "127.0.0.1:9" in caught.value.message
    assert "oah up" in caught.value.hint


def test_the_key_is_sent_as_a_bearer_and_only_if_there_is_one(pauses):
    client, transport = scripted(ok({}))
    client.health()
    assert transport.requests[0].headers["authorization"] == "Bearer k"
    bare = Scripted(ok({}))
    Client("http://x", None, transport=bare).health()
    assert "authorization" not in bare.requests[0].headers


def test_ids_cannot_leave_their_path(pauses):
    client, transport = scripted(ok({}))
    client.run("a/../../keys?x=1#y")
    assert transport.requests[0].url.raw_path == b"/v1/runs/a%2F..%2F..%2Fkeys%3Fx%3D1%23y"


def test_a_client_is_shared_by_threads(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    gate = threading.Barrier(8)

    def submit(index):
        gate.wait(60)
        return client.submit(session, str(index))["position"]

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(submit, range(8))) == list(range(1, 9))


def test_what_must_not_be_there_twice_is_repeated_only_if_it_was_never_sent(pauses):
    for call in (
        lambda client: client.create_session("shell"),
        lambda client: client.create_key("k"),
        lambda client: client.create_workspace("w"),
        lambda client: client.requeue("run_1"),
        lambda client: client.redrive(["dl_1"]),
        lambda client: client.purge(["dl_1"]),
        lambda client: client.send_input("run_1", "yes"),
    ):
        for doubt in (httpx.ReadError("reset"), httpx.ReadTimeout("slow"), problem(503, "in_doubt"), problem(502, "x")):
            client, transport = scripted(doubt, ok({}))
            with pytest.raises(OahError):
                call(client)
            assert len(transport.requests) == 1
        for certain in (httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), problem(503, "unavailable")):
            client, transport = scripted(certain, ok({"id": "x"}))
            assert call(client) == {"id": "x"}
            assert len(transport.requests) == 2
