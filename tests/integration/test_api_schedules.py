"""Schedules over HTTP and on the command line: what is answered, what is refused."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from oah.cli.main import oah
from tests.support.api import Deployment

RUN = {"input": "tick"}


def test_a_life(api: Deployment) -> None:
    with api.http("runner") as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        body = {"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Berlin", "session_id": session, "run": RUN}
        answer = http.post("/v1/schedules", json=body)
        made = answer.json()
        assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/schedules/{made['id']}")
        assert made["run"] == {"input": "tick", "class": "background"}
        assert (made["overlap"], made["session_id"], made["session"], made["paused"]) == ("skip", session, None, False)
        assert http.get("/v1/schedules/nightly").json() == made
        assert http.get("/v1/schedules").json()["items"] == [made]
        assert http.post("/v1/schedules", json=body).json()["code"] == "name_taken"
        paused = http.patch("/v1/schedules/nightly", json={"paused": True}).json()
        assert (paused["paused"], paused["next_at"]) == (True, None)
        assert http.patch("/v1/schedules/nightly", json={"paused": False}).json()["next_at"] == made["next_at"]
        own = http.patch("/v1/schedules/nightly", json={"session": {"agent": "shell"}}).json()
        assert (own["session_id"], own["session"], own["run"]) == (None, {"agent": "shell"}, made["run"])
        fired = http.post("/v1/schedules/nightly/trigger")
        assert fired.status_code == 202
        run = http.get(f"/v1/runs/{fired.json()['run_id']}").json()
        assert (run["class"], run["status"]) == ("background", "queued") and run["session_id"] != session
        assert [each["outcome"] for each in http.get("/v1/schedules/nightly/firings").json()["items"]] == ["triggered"]
        assert http.delete("/v1/schedules/nightly").status_code == 200
        assert http.get("/v1/schedules/nightly").status_code == 404
    with api.http("operator") as http:
        actions = [row["action"] for row in http.get("/v1/audit").json()["items"]]
        assert {f"schedule.{what}" for what in ("created", "changed", "triggered", "deleted")} <= set(actions)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"cron": "61 * * * *"}, 400, "invalid_cron"),
        ({"cron": "0 0 31 2 *"}, 400, "invalid_cron"),
        ({"timezone": "Mars"}, 400, "unknown_timezone"),
        ({"name": "No Name"}, 400, "invalid_request"),
        ({"run": {"input": " "}}, 400, "empty_input"),
        ({"run": {"input": "x", "delay_seconds": 3}}, 422, "invalid_request"),
        ({"run": {"input": "x", "priority": 101}}, 400, "invalid_request"),
        ({"session": {"agent": "nobody"}}, 400, "unknown_agent"),
        ({"session": {"agent": "shell", "env": {"A": 5}}}, 422, "invalid_request"),
        ({"session": None}, 400, "invalid_request"),
        ({"session_id": "ses_none"}, 400, "invalid_request"),
        ({"session_id": "ses_none", "session": None}, 404, "not_found"),
        ({"overlap": "both"}, 422, "invalid_request"),
        ({"every": "day"}, 422, "invalid_request"),
    ],
)
def test_what_is_refused(api: Deployment, change: dict, status: int, code: str) -> None:
    body = {"name": "n", "cron": "* * * * *", "session": {"agent": "shell"}, "run": RUN, **change}
    with api.http("runner") as http:
        answer = http.post("/v1/schedules", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert http.get("/v1/schedules").json()["items"] == []


def test_a_session_that_takes_no_runs_is_refused_at_once(api: Deployment) -> None:
    with api.http("runner") as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        http.delete(f"/v1/sessions/{session}")
        answer = http.post("/v1/schedules", json={"name": "n", "cron": "@daily", "session_id": session, "run": RUN})
        assert (answer.status_code, answer.json()["code"]) == (409, "session_closed")


def test_the_command_line(api: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_API_URL", api.url)
    monkeypatch.setenv("OAH_API_KEY", api.secrets["runner"])

    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(oah, ["schedule", *words])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    assert "fires next at" in call("create", "nightly", "@daily", "report", "--agent", "shell", "--overlap", "queue")
    assert "new shell" in call("list")
    call("create", "nightly", "@daily", "x", "--agent", "shell", code=4)
    assert "no cron expression" in call("create", "other", "nonsense", "x", "--agent", "shell", code=2)
    call("create", "other", "@daily", "x", code=2)
    assert "other is paused" in call(
        "create", "other", "@daily", "x", "--agent", "shell", "--priority", "7", "--paused"
    )
    assert json.loads(call("show", "other", "--json"))["run"]["priority"] == 7
    changed = json.loads(call("update", "nightly", "--input", "other words", "--cron", "@hourly", "--json"))
    assert (changed["run"], changed["cron"]) == ({"class": "background", "input": "other words"}, "@hourly")
    assert "is paused" in call("pause", "nightly")
    assert "fires next at" in call("resume", "nightly")
    run = call("trigger", "nightly").strip()
    assert run in call("firings", "nightly")
    assert len(call("preview", "0 */2 * * *", "--count", "2").splitlines()) == 3
    assert len(json.loads(call("preview", "0 */2 * * *", "--count", "2", "--json"))["times"]) == 2
    assert "is deleted" in call("delete", "nightly")
    call("show", "nightly", code=3)
