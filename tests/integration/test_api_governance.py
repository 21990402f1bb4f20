"""Pauses and caps over HTTP: they reach the broker at once, and leave a trace."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import Place
from oah.errors import Forbidden, InvalidRequest, LimitReached, NotFound
from oah.ports.broker import ClaimRequest, Free, Target
from tests.support import eventually
from tests.support.api import EPOCH, WORKER

LANE = Lane("default", "shell")


def submit(api, session: str) -> str:
    """A run of which the broker has heard."""
    run = api.client().submit(session, "echo hi")["id"]
    eventually(lambda: api.broker.leases(EPOCH, [SessionId(session)])[0].place is Place.READY)
    return run


def claim(api, want: int = 1) -> list[str]:
    """Sessions that a worker gets."""
    token = ClaimToken(api.ids.nonce())
    request = ClaimRequest(WORKER, token, timedelta(seconds=6), 1, want, ((LANE, ReadyClass.INTERACTIVE),))
    return [each.session_id for each in api.broker.claim(EPOCH, request).sessions]


def free(api, session: str) -> None:
    token = api.broker.leases(EPOCH, [SessionId(session)])[0].token
    api.broker.free(EPOCH, [Free(SessionId(session), token, Target.IDLE)])


def test_a_pause_stops_claims_at_once_and_says_so(api) -> None:
    client = api.client()
    for kind, name in (("workspace", "default"), ("pool", "default"), ("profile", "shell"), ("all", None)):
        session = client.create_session("shell")["id"]
        made = client.pause(kind, name, reason="night")
        assert (made["kind"], made["name"], made["reason"]) == (kind, name, "night")
        run = submit(api, session)
        assert claim(api) == []
        reason = client.run(run)["wait_reason"]
        assert (reason["code"], reason["kind"]) == ("paused", kind)
        assert [each["kind"] for each in client.pauses()] == [kind]
        assert client.resume(kind, name)["was_paused"]
        assert not client.resume(kind, name)["was_paused"]
        assert claim(api) == [session]
        free(api, session)
    assert {"all.paused", "all.resumed", "pool.paused"} <= {row["action"] for row in client.audit()}


def test_caps_reach_the_broker_at_once(api) -> None:
    client = api.client()
    assert client.set_cap("profile", "shell", max_active_runs=1)["max_active_runs"] == 1
    client.set_cap("all", max_active_runs=5)
    assert [(cap["kind"], cap["max_active_runs"]) for cap in client.caps()] == [("all", 5), ("profile", 1)]
    sessions = [client.create_session("shell")["id"] for _ in range(2)]
    for session in sessions:
        submit(api, session)
    assert len(claim(api, want=2)) == 1
    client.set_cap("profile", "shell", max_active_runs=None)
    assert len(claim(api, want=2)) == 1
    client.update_workspace("default", max_active_runs=2)
    submit(api, client.create_session("shell")["id"])
    assert claim(api) == []


def test_what_cannot_be_paused_or_capped(api) -> None:
    client = api.client()
    with pytest.raises(NotFound):
        client.pause("workspace", "nothing")
    for kind, name in (("pool", None), ("pool", "No Name"), ("all", "x"), ("planet", "x")):
        with pytest.raises(InvalidRequest):
            client.pause(kind, name)
    with pytest.raises(InvalidRequest):
        client.set_cap("pool", "default", max_active_runs=3)
    own = api.client("operator")
    assert own.pause("workspace")["name"] == "default"
    own.resume("workspace")
    with pytest.raises(Forbidden):
        own.pause("profile", "shell")
    with pytest.raises(Forbidden):
        own.set_cap("all", max_active_runs=3)


def test_a_rate_is_429_with_the_time_to_come_again(api) -> None:
    admin, client = api.client(), api.client("runner", retries=0)
    session = client.create_session("shell")["id"]
    admin.update_workspace("default", runs_per_minute=2, runs_burst=1)
    shown = admin.workspace("default")
    assert (shown["runs_per_minute"], shown["runs_burst"]) == (2, 1)
    [deed] = [row for row in admin.audit() if row["action"] == "workspace.changed"]
    assert deed["subject"] == "default" and deed["data"] == {"runs_per_minute": 2, "runs_burst": 1}
    client.submit(session, "echo hi")
    with pytest.raises(LimitReached) as caught:
        client.submit(session, "echo hi")
    assert caught.value.code == "rate_limited"
    assert caught.value.retry_after is not None and 25 <= caught.value.retry_after.total_seconds() <= 30
    [item] = client.submit_many([{"session_id": session, "input": "echo hi"}])
    assert item["error"]["code"] == "rate_limited" and 25 < item["error"]["retry_after_seconds"] <= 30
    admin.update_workspace("default", runs_per_minute=None)
    client.submit(session, "echo hi", priority=7)
    assert client.runs(limit=1)[0]["priority"] == 7
    for wrong in ({"runs_per_minute": 0}, {"runs_burst": -1}):
        with pytest.raises(InvalidRequest):
            admin.update_workspace("default", **wrong)
    with pytest.raises(InvalidRequest):
        client.submit(session, "echo hi", priority=101)


def test_a_wait_for_children_over_http(api) -> None:
    client = api.client()
    parent = client.submit(client.create_session("shell")["id"], "sh parent.sh")
    api.start(parent["session_id"])
    assert client.begin_wait(parent["id"], children=True)["status"] == "running", "there are none"
    child = client.submit(client.create_session("shell")["id"], "sh child.sh", parent_run_id=parent["id"])
    assert client.run(child["id"])["class"] == "subagent"
    other = client.submit(client.create_session("shell")["id"], "x", parent_run_id=parent["id"], run_class="background")
    assert client.run(other["id"])["class"] == "background"
    api.broker.calls.clear()
    assert client.begin_wait(parent["id"], children=True)["status"] == "waiting_tool"
    assert "look" in api.broker.calls, "its worker hears of it"
    shown = client.run(parent["id"])
    assert (shown["wait_reason"]["code"], shown["question"]) == ("waiting_children", None)
    with pytest.raises(InvalidRequest):
        client.begin_wait(parent["id"])
