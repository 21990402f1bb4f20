"""Over HTTP: what a workspace says about recovery, why runs wait on lists, and what does not move."""

from oah.core.model.ids import SessionId
from oah.core.model.session import HoldReason
from tests.integration.test_api_runs import new_session, problem, submit


def test_a_workspace_says_what_becomes_of_lost_runs_and_takes_it_back(api):
    with api.http() as http:
        made = http.post("/v1/workspaces", json={"name": "w", "recovery_strategy": "fail", "recovery_max_attempts": 0})
        assert made.status_code == 201, made.text
        assert (made.json()["recovery_strategy"], made.json()["recovery_max_attempts"]) == ("fail", 0)
        changed = http.patch("/v1/workspaces/w", json={"recovery_strategy": "requeue_all"}).json()
        assert (changed["recovery_strategy"], changed["recovery_max_attempts"]) == ("requeue_all", 0)
        none = {"recovery_strategy": None, "recovery_max_attempts": None}
        back = http.patch("/v1/workspaces/w", json=none).json()
        assert {name: back[name] for name in none} == none
        assert http.get("/v1/workspaces/w").json()["recovery_strategy"] is None
        for wrong in ({"recovery_strategy": "pray"}, {"recovery_max_attempts": -1}, {"recovery_max_attempts": 10**6}):
            assert http.patch("/v1/workspaces/w", json=wrong).status_code in (400, 422), wrong


def test_a_page_of_runs_says_why_each_waits_and_asks_the_broker_once(api):
    with api.http() as http:
        session = new_session(http)["id"]
        first, second = (submit(http, session).json()["id"] for _ in range(2))
        for _ in range(5):
            submit(http, new_session(http)["id"])
        listed = http.get("/v1/runs").json()["items"]
        reasons = {one["id"]: one["wait_reason"] for one in listed}
        assert len(reasons) == 7
        assert reasons[second]["code"] == "behind_run"
        assert reasons[second]["run_id"] == first
        assert {reason["code"] for name, reason in reasons.items() if name != second} == {"no_worker"}
        api.broker.calls.clear()
        http.get("/v1/runs")
        assert sorted(api.broker.calls) == ["leader", "view", "workers"]
        api.broker.off()
        listed = http.get("/v1/runs").json()["items"]
        assert {one["wait_reason"]["code"] for one in listed} == {"behind_run", "broker_away"}


def test_the_diagnosis_is_of_the_callers_workspace(api):
    with api.http() as http:
        session = new_session(http)["id"]
        run_id = submit(http, session).json()["id"]
        found = http.get("/v1/diagnosis", params={"waiting_seconds": 0}).json()
        [waiting] = found["waiting"]
        assert (waiting["run_id"], waiting["session_id"]) == (run_id, session)
        assert waiting["wait_reason"]["code"] == "no_worker"
        assert found["waiting_reasons"] == {"no_worker": 1}
        assert http.get("/v1/diagnosis").json()["waiting"] == [], "not for long enough"
        problem(http.get("/v1/diagnosis", params={"waiting_seconds": -1}), 422, "invalid_request")
    with api.http("foreigner") as http:
        found = http.get("/v1/diagnosis", params={"waiting_seconds": 0}).json()
        assert (found["waiting"], found["unserved_lanes"], found["unplaced"]) == ([], [], [])


def test_a_hold_for_what_could_not_be_killed_ends_when_an_operator_says_so(api):
    with api.http("operator") as http, api.http("runner") as runner:
        session = new_session(http)["id"]
        api.store.hold_session(SessionId(session), None, HoldReason.UNKILLABLE, until_in=None)
        problem(runner.post(f"/v1/sessions/{session}/resume", params={"unkillable": "true"}), 403, "forbidden")
        found = http.get("/v1/diagnosis").json()
        assert [one["session_id"] for one in found["unkillable"]] == [session]
        assert http.post(f"/v1/sessions/{session}/resume").json()["holds"], "a resume is no such word"
        assert http.post(f"/v1/sessions/{session}/resume", params={"unkillable": "true"}).json()["holds"] == []
        assert http.get("/v1/diagnosis").json()["unkillable"] == []
