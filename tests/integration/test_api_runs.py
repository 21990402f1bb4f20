"""Sessions and runs over HTTP, on real stores."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.session import Place
from oah.errors import Unavailable
from oah.services.place import Places
from oah.services.relay import RelayRuns
from tests.support import eventually
from tests.support.api import EPOCH


def new_session(http, **fields):
    answer = http.post("/v1/sessions", json={"agent": "shell", **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def submit(http, session_id, text="echo hi", headers=None, **fields):
    return http.post(f"/v1/sessions/{session_id}/runs", json={"input": text, **fields}, headers=headers)


def place(api, session_id):
    [lease] = api.broker.leases(EPOCH, [session_id])
    return lease.place


def problem(answer, status, code):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["code"] == code
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    return document


def test_a_runs_life(apis):
    with apis.http() as http:
        session = new_session(http, title="t", labels={"a": "b"}, metadata={"n": [1, None]}, env={"A": "secret"})
        assert session["agent"] == "shell"
        assert session["lane"] == "default/shell"
        assert "secret" not in json.dumps(session)
        answer = submit(http, session["id"], timeout_seconds=5, metadata={"k": "v"}, **{"class": "background"})
        assert answer.status_code == 202
        receipt = answer.json()
        assert receipt["status"] == "queued"
        run_id = receipt["id"]
        assert answer.headers["location"] == f"/v1/runs/{run_id}"
        eventually(lambda: place(apis, session["id"]) is Place.READY)
        run = http.get(f"/v1/runs/{run_id}").json()
        assert run["class"] == "background"
        assert run["timeout_seconds"] == 5
        assert run["wait_reason"] == {
            "code": "no_worker",
            "message": "no live worker serves lane default/shell",
            "lane": "default/shell",
            "workers": 0,
            "withdrawn": {},
        }
        assert run["created_at"].endswith("Z")
        assert http.get(f"/v1/runs/{run_id}/result").json()["output"] is None

        apis.report_worker()
        assert http.get(f"/v1/runs/{run_id}").json()["wait_reason"]["code"] == "no_leader"
        apis.broker.lead("somebody", lease=timedelta(seconds=30))
        assert http.get(f"/v1/runs/{run_id}").json()["wait_reason"]["code"] == "dispatching"
        listed = http.get("/v1/runs", params={"status": "queued"}).json()["items"]
        assert [one["wait_reason"]["code"] for one in listed] == ["dispatching"]
        started = apis.start(session["id"])
        second = submit(http, session["id"]).json()["id"]
        queue = http.get(f"/v1/sessions/{session['id']}/queue").json()["items"]
        assert [one["id"] for one in queue] == [run_id, second]
        behind = {"code": "behind_run", "message": f"behind run {run_id} (running)", "run_id": run_id}
        assert queue[1]["wait_reason"] == {**behind, "status": "running"}
        assert queue[0]["wait_reason"] is None
        run = http.get(f"/v1/runs/{run_id}").json()
        assert run["status"] == "running"
        assert run["heartbeat_at"]
        assert run["attempt"] == 1

        apis.context.blobs.put("r/1.cast", b'{"version": 2}\n')
        apis.settle(started, output="hi", recording_blob="r/1.cast")
        result = http.get(f"/v1/runs/{run_id}/result").json()
        assert result["status"] == "completed"
        assert result["output"] == "hi"
        assert result["exit_code"] == 0
        [attempt] = http.get(f"/v1/runs/{run_id}/attempts").json()["items"]
        assert attempt["reason"] == "first"
        assert attempt["recording"] == "r/1.cast"
        recording = http.get(f"/v1/runs/{run_id}/transcript")
        assert recording.content == b'{"version": 2}\n'
        assert recording.headers["content-type"].startswith("application/x-asciicast")
        problem(http.get(f"/v1/runs/{second}/transcript"), 404, "no_recording")
        steps = http.get(f"/v1/runs/{run_id}/steps").json()["items"]
        assert steps == []


def test_a_run_that_failed_is_requeued_by_hand(apis):
    with apis.http() as http:
        session = new_session(http)
        run_id = submit(http, session["id"]).json()["id"]
        problem(http.post(f"/v1/runs/{run_id}/requeue"), 409, "run_requeue_invalid_status")
        apis.settle(apis.start(session["id"]), error="exit_nonzero")
        run = http.get(f"/v1/runs/{run_id}").json()
        assert run["error"] == {"code": "exit_nonzero", "message": "it did not work"}
        assert http.patch(f"/v1/runs/{run_id}", json={"note": "looked at it"}).json()["note"] == "looked at it"
        assert http.post(f"/v1/runs/{run_id}/requeue").status_code == 202
        run = http.get(f"/v1/runs/{run_id}").json()
        assert run["status"] == "queued"
        assert run["recovery"]["manual_requeue_count"] == 1
        assert run["error"] is None
        assert place(apis, session["id"]) is Place.READY
        assert apis.work(session["id"]) == run_id
        [step] = http.get(f"/v1/runs/{run_id}/steps").json()["items"]
        assert step["name"] == "run.requeued"
        assert step["kind"] == "system"
        assert step["data"]["requeued_by"].startswith("key:")


def test_cancel_of_a_queued_an_active_and_an_ended_run(apis):
    with apis.http() as http:
        session = new_session(http)
        first = submit(http, session["id"]).json()["id"]
        second = submit(http, session["id"]).json()["id"]
        answer = http.post(f"/v1/runs/{second}/cancel")
        assert answer.status_code == 202
        assert answer.json()["result"] == "removed"
        eventually(lambda: place(apis, session["id"]) is Place.READY)
        assert http.post(f"/v1/runs/{first}/cancel").json()["result"] == "removed"
        assert place(apis, session["id"]) is Place.IDLE, "nothing eligible is left"
        assert http.post(f"/v1/runs/{first}/cancel").json()["result"] == "too_late"

        third = submit(http, session["id"]).json()["id"]
        started = apis.start(session["id"])
        assert started.run.id == third
        assert http.post(f"/v1/runs/{third}/cancel").json() == {"id": third, "status": "running", "result": "signalled"}
        assert http.get(f"/v1/runs/{third}").json()["cancel_requested_at"]


def test_a_cancel_of_a_delayed_run(api):
    with api.http() as http:
        session = new_session(http)
        run_id = submit(http, session["id"], delay_seconds=3600).json()["id"]
        run = http.get(f"/v1/runs/{run_id}").json()
        assert run["wait_reason"]["message"].startswith("delayed until 20")
        assert (run["wait_reason"]["code"], run["wait_reason"]["until"]) == ("delayed", run["due_at"])
        assert run["deferred"]
        assert http.post(f"/v1/runs/{run_id}/cancel").json()["result"] == "removed"
        assert place(api, session["id"]) is Place.IDLE


def test_a_run_at_a_moment(api):
    when = datetime.now(UTC) + timedelta(hours=1)
    with api.http() as http:
        session = new_session(http)
        run_id = submit(http, session["id"], run_at=when.isoformat()).json()["id"]
        due = datetime.fromisoformat(http.get(f"/v1/runs/{run_id}").json()["due_at"])
        assert abs(due - when) < timedelta(seconds=5)


def test_pause_and_resume(apis):
    with apis.http() as http:
        session = new_session(http)
        run_id = submit(http, session["id"]).json()["id"]
        eventually(lambda: place(apis, session["id"]) is Place.READY)
        paused = http.post(f"/v1/sessions/{session['id']}/pause").json()
        assert paused["holds"] == [{"reason": "paused", "until": None}]
        assert place(apis, session["id"]) is Place.HELD
        assert http.get(f"/v1/runs/{run_id}").json()["wait_reason"] == {
            "code": "session_held",
            "message": "session held: paused",
            "reasons": {"paused": None},
            "until": None,
        }
        resumed = http.post(f"/v1/sessions/{session['id']}/resume").json()
        assert resumed["holds"] == []
        assert place(apis, session["id"]) is Place.READY


def test_a_run_submitted_after_an_idle_session_was_paused_and_resumed(apis):
    """Nothing waited when it was resumed: in the broker it must not stay held, where a submit changes nothing."""
    with apis.http() as http:
        session = new_session(http)
        http.post(f"/v1/sessions/{session['id']}/pause")
        assert place(apis, session["id"]) is Place.HELD
        http.post(f"/v1/sessions/{session['id']}/resume")
        submit(http, session["id"])
        eventually(lambda: place(apis, session["id"]) is Place.READY)


def test_closing_a_session(apis):
    with apis.http() as http:
        session = new_session(http)
        assert http.delete(f"/v1/sessions/{session['id']}").json()["state"] == "closed"
        problem(submit(http, session["id"]), 409, "session_closed")
        assert http.delete(f"/v1/sessions/{session['id']}").json()["state"] == "closed", "once more changes nothing"

        busy = new_session(http)["id"]
        first, second = (submit(http, busy).json()["id"] for _ in range(2))
        started = apis.start(busy)
        problem(http.delete(f"/v1/sessions/{busy}"), 409, "session_busy")
        closing = http.delete(f"/v1/sessions/{busy}", params={"cancel": "true"}).json()
        assert closing["state"] == "closing"
        assert http.get(f"/v1/runs/{second}").json()["status"] == "cancelled"
        assert http.get(f"/v1/runs/{first}").json()["cancel_requested_at"]
        problem(submit(http, busy), 409, "session_closed")
        apis.settle(started)
        assert http.get(f"/v1/sessions/{busy}").json()["state"] == "closed"


def test_changing_and_listing_sessions(api):
    with api.http() as http:
        ids = [new_session(http, title=str(index))["id"] for index in range(5)]
        changed = http.patch(f"/v1/sessions/{ids[0]}", json={"title": "new", "labels": {"x": "y"}}).json()
        assert changed["title"] == "new"
        assert changed["labels"] == {"x": "y"}
        assert http.patch(f"/v1/sessions/{ids[0]}", json={"title": None}).json()["labels"] == {"x": "y"}
        problem(http.patch(f"/v1/sessions/{ids[0]}", json={"agent": "python"}), 422, "invalid_request")
        seen, cursor = [], None
        while True:
            page = http.get("/v1/sessions", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
            seen += [one["id"] for one in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == ids[::-1]
        http.delete(f"/v1/sessions/{ids[0]}")
        assert [one["id"] for one in http.get("/v1/sessions", params={"state": "closed"}).json()["items"]] == [ids[0]]


def test_listing_runs_by_filter(api):
    with api.http() as http:
        session, other = new_session(http)["id"], new_session(http)["id"]
        done = submit(http, session).json()["id"]
        api.settle(api.start(session), error="exit_nonzero")
        queued = submit(http, session, "x" * 5000, **{"class": "background"}).json()["id"]
        submit(http, other)

        def ids(**params):
            return [one["id"] for one in http.get("/v1/runs", params=params).json()["items"]]

        assert ids(session=session) == [queued, done]
        assert ids(session=session, status=["failed", "completed"]) == [done]
        assert ids(error_code="exit_nonzero") == [done]
        assert ids(**{"class": "background"}) == [queued]
        assert len(ids(workspace="default")) == 3
        assert ids(workspace="foreign") == []
        assert ids(created_after=(datetime.now(UTC) + timedelta(hours=1)).isoformat()) == []
        [listed] = http.get("/v1/runs", params={"class": "background"}).json()["items"]
        assert listed["input_truncated"]
        assert len(listed["input"]) < 5000
        assert len(http.get(f"/v1/runs/{queued}").json()["input"]) == 5000


# --- idempotency, on_busy, limits, batches ---------------------------------------------------------------------------


def test_the_same_key_finds_the_same_run(apis):
    with apis.http() as http:
        session = new_session(http)["id"]
        first = submit(http, session, headers={"Idempotency-Key": "k"})
        again = submit(http, session, headers={"Idempotency-Key": "k"})
        assert again.status_code == 202
        assert again.json()["id"] == first.json()["id"]
        assert again.headers["idempotent-replayed"] == "true"
        assert "idempotent-replayed" not in first.headers
        problem(submit(http, session, "another", headers={"Idempotency-Key": "k"}), 409, "idempotency_conflict")
        assert len(http.get("/v1/runs").json()["items"]) == 1


def test_two_submits_of_one_key_at_once_are_one_run(apis):
    with apis.http() as http, ThreadPoolExecutor(8) as pool:
        session = new_session(http)["id"]
        answers = list(pool.map(lambda _: submit(http, session, headers={"Idempotency-Key": "k"}), range(8)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert [answer.headers.get("idempotent-replayed") for answer in answers].count("true") == 7
        assert len(http.get("/v1/runs").json()["items"]) == 1


def test_on_busy(api):
    with api.http() as http:
        session = new_session(http)["id"]
        assert submit(http, session, on_busy="reject").status_code == 202
        problem(submit(http, session, on_busy="reject"), 409, "session_busy")
        assert submit(http, session, on_busy="enqueue").status_code == 202
        for mode in ("interrupt", "rollback", "steer"):
            assert submit(http, session, on_busy=mode).status_code == 202
            problem(submit(http, session, on_busy=mode, delay_seconds=1), 400, "invalid_request")
        problem(submit(http, session, on_busy="whatever"), 422, "invalid_request")


def test_a_batch_answers_each_item(apis):
    with apis.http() as http:
        session, other = new_session(http)["id"], new_session(http)["id"]
        items = [
            {"session_id": session, "input": "1", "idempotency_key": "a"},
            {"session_id": other, "input": "2"},
            {"session_id": "ses_nothing", "input": "3"},
            {"session_id": session, "input": ""},
            {"session_id": session, "input": "a\0b"},
            {"session_id": session},
            {"session_id": session, "input": "1", "idempotency_key": "a"},
            {"session_id": session, "input": "8", "unknown": 1},
            {"session_id": session, "input": "9"},
        ]
        answer = http.post("/v1/runs:batch", json={"items": items})
        assert answer.status_code == 202
        results = answer.json()["items"]
        assert [result["index"] for result in results] == list(range(9))
        assert [result.get("error", {}).get("code") for result in results] == [
            None, None, "not_found", "empty_input", "invalid_text", "invalid_request", None, "invalid_request", None,
        ]  # fmt: skip
        assert results[6]["id"] == results[0]["id"]
        assert results[6]["replayed"]
        assert results[0]["position"] < results[8]["position"]
        assert len(http.get("/v1/runs").json()["items"]) == 3


def test_a_batch_of_a_thousand_and_no_more(api):
    with api.http() as http:
        session = new_session(http)["id"]
        items = [{"session_id": session, "input": str(index)} for index in range(1000)]
        answer = http.post("/v1/runs:batch", json={"items": items})
        assert [result["position"] for result in answer.json()["items"]] == list(range(1, 1001))
        assert all("id" in result for result in answer.json()["items"])
        [full] = http.post("/v1/runs:batch", json={"items": items[:1]}).json()["items"]
        assert full["error"]["code"] == "queue_full"
        assert full["error"]["status"] == 429
        problem(submit(http, session), 429, "queue_full")
        problem(http.post("/v1/runs:batch", json={"items": items + items[:1]}), 413, "batch_too_large")


# --- a store is away -------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_does_not_refuse_submits(apis):
    with apis.http() as http:
        session = new_session(http)["id"]
        apis.broker.off()
        assert submit(http, session).status_code == 202
        eventually(lambda: apis.state.hearing.dropped == 1)
        assert http.get("/readyz").status_code == 503
        apis.broker.on()
        assert place(apis, session) is Place.IDLE
        [unheard] = apis.store.unheard(EPOCH, older_than=timedelta(0), limit=10)
        assert unheard.run.session_id == session
        relay = RelayRuns(apis.store, Places(apis.store, apis.broker), apis.context.telemetry, timedelta(0))
        assert relay(EPOCH) == 1
        assert place(apis, session) is Place.READY, "the relay has repeated it"
        apis.work(session)
        assert submit(http, session).status_code == 202
        eventually(lambda: place(apis, session) is Place.READY)
        assert http.get("/readyz").status_code == 200


def test_what_was_heard_is_marked_in_a_later_group(apis):
    with apis.http() as http:
        for _ in range(3):
            submit(http, new_session(http)["id"])
        eventually(lambda: not apis.store.unheard(EPOCH, older_than=timedelta(0), limit=10), within=10)
        assert apis.store.calls.count("heard") <= 2


def test_a_new_epoch_is_learned_from_sql(api):
    with api.http() as http:
        assert api.store.mint_epoch("epoch-2", over=EPOCH)
        assert api.broker.mint("epoch-2", seen=EPOCH)
        assert api.broker.open("epoch-2")
        session = new_session(http)["id"]
        assert submit(http, session).status_code == 202
        eventually(lambda: api.broker.leases("epoch-2", [session])[0].place is Place.READY)


def test_a_store_that_is_away_is_said_with_retry_after(api):
    with api.http() as http:
        session = new_session(http)["id"]
        run_id = submit(http, session).json()["id"]
        api.store.off()
        for answer in (
            submit(http, session),
            http.post("/v1/runs:batch", json={"items": [{"session_id": session, "input": "x"}]}),
            http.get(f"/v1/runs/{run_id}"),
            http.get("/v1/runs"),
            http.post(f"/v1/runs/{run_id}/cancel"),
            http.get(f"/v1/runs/{run_id}/events"),
            http.get("/v1/queue"),
        ):
            problem(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "2"
        ready = http.get("/readyz")
        assert ready.status_code == 503
        assert "store" in ready.json()["detail"]
        assert http.get("/healthz").status_code == 200
        api.store.on()
        assert submit(http, session).status_code == 202


def test_a_key_that_was_never_seen_needs_the_store(api):
    api.store.off()
    with api.http("reader") as http:
        problem(http.get("/v1/runs"), 503, "unavailable")


def test_a_fleet_without_its_broker(api):
    with api.http() as http:
        api.broker.off(Unavailable("no Redis"))
        for path in ("/v1/workers", "/v1/queue", "/v1/controller"):
            problem(http.get(path), 503, "unavailable")
        assert len(http.get("/v1/agents").json()["items"]) == 4
        assert http.get("/v1/recovery").status_code == 200


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"input": ""}, 400, "empty_input"),
        ({"input": " \n "}, 400, "empty_input"),
        ({"input": "a\0b"}, 400, "invalid_text"),
        ({"input": "a\ud800b"}, 400, "invalid_text"),
        ({"input": 5}, 422, "invalid_request"),
        ({"input": None}, 422, "invalid_request"),
        ({}, 422, "invalid_request"),
        ({"input": "x", "nope": 1}, 422, "invalid_request"),
        ({"input": "x" * (1024 * 1024 + 1)}, 413, "payload_too_large"),
        ({"input": "x", "class": "urgent"}, 422, "invalid_request"),
        ({"input": "x", "class": "suspect"}, 422, "invalid_request"),
        ({"input": "x", "delay_seconds": -1}, 400, "invalid_request"),
        ({"input": "x", "delay_seconds": float("nan")}, 422, "invalid_request"),
        ({"input": "x", "delay_seconds": 1e300}, 400, "invalid_request"),
        ({"input": "x", "timeout_seconds": 0}, 400, "invalid_request"),
        ({"input": "x", "run_at": "2099-01-01T00:00:00Z"}, 400, "invalid_request"),
        ({"input": "x", "run_at": "2030-01-01T00:00:00"}, 422, "invalid_request"),
        ({"input": "x", "run_at": "9999-12-31T23:59:59-23:59"}, 400, "invalid_request"),
        ({"input": "x", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, 400, "invalid_request"),
        ({"input": "x", "max_retries": -1}, 400, "invalid_request"),
        ({"input": "x", "max_retries": 10**30}, 400, "invalid_request"),
        ({"input": "x", "parent_run_id": "run_nothing"}, 404, "not_found"),
        ({"input": "x", "parent_run_id": "a\0"}, 404, "not_found"),
        ({"input": "x", "metadata": {"a": "\0"}}, 400, "invalid_text"),
        ({"input": "x", "metadata": {"a": float("inf")}}, 400, "invalid_request"),
        ({"input": "x", "metadata": {"a": "y" * 70_000}}, 413, "payload_too_large"),
        ({"input": "x", "metadata": []}, 422, "invalid_request"),
        ({"input": "x", "metadata": {"oah.command": True}}, 400, "invalid_request"),
        ({"input": "x", "command": "yes please"}, 422, "invalid_request"),
        ({"input": "x", "command": True, "on_busy": "steer"}, 400, "invalid_request"),
    ],
)
def test_bad_submits(shared_api, fields, status, code):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        body = json.dumps(fields).encode()
        answer = http.post(f"/v1/sessions/{session}/runs", content=body, headers={"content-type": "application/json"})
        problem(answer, status, code)
        assert http.get("/v1/runs", params={"session": session}).json()["items"] == []


def test_a_run_says_that_its_text_is_a_command(shared_api):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        shown = []
        for fields in ({}, {"command": True, "metadata": {"k": 1}}, {"command": False}):
            run_id = submit(http, session, **fields).json()["id"]
            run = http.get(f"/v1/runs/{run_id}").json()
            shown.append((run["command"], run["metadata"]))
            assert shared_api.store.run(run_id, None).command is run["command"]
        assert shown == [(False, {}), (True, {"k": 1}), (False, {})]
        headers = {"Idempotency-Key": "as-a-command"}
        assert submit(http, session, headers=headers, command=True).status_code == 202
        problem(submit(http, session, headers=headers), 409, "idempotency_conflict")


@pytest.mark.parametrize("key", ["a b", "x" * 256])
def test_bad_idempotency_keys(shared_api, key):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        problem(submit(http, session, headers={"Idempotency-Key": key}), 400, "invalid_idempotency_key")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"", 422),
        (b"[]", 422),
        (b"nul", 422),
        (b"\xff\xfe", 422),
        (b'{"input": "\xff"}', 400),
        (b"[" * 100_000, 400),
        (b'{"input": ' + b"9" * 10_000 + b"}", 400),
    ],
)
def test_bodies_that_are_no_json(shared_api, body, status):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        answer = http.post(f"/v1/sessions/{session}/runs", content=body, headers={"content-type": "application/json"})
        problem(answer, status, "invalid_request")


def test_twenty_megabytes_are_refused_and_the_server_goes_on(shared_api):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        body = json.dumps({"input": "x" * 20_000_000}).encode()
        answer = http.post(f"/v1/sessions/{session}/runs", content=body, headers={"content-type": "application/json"})
        problem(answer, 413, "payload_too_large")

        def pieces():
            for _ in range(20):
                yield b"x" * 1_000_000

        problem(http.post(f"/v1/sessions/{session}/runs", content=pieces()), 413, "payload_too_large")
        assert submit(http, session).status_code == 202


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"agent": "nonesuch"}, 400, "unknown_agent"),
        ({"agent": "Shell"}, 400, "invalid_request"),
        ({"agent": "shell\n"}, 400, "invalid_request"),
        ({"agent": ""}, 400, "invalid_request"),
        ({"agent": "shell", "pool": "a/b"}, 400, "invalid_request"),
        ({"agent": "shell", "workspace": "nowhere"}, 404, "not_found"),
        ({"agent": "shell", "title": "a\0"}, 400, "invalid_text"),
        ({"agent": "shell", "title": "x" * 600}, 413, "payload_too_large"),
        ({"agent": "shell", "cwd": "relative"}, 400, "invalid_request"),
        ({"agent": "shell", "cwd": "/a\0b"}, 400, "invalid_text"),
        ({"agent": "shell", "worktree": {"repo": "relative"}}, 400, "invalid_request"),
        ({"agent": "shell", "worktree": {"repo": "/r", "ref": "--force"}}, 400, "invalid_request"),
        ({"agent": "shell", "worktree": {"repo": "/r"}, "cwd": "/w"}, 400, "invalid_request"),
        ({"agent": "shell", "worktree": "/r"}, 422, "invalid_request"),
        ({"agent": "shell", "env": {"A=B": "x"}}, 400, "invalid_request"),
        ({"agent": "shell", "env": {"A": {"secret": "../NAME"}}}, 400, "invalid_secret_name"),
        ({"agent": "shell", "labels": {"a": 1}}, 422, "invalid_request"),
        ({"agent": "shell", "metadata": {"\0": 1}}, 400, "invalid_text"),
    ],
)
def test_bad_sessions(shared_api, fields, status, code):
    with shared_api.http() as http:
        problem(http.post("/v1/sessions", json=fields), status, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/runs/run_nothing", 404, "not_found"),
        ("GET", "/v1/runs/%00", 404, "not_found"),
        ("GET", "/v1/runs/%ED%A0%80", 404, "not_found"),
        ("GET", "/v1/runs/a%20b", 404, "not_found"),
        ("GET", "/v1/sessions/ses_nothing/events", 404, "not_found"),
        ("GET", "/v1/runs/run_nothing/events", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("PUT", "/v1/runs", 405, "method_not_allowed"),
        ("DELETE", "/v1/runs/run_x", 405, "method_not_allowed"),
        ("GET", "/v1/runs?limit=0", 422, "invalid_request"),
        ("GET", "/v1/runs?limit=100000", 422, "invalid_request"),
        ("GET", "/v1/runs?status=nope", 422, "invalid_request"),
        ("GET", "/v1/runs?cursor=%00", 400, "invalid_cursor"),
        ("GET", "/v1/runs?cursor=garbage", 400, "invalid_request"),
        ("GET", "/v1/runs?session=%00", 400, "invalid_request"),
        ("GET", "/v1/runs?workspace=nowhere", 404, "not_found"),
        ("GET", "/v1/runs?created_after=yesterday", 422, "invalid_request"),
        ("GET", "/v1/workers/nobody", 404, "not_found"),
        ("POST", "/v1/workers/nobody/drain", 404, "not_found"),
        ("DELETE", "/v1/keys/key_nothing", 404, "not_found"),
        ("GET", "/v1/workspaces/nowhere", 404, "not_found"),
    ],
)
def test_bad_paths_and_queries(shared_api, method, path, status, code):
    with shared_api.http() as http:
        problem(http.request(method, path), status, code)


def test_input_to_a_run_that_does_not_wait(shared_api):
    with shared_api.http() as http:
        session = new_session(http)["id"]
        run_id = submit(http, session).json()["id"]
        problem(http.post(f"/v1/runs/{run_id}/input", json={"input": "y"}), 409, "run_not_waiting")
        problem(http.post(f"/v1/runs/{run_id}/input", json={"input": "\0"}), 400, "invalid_text")
