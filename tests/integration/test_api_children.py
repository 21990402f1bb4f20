"""What an agent starts over HTTP with the key of its run, what it sees of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Barrier, Event, Semaphore
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from oah.api import stream
from oah.api.routes import events
from oah.cli.main import oah
from oah.client import OwnRun
from oah.core.model.ids import RunId
from oah.core.model.run import RunClass, RunStatus
from oah.core.policy.children import Bounds, Reach
from oah.errors import NotFound
from oah.ports.store import Started
from oah.services.children import Rules
from oah.services.run_keys import run_key
from tests.support import eventually
from tests.support.api import Deployment


class Agent:
    """The agent of an attempt, as the API sees it."""

    def __init__(self, api: Deployment, started: Started) -> None:
        self.api, self.run, self.fence = api, started.run, api.fence(started)
        self.environment = {"OAH_API_URL": api.url, "OAH_RUN_KEY": run_key(self.fence), "OAH_RUN_ID": self.run.id}
        headers = {"authorization": f"Bearer {run_key(self.fence)}"}
        self.http = httpx.Client(base_url=f"{api.url}/v1", headers=headers, timeout=20)

    def session(self, key: str | None = None, **body: Any) -> httpx.Response:
        return self.http.post("/sessions", json=body, headers={} if key is None else {"idempotency-key": key})

    def submit(self, session: str, text: str = "x", key: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if key is None else {"idempotency-key": key}
        return self.http.post(f"/sessions/{session}/runs", json={"input": text, **body}, headers=headers)

    def child(self, text: str = "x") -> Any:
        """A run in a session of its own; its receipt."""
        made = self.submit(self.session().json()["id"], text)
        assert made.status_code == 202, made.text
        return made.json()


def hired(api: Deployment, who: str = "admin", **session: Any) -> Agent:
    """An agent at work."""
    with api.http(who) as http:
        opened = http.post("/v1/sessions", json={"agent": "shell", **session}).json()["id"]
        http.post(f"/v1/sessions/{opened}/runs", json={"input": "x"})
    return Agent(api, api.start(opened))


@pytest.fixture
def api(shared_api: Deployment) -> Deployment:
    """One for all of them, on each database: what a run's key opens is its own."""
    return shared_api


@pytest.fixture
def agent(api: Deployment) -> Iterator[Agent]:
    made = hired(api, pool="far")
    yield made
    made.http.close()


@pytest.fixture
def one(api: Deployment) -> Iterator[Agent]:
    """Where nothing is said about pools."""
    made = hired(api)
    yield made
    made.http.close()


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_child_is_started_seen_and_awaited(api: Deployment, agent: Agent) -> None:
    opened = agent.session(title="review")
    assert opened.status_code == 201, opened.text
    session = opened.json()
    assert (session["lane"], session["parent_run_id"]) == ("far/shell", agent.run.id), "where its parent is"
    child = agent.submit(session["id"], "review it").json()["id"]
    shown = agent.http.get(f"/runs/{child}").json()
    assert (shown["parent_run_id"], shown["class"], shown["status"]) == (agent.run.id, "subagent", "queued")
    assert shown["workspace_id"] == session["workspace_id"] == agent.run.workspace_id
    waiting = agent.http.post(f"/runs/{agent.run.id}/wait", json={"children": True}).json()
    assert waiting["status"] == "waiting_tool"
    with agent.http.stream("GET", f"/runs/{child}/events") as streamed:
        assert api.work(session["id"], output="reviewed") == child
        told = "".join(streamed.iter_text())
    assert "run.completed" in told, "and the stream has ended"
    assert agent.http.get(f"/runs/{child}/result").json()["output"] == "reviewed"
    assert agent.http.get(f"/runs/{child}/output").text == "reviewed"
    assert [each["attempt"] for each in agent.http.get(f"/runs/{child}/attempts").json()["items"]] == [1]
    assert agent.http.get(f"/runs/{child}/steps").json()["items"] == []
    assert agent.http.get(f"/runs/{child}/transcript").json()["code"] == "no_recording"
    assert agent.http.get(f"/sessions/{session['id']}").json()["title"] == "review"
    assert agent.http.delete(f"/sessions/{session['id']}").json()["state"] == "closed"


