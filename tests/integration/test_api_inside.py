"""What the agent of a run tells over HTTP with the key of its run, what that key opens, and when it is dead."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import httpx
import pytest

from oah.api import state
from oah.core.model.ids import RunId, WorkerId
from oah.core.model.question import Choice, DialogKind, Question
from oah.core.model.run import RunStatus
from oah.ports.commands import CommandKind, Delivery
from oah.ports.questions import Asked
from oah.ports.steps import Inside
from oah.ports.store import RunFence, Started
from oah.services.run_keys import run_key
from tests.support import eventually
from tests.support.api import WORKER, Deployment


class Agent:
    """The agent of an attempt, as the API sees it."""

    def __init__(self, api: Deployment, started: Started) -> None:
        self.run, self.fence = started.run, api.fence(started)
        headers = {"authorization": f"Bearer {run_key(self.fence)}"}
        self.http = httpx.Client(base_url=api.url, headers=headers, timeout=20)

    def say(self, word: str, **body: object) -> httpx.Response:
        return self.http.post(f"/v1/runs/{self.run.id}/{word}", json=body)


@pytest.fixture
def agent(api: Deployment) -> Iterator[Agent]:
    with api.http() as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        http.post(f"/v1/sessions/{session}/runs", json={"input": "x", "step_timeout_seconds": 60})
    made = Agent(api, api.start(session))
    yield made
    made.http.close()


def test_an_agent_tells_its_steps(api: Deployment, agent: Agent) -> None:
    begun = agent.say("steps", name="bash", kind="tool", data={"command": "make"})
    assert begun.status_code == 201, begun.text
    assert (begun.json()["number"], begun.json()["state"], begun.json()["ended_at"]) == (1, "started", None)
    assert begun.json()["deadline"] is not None, "the run's step_timeout"
    ended = agent.say("steps", state="finished", number=1, failed=True, data={"exit_code": 2})
    assert (ended.json()["state"], ended.json()["outcome"]) == ("finished", "failed")
    at_once = agent.say("steps", state="finished", name="noted", kind="model")
    assert (at_once.json()["number"], at_once.json()["state"], at_once.json()["kind"]) == (2, "finished", "model")
    agent.say("steps", name="left open")
    with api.http("reader") as reader:
        shown = reader.get(f"/v1/runs/{agent.run.id}/steps").json()["items"]
    assert [(one["name"], one["state"]) for one in shown] == [
        ("bash", "finished"),
        ("noted", "finished"),
        ("left open", "started"),
    ]
    assert shown[0]["started_at"] <= shown[0]["ended_at"]
    api.store.release([agent.fence])
    with api.http("reader") as reader:
        assert reader.get(f"/v1/runs/{agent.run.id}/steps").json()["items"][-1]["state"] == "abandoned"


@pytest.mark.parametrize(
    ("word", "body"),
    [
        ("steps", {"name": "x", "kind": "wait"}),
        ("steps", {"name": "x", "kind": "system"}),
        ("steps", {}),
        ("steps", {"name": " "}),
        ("steps", {"name": "x", "number": 1}),
        ("steps", {"name": "x", "timeout_seconds": 0}),
        ("steps", {"name": "x" * 300}),
        ("progress", {"percent": 101}),
        ("progress", {"percent": float("1e400")}),
        ("progress", {"text": "a\0b"}),
        ("wait", {}),
        ("wait", {"reason": ""}),
        ("wait", {"reason": "x", "timeout_seconds": -1}),
        ("wait", {"reason": "x", "typo": 1}),
    ],
)
def test_what_makes_no_sense_is_refused(agent: Agent, word: str, body: dict[str, object]) -> None:
    if body.get("percent") == float("inf"):
        answer = agent.http.post(
            f"/v1/runs/{agent.run.id}/{word}",
            content='{"percent": 1e400}',
            headers={"content-type": "application/json"},
        )
    else:
        answer = agent.say(word, **body)
    assert answer.status_code in (400, 413, 422), answer.text
    assert "code" in answer.json()


def test_progress_and_waiting(api: Deployment, agent: Agent) -> None:
    said = agent.say("progress", text="half way", percent=50)
    assert said.status_code == 202 and said.json()["event"] > 0
    assert agent.say("progress").json()["event"] is None, "a moment later"
    waiting = agent.say("wait", reason="may I?")
    assert (waiting.status_code, waiting.json()["status"]) == (202, "waiting_tool")
    with api.http("reader") as reader:
        shown = reader.get(f"/v1/runs/{agent.run.id}").json()
        assert (shown["status"], shown["wait_reason"]["code"]) == ("waiting_tool", "waiting_input")
        assert shown["wait_reason"]["asked"] == "may I?" and shown["wait_reason"]["since"]
    assert agent.say("resume").json()["status"] == "running"
    events = api.store.events(agent.run.session_id, after=0, limit=100)
    assert [one.type for one in events][-3:] == ["run.progress", "run.waiting_tool", "run.resumed"]
    assert events[-3].data == {"text": "half way", "percent": 50.0}
    assert (events[-2].data["reason"], events[-1].data["by"]) == ("may I?", "agent")


def test_ordinary_keys_that_may_run_may_speak_for_a_run_too(api: Deployment, agent: Agent) -> None:
    with api.http("runner") as runner, api.http("reader") as reader:
        path = f"/v1/runs/{agent.run.id}/steps"
        assert runner.post(path, json={"name": "x"}).status_code == 201
        assert reader.post(path, json={"name": "x"}).status_code == 403


def test_the_key_of_a_run_opens_nothing_else(api: Deployment, agent: Agent) -> None:
    with api.http() as http:
        document = http.get("/openapi.json").json()
        other = http.post(f"/v1/sessions/{agent.run.session_id}/runs", json={"input": "y"}).json()["id"]
    refused = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/v1") or operation.get("x-oah-run-key"):
                continue
            names = {"run_id": agent.run.id, "session_id": agent.run.session_id}
            filled = re.sub(r"\{(\w+)\}", lambda found, names=names: str(names.get(found[1], "default")), path)
            answer = agent.http.request(method, filled, json={} if "requestBody" in operation else None)
            assert answer.status_code == 403, (method, path, answer.text)
            refused.append(path)
    assert len(refused) > 30
    for word in ("steps", "progress", "wait"):
        body = {"name": "x"} if word == "steps" else {"reason": "x"} if word == "wait" else {}
        assert agent.http.post(f"/v1/runs/{other}/{word}", json=body).status_code == 404


@pytest.mark.parametrize("end", ["settle", "release", "cancelled"])
def test_the_key_dies_with_its_attempt(api: Deployment, agent: Agent, end: str) -> None:
    assert agent.say("progress").status_code == 202
    if end == "settle":
        api.store.settle([settlement(agent.fence)])
    else:
        if end == "cancelled":
            api.store.cancel(agent.run.id, None, by="somebody")
            assert agent.say("progress").status_code == 202, "only asked to stop"
        api.store.release([agent.fence])
    for word, body in (("progress", {}), ("steps", {"name": "x"}), ("wait", {"reason": "x"}), ("resume", {})):
        answer = agent.http.post(f"/v1/runs/{agent.run.id}/{word}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), word
    if end == "release":
        again = Agent(api, api.start(agent.run.session_id))
        assert again.say("progress").status_code == 202
        assert agent.say("progress").status_code == 401, "the next attempt has another key"
        again.http.close()


def settlement(fence: RunFence):
    from oah.core.model.run import Outcome
    from oah.ports.store import Settlement

    return Settlement(fence, Outcome(RunStatus.COMPLETED))


def test_a_key_cannot_be_made_up(api: Deployment, agent: Agent) -> None:
    good = run_key(agent.fence)
    run, attempt, mac = agent.run.id, agent.fence.attempt, good.rpartition(".")[2]
    for bad in (
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        f"oahr.{run}.{attempt + 1}.{mac}",
        f"oahr.{run}.{attempt}.",
        f"oahr.{run}.{agent.fence.token}",
        f"oahr.nonesuch.1.{mac}",
        "oahr.",
        "oahr.....",
        "oahr." + "x" * 300,
        f"oahr.{run}.{attempt}.{agent.fence.token}",
    ):
        answer = httpx.post(
            f"{api.url}/v1/runs/{run}/progress", json={}, headers={"authorization": f"Bearer {bad}"}, timeout=20
        )
        assert answer.status_code == 401, bad


# --- input -----------------------------------------------------------------------------------------------------------


class Owner:
    """What the run's worker does with the commands for it, in a thread."""

    def __init__(self, api: Deployment, agent: Agent, delivery: Delivery) -> None:
        self.taken: list[tuple[CommandKind, str]] = []
        self._thread = threading.Thread(target=self._serve, args=(api, agent, delivery), daemon=True)

    def __enter__(self) -> Owner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)

    def _serve(self, api: Deployment, agent: Agent, delivery: Delivery) -> None:
        commands = eventually(lambda: api.store.take_commands(WorkerId(WORKER)))
        for command in commands:
            self.taken.append((command.kind, str(command.data["text"])))
            inside = Inside(RunId(agent.run.id), fence=agent.fence, by=command.by)
            api.store.resume_run(inside)
            api.store.input_given(inside, command.id, delivery, resumed=True)


