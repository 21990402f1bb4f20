"""Retries over HTTP: what may be asked for, and what a run shows while it waits for one."""

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.run import Outcome, RunError, RunStatus
from oah.ports.store import RetryPlan, Settlement


def new_session(http):
    return http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]


def submit(http, session, **fields):
    return http.post(f"/v1/sessions/{session}/runs", json={"input": "exit 1", **fields})


def fail(api, session, *, delay=timedelta(minutes=5)):
    started = api.start(session)
    outcome = Outcome(RunStatus.FAILED, error=RunError("exit_nonzero", "exit status 1"), exit_code=1)
    api.store.settle([Settlement(api.fence(started), outcome, retry=RetryPlan(delay, 3))])


@pytest.mark.parametrize("order", ["strict", "skip_failed"])
def test_a_run_that_waits_for_its_retry_says_so(apis, order):
    wish = {"initial_seconds": 300, "on": ["exit_nonzero"]}
    with apis.http() as http:
        session = new_session(http)
        run_id = submit(http, session, max_retries=3, retry=wish, order=order).json()["id"]
        before = http.get(f"/v1/runs/{run_id}").json()
        assert (before["max_retries"], before["retry"], before["order"]) == (3, wish, order)
        assert before["next_attempt_at"] is None
        fail(apis, session)
        run = http.get(f"/v1/runs/{run_id}").json()
        assert (run["status"], run["attempt"], run["failed_attempts"]) == ("queued", 1, 1)
        assert run["error"] == {"code": "exit_nonzero", "message": "exit status 1"}
        at = datetime.fromisoformat(run["next_attempt_at"])
        assert timedelta(minutes=4) < at - datetime.now(UTC) < timedelta(minutes=6)
        assert run["wait_reason"]["code"] == ("session_held" if order == "strict" else "retry_backoff")
        events = apis.store.events(session, after=2, limit=9)
        assert [event.type for event in events] == ["run.retrying", "run.queued"]
        [listed] = http.get("/v1/runs", params={"error_code": "exit_nonzero"}).json()["items"]
        assert listed["next_attempt_at"] == run["next_attempt_at"]
        assert http.post(f"/v1/runs/{run_id}/cancel").json()["result"] == "removed"
        assert http.get(f"/v1/runs/{run_id}").json()["next_attempt_at"] is None
        assert http.get(f"/v1/sessions/{session}").json()["holds"] == []


def test_what_is_left_out_is_the_profiles(api):
    with api.http() as http:
        run_id = submit(http, new_session(http)).json()["id"]
        run = http.get(f"/v1/runs/{run_id}").json()
        assert (run["max_retries"], run["retry"], run["order"]) == (None, None, "strict")


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"max_retries": 101}, 400, "max_retries"),
        ({"retry": {"factor": 0.5}}, 422, "factor"),
        ({"retry": {"initial_seconds": 1e9}}, 400, "initial_seconds"),
        ({"retry": {"jitter": 2}}, 422, "jitter"),
        ({"retry": {"on": ["deadline_exceeded"]}}, 400, "deadline_exceeded is never retried"),
        ({"retry": {"on": ["No Code"]}}, 400, "no error code"),
        ({"retry": {"tries": 3}}, 422, "tries"),
        ({"order": "any"}, 422, "order"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(shared_api, fields, status, said):
    with shared_api.http() as http:
        answer = submit(http, new_session(http), **fields)
        assert (answer.status_code, answer.json()["code"]) == (status, "invalid_request"), answer.text
        assert said in answer.text


def test_the_client_sends_the_wish(api):
    with api.http() as http, api.client() as client:
        session = new_session(http)
        run = client.submit(session, "x", max_retries=2, retry={"factor": 3}, order="skip_failed")
        shown = client.run(run["id"])
        assert (shown["max_retries"], shown["retry"], shown["order"]) == (2, {"factor": 3}, "skip_failed")