def test_it_lists_and_ends_its_own_only(api: Deployment, agent: Agent) -> None:
    first, second = agent.child(), agent.child()
    other = hired(api)
    theirs = other.child()
    listed = agent.http.get("/runs", params={"status": "queued"}).json()["items"]
    assert [each["id"] for each in listed] == [second["id"], first["id"]]
    assert agent.http.get("/runs", params={"parent": agent.run.id}).json()["items"]
    assert code(agent.http.get("/runs", params={"parent": other.run.id})) == (403, "not_its_child")
    assert code(agent.http.get("/runs", params={"workspace": "foreign"})) == (404, "not_found")
    cancelled = agent.http.post(f"/runs/{first['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["result"]) == (202, "removed")
    assert code(agent.http.post(f"/runs/{theirs['id']}/cancel")) == (404, "not_found")
    assert api.store.run(RunId(theirs["id"]), None).status is RunStatus.QUEUED
    with api.http("reader") as http:
        found = http.get("/v1/runs", params={"parent": agent.run.id}).json()["items"]
        assert {each["id"] for each in found} == {first["id"], second["id"]}
    other.http.close()


def test_what_is_not_below_it_is_not_there(api: Deployment, one: Agent) -> None:
    child = one.child()
    below = Agent(api, api.start(child["session_id"]))
    grandchild = below.child()
    foreign = hired(api, "foreigner").child()
    with api.http() as http:
        mine = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        stranger = http.post(f"/v1/sessions/{mine}/runs", json={"input": "secret"}).json()
    for run in (one.run.id, grandchild["id"], foreign["id"], stranger["id"], "run_nothing"):
        for path in ("", "/result", "/output", "/attempts", "/steps", "/transcript", "/events"):
            assert code(one.http.get(f"/runs/{run}{path}")) == (404, "not_found"), (run, path)
        assert code(one.http.post(f"/runs/{run}/cancel")) == (404, "not_found")
    for session in (mine, foreign["session_id"], grandchild["session_id"], "ses_nothing"):
        assert code(one.submit(session)) == (404, "not_found")
        assert code(one.http.get(f"/sessions/{session}")) == (404, "not_found")
        assert code(one.http.delete(f"/sessions/{session}")) == (404, "not_found")
    refused = code(one.submit(one.run.session_id))
    assert refused == (409, "own_session"), "it would wait for itself"
    for method in ("GET", "DELETE"):
        assert code(one.http.request(method, f"/sessions/{one.run.session_id}")) == (404, "not_found")
    # Cancelled, it takes all that is below with it.
    assert one.http.post(f"/runs/{child['id']}/cancel").json()["result"] == "signalled"
    assert api.store.run(RunId(grandchild["id"]), None).status is RunStatus.CANCELLED
    below.http.close()


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
def test_it_stops_nobody_elses_run_in_a_session_that_it_has_opened(api: Deployment, one: Agent, how: str) -> None:
    session = one.session().json()["id"]
    with api.http() as http:
        theirs = [http.post(f"/v1/sessions/{session}/runs", json={"input": "x"}).json()["id"] for _ in range(2)]
    running = api.start(session)
    assert running.run.id == theirs[0]
    assert code(one.submit(session, on_busy=how)) == (403, "not_its_child")
    queued = one.submit(session).json()["id"]
    assert one.http.delete(f"/sessions/{session}", params={"cancel": True}).json()["state"] == "closing"
    assert api.store.run(RunId(queued), None).status is RunStatus.CANCELLED
    assert api.store.run(RunId(theirs[1]), None).status is RunStatus.QUEUED
    assert api.store.run(RunId(theirs[0]), None).cancel_requested_at is None
    api.settle(running)
    api.work(session)
    assert api.store.session(running.run.session_id, None).state == "closed"


def test_it_interrupts_its_own_child(api: Deployment, one: Agent) -> None:
    child = one.child()
    api.start(child["session_id"])
    assert one.submit(child["session_id"], on_busy="interrupt").status_code == 202
    assert api.store.run(RunId(child["id"]), None).stop_reason == "interrupt"


def test_a_child_is_refused(one: Agent) -> None:
    session = one.session().json()["id"]
    for body, status, said in (
        ({"parent_run_id": "run_other"}, 403, "not_its_child"),
        ({"class": "interactive"}, 403, "child_class"),
        ({"class": "background"}, 403, "child_class"),
        ({"on_busy": "steer"}, 403, "child_steer"),
        ({"input": " "}, 400, "empty_input"),
    ):
        assert code(one.submit(session, **body)) == (status, said)
    items = [
        {"session_id": session, "input": text, "parent_run_id": run} for text, run in (("bad", "x"), ("good", None))
    ]
    bad, good = one.http.post("/runs:batch", json={"items": items}).json()["items"]
    assert bad["error"]["code"] == "not_its_child" and good["status"] == "queued", "each member has its own answer"
    [left] = one.http.get("/runs").json()["items"]
    assert (left["input"], left["parent_run_id"]) == ("good", one.run.id)


def test_a_session_is_refused(one: Agent) -> None:
    refused: tuple[tuple[dict[str, Any], int, str], ...] = (
        ({"agent": "python"}, 403, "child_agent"),
        ({"pool": "far"}, 403, "child_pool"),
        ({"env": {"A": {"secret": "PROD"}}}, 403, "child_secret"),
        ({"worktree": {"repo": "/src"}}, 403, "child_worktree"),
        ({"wake": "eager"}, 403, "child_wake"),
        ({"workspace": "foreign"}, 404, "not_found"),
        ({"agent": "nonesuch"}, 400, "unknown_agent"),
        ({"cwd": "relative"}, 400, "invalid_request"),
    )
    for body, status, said in refused:
        assert code(one.session(**body)) == (status, said), body


def test_the_repository_of_its_workspace_is_not_given_to_who_has_it_not(api: Deployment) -> None:
    without, has = hired(api, cwd="/tmp"), hired(api, worktree={"repo": "/src/app"})
    api.store.update_workspace("default", {"worktree": {"repo": "/src/app"}})
    try:
        assert without.session().json()["worktree"] is None
        assert has.session().json()["worktree"]["repo"] == "/src/app"
    finally:
        api.store.update_workspace("default", {"worktree": None})
        without.http.close()
        has.http.close()


def test_what_the_deployment_names_is_allowed(api: Deployment, one: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(depth=1, live=2, in_all=3)
    rules = Rules(bounds, Reach(agents=frozenset({"python"}), pools=frozenset({"*"})))
    monkeypatch.setattr(api.state, "context", replace(api.context, children=rules))
    made = one.session(agent="python", pool="far")
    assert (made.status_code, made.json()["lane"]) == (201, "far/python")
    session = made.json()["id"]
    assert [one.submit(session).status_code for _ in range(2)] == [202, 202]
    full = one.submit(session)
    assert code(full) == (429, "too_many_live_children")
    child = api.start(session)
    below = Agent(api, child)
    assert code(below.submit(below.session().json()["id"])) == (409, "tree_too_deep")
    api.settle(child)
    assert one.submit(session).status_code == 202
    assert code(one.submit(session)) == (409, "too_many_children")
    below.http.close()


def test_a_later_attempt_finds_the_children_of_the_one_before(api: Deployment, agent: Agent) -> None:
    """Lost in the middle: its key is dead, its children go on, and the same lines find them again."""
    session = agent.session("review").json()["id"]
    child = agent.submit(session, key="review").json()["id"]
    with agent.http.stream("GET", f"/runs/{child}/events") as streamed:
        assert streamed.status_code == 200
    api.store.release([agent.fence])
    for answer in (
        agent.session("review"),
        agent.submit(session, key="review"),
        agent.http.get("/runs"),
        agent.http.get(f"/runs/{child}"),
        agent.http.post(f"/runs/{child}/cancel"),
    ):
        assert code(answer) == (401, "unauthorized")
    assert api.store.run(RunId(child), None).status is RunStatus.QUEUED, "children of a lost attempt go on"

    again = Agent(api, api.start(agent.run.session_id))
    assert again.fence.attempt == agent.fence.attempt + 1
    reopened = again.session("review")
    assert (reopened.json()["id"], reopened.headers["idempotent-replayed"]) == (session, "true")
    found = again.submit(session, key="review")
    assert (found.json()["id"], found.headers["idempotent-replayed"]) == (child, "true")
    assert code(again.submit(session, "another text", key="review")) == (409, "idempotency_conflict")
    assert [each["id"] for each in again.http.get("/runs").json()["items"]] == [child]
    # Keys are the run's own: another run's of the same name are others.
    other = hired(api)
    elsewhere = other.session("review").json()["id"]
    assert elsewhere != session and other.submit(elsewhere, key="review").json()["id"] != child
    again.http.close()
    other.http.close()


def test_a_stream_ends_with_the_attempt(api: Deployment, one: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEY_CHECK", 0.0)
    child = one.child()
    with one.http.stream("GET", f"/runs/{child['id']}/events", params={"keep_alive": 1}) as streamed:
        api.store.release([one.fence])
        assert "run.completed" not in "".join(streamed.iter_text())
    assert api.store.run(RunId(child["id"]), None).status is RunStatus.QUEUED


def test_its_streams_are_few(one: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_OF_RUN", 2)
    reading: list[Iterator[str]] = []
    path = f"/runs/{one.child()['id']}/events"
    with ExitStack() as opened:
        for _ in range(2):
            answer = opened.enter_context(one.http.stream("GET", path, params={"keep_alive": 1}))
            reading.append(answer.iter_text())
            assert next(reading[-1]), "it has begun"
        with one.http.stream("GET", path) as refused:
            assert refused.status_code == 429
            assert json.loads(refused.read())["code"] == "too_many_readers"

    def another() -> bool:
        with one.http.stream("GET", path, params={"keep_alive": 1}) as answer:
            return answer.status_code == 200

    eventually(another, what="they are counted while they last")


def test_of_streams_that_are_opened_at_once_not_one_is_too_many(one: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_OF_RUN", 2)
    path = f"/runs/{one.child()['id']}/events"
    under_way, goes_on, about = Semaphore(0), Event(), events._about

    def slowly(*args: Any) -> Any:
        under_way.release()
        assert goes_on.wait(20)
        return about(*args)

    monkeypatch.setattr(events, "_about", slowly)

    def open_one(_number: int) -> int:
        with one.http.stream("GET", path, params={"keep_alive": 1}) as answer:
            if answer.status_code == 200:
                next(answer.iter_text())
            else:
                under_way.release()
            everybody.wait(20)
            return answer.status_code

    everybody = Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        opened = pool.map(open_one, range(4))
        for _ in range(4):
            assert under_way.acquire(timeout=20)
        goes_on.set()
        assert sorted(opened) == [200, 200, 429, 429]


def test_one_that_is_asked_to_stop_starts_nothing(api: Deployment, one: Agent) -> None:
    session = one.session().json()["id"]
    api.store.cancel(one.run.id, None, by="somebody")
    assert code(one.submit(session)) == (409, "run_stopping")
    assert code(one.session()) == (409, "run_stopping")


def test_the_client_inside_a_run(api: Deployment, one: Agent) -> None:
    with OwnRun(one.environment) as run:
        child = run.submit("review it", idempotency_key="k", title="t")
        assert run.submit("review it", idempotency_key="k", title="t") == {**child, "replayed": True}
        follow_up = run.submit("and now?", session_id=child["session_id"])
        api.work(child["session_id"], output="reviewed")
        assert run.client.wait(child["id"])["status"] == "completed"
        assert run.client.result(child["id"])["output"] == "reviewed"
        assert [each["id"] for each in run.children()] == [follow_up["id"], child["id"]]
        assert run.client.cancel(follow_up["id"])["result"] == "removed"
        run.wait_for_children()
        run.client.close_session(child["session_id"])
        with pytest.raises(NotFound):
            run.client.run(one.run.id)
    assert api.store.run(RunId(child["id"]), None).run_class is RunClass.SUBAGENT


def test_the_commands_inside_a_run(api: Deployment, one: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OAH_API_KEY", raising=False)
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)

    def call(*args: str) -> str:
        result = CliRunner().invoke(oah, list(args))
        assert result.exit_code == 0, result.stderr
        return result.stdout.strip()

    opened = [call("session", "create", "--agent", "shell", "--idempotency-key", "k") for _ in range(2)]
    assert opened[0] == opened[1]
    runs = [call("run", "submit", opened[0], "review it", "--idempotency-key", "k") for _ in range(2)]
    assert runs[0] == runs[1]
    api.work(opened[0], output="reviewed")
    assert call("run", "wait", runs[0]) == "completed"
    assert call("run", "result", runs[0]) == "reviewed"
    call("run", "wait-children")
    assert [each["id"] for each in json.loads(call("run", "list", "--json"))["items"]] == [runs[0]]
    eventually(lambda: "closed" in call("session", "close", opened[0]))