def give(api: Deployment, agent: Agent, text: str = "yes") -> httpx.Response:
    with api.http("runner") as http:
        return http.post(f"/v1/runs/{agent.run.id}/input", json={"input": text})


@pytest.mark.parametrize("delivery", [Delivery.DELIVERED, Delivery.UNVERIFIED])
def test_input_is_delivered_and_the_run_goes_on(api: Deployment, agent: Agent, delivery: Delivery) -> None:
    agent.say("wait", reason="may I?")
    with Owner(api, agent, delivery) as owner:
        answer = give(api, agent)
    assert answer.status_code == 202, answer.text
    assert (answer.json()["delivery"], answer.json()["status"]) == (delivery, "running")
    assert owner.taken == [(CommandKind.INPUT, "yes")]
    event = api.store.events(agent.run.session_id, after=0, limit=100)[-1]
    assert event.type == "run.resumed" and event.data["by"].startswith("key:")


@pytest.mark.parametrize(
    ("delivery", "code"), [(Delivery.MISSED, "run_not_waiting"), (Delivery.UNSUPPORTED, "input_unsupported")]
)
def test_input_that_was_not_typed_leaves_the_run_waiting(
    api: Deployment, agent: Agent, delivery: Delivery, code: str
) -> None:
    agent.say("wait", reason="may I?")
    with Owner(api, agent, delivery):
        answer = give(api, agent)
    assert (answer.status_code, answer.json()["code"]) == (409, code)
    assert api.store.run(agent.run.id, None).status is RunStatus.WAITING_TOOL
    [step] = api.store.steps(agent.run.id)
    assert (step.name, step.ended_at) == ("may I?", None)


def test_inputs_that_wait_leave_room_for_everybody_else(api: Deployment, agent: Agent) -> None:
    agent.say("wait", reason="may I?")
    with ExitStack() as others:
        for _ in range(state.STEERS_AT_ONCE):
            others.enter_context(api.state.steering())
        answer = give(api, agent)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert api.store.take_commands(WorkerId(WORKER)) == [], "nothing was said"


def test_input_for_a_run_that_does_not_wait_is_a_conflict(api: Deployment, agent: Agent) -> None:
    for _ in range(2):
        answer = give(api, agent)
        assert (answer.status_code, answer.json()["code"]) == (409, "run_not_waiting")
        api.store.release([agent.fence])
    assert api.store.take_commands(WorkerId(WORKER)) == []


@pytest.mark.parametrize("text", ["a\x03b", "\x1b[A", " ", "x" * 5_000])
def test_only_text_is_typed(api: Deployment, agent: Agent, text: str) -> None:
    agent.say("wait", reason="may I?")
    assert give(api, agent, text).status_code in (400, 413, 422)
    assert api.store.take_commands(WorkerId(WORKER)) == []


def test_an_owner_that_does_not_answer_is_an_unavailable_one(
    api: Deployment, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oah.services.steer.PATIENCE", timedelta(seconds=0.3))
    agent.say("wait", reason="may I?")
    answer = give(api, agent)
    assert (answer.status_code, answer.json()["code"]) == (503, "worker_silent")
    assert api.store.take_commands(WorkerId(WORKER)) == [], "and will not be said later"
    assert api.store.run(agent.run.id, None).status is RunStatus.WAITING_TOOL


# --- what its program asks -------------------------------------------------------------------------------------------


QUESTION = Question(
    name="permission",
    kind=DialogKind.PERMISSION,
    text="Bash: rm -r build\nDo you want to proceed?",
    choices=(Choice("1", "Yes"), Choice("2", "No")),
)


@pytest.fixture
def asked(api: Deployment, agent: Agent) -> Agent:
    """Its program asks, and no slot is used."""
    [reply] = api.store.ask([Asked(agent.fence, "k", "permission: rm", QUESTION.document(), timedelta(hours=1))])
    assert reply.number == 1
    return agent


def test_a_run_shows_what_its_program_asks(api: Deployment, asked: Agent) -> None:
    with api.http("runner") as http:
        run = http.get(f"/v1/runs/{asked.run.id}").json()
        question = run["question"]
        assert (question["number"], question["kind"], question["answered"]) == (1, "permission", False)
        assert question["choices"] == [{"key": "1", "words": "Yes"}, {"key": "2", "words": "No"}]
        assert question["text"] == QUESTION.text and question["deadline"] is not None
        assert run["wait_reason"]["asked"] == "permission: rm"
        give(api, asked, "Yes")
        run = http.get(f"/v1/runs/{asked.run.id}").json()
        assert run["question"]["answered"] and run["question"]["deadline"] is None
        assert "answered" in run["wait_reason"]["message"]
        api.store.resume_answered(WorkerId(WORKER), [(asked.fence, 1)])
        assert http.get(f"/v1/runs/{asked.run.id}").json()["question"] is None


def test_an_answer_is_taken_once_and_its_owner_is_told_to_look(api: Deployment, asked: Agent) -> None:
    answer = give(api, asked, "no")
    assert answer.status_code == 202, answer.text
    assert (answer.json()["delivery"], answer.json()["question"], answer.json()["status"]) == (
        "accepted",
        1,
        "waiting_tool",
    )
    assert api.store.waits_for([asked.run.id])[asked.run.id].data["answer"]["text"] == "2", "a choice, by its key"
    again = give(api, asked, "yes")
    assert (again.status_code, again.json()["code"]) == (409, "already_answered")
    assert api.store.take_commands(WorkerId(WORKER)) == [], "it is no command: it waits for a slot"


def test_what_is_no_answer_is_refused_with_what_would_be(api: Deployment, asked: Agent) -> None:
    answer = give(api, asked, "perhaps")
    assert (answer.status_code, answer.json()["code"]) == (400, "answer_unfit")
    assert answer.json()["hint"] == "1 (Yes); 2 (No)"
    assert api.store.run(asked.run.id, None).status is RunStatus.WAITING_TOOL
    with api.http("runner") as http:
        other = http.post(f"/v1/runs/{asked.run.id}/input", json={"input": "yes", "question": 7})
        assert (other.status_code, other.json()["code"]) == (409, "question_over")
    for word in ("resume",):
        refused = asked.http.post(f"/v1/runs/{asked.run.id}/{word}", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "question_open")


def test_a_question_that_nobody_asks_is_over(api: Deployment, agent: Agent) -> None:
    agent.say("wait", reason="may I?")
    with api.http("runner") as http:
        answer = http.post(f"/v1/runs/{agent.run.id}/input", json={"input": "yes", "question": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "question_over")


def test_the_agent_cannot_answer_its_own_question(api: Deployment, asked: Agent) -> None:
    answer = asked.http.post(f"/v1/runs/{asked.run.id}/input", json={"input": "yes"})
    assert answer.status_code == 403


def test_rules_of_a_workspace_are_read_before_they_are_kept(api: Deployment) -> None:
    rule = {"action": "allow", "kinds": ["permission"], "matches": "^ls "}
    with api.http("admin") as http:
        kept = http.patch("/v1/workspaces/default", json={"answers": [rule]})
        assert kept.status_code == 200, kept.text
        assert kept.json()["answers"] == [rule]
        assert http.get("/v1/workspaces/default").json()["answers"] == [rule]
        gone = http.patch("/v1/workspaces/default", json={"answers": None})
        assert gone.json()["answers"] == []
