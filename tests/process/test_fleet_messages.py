"""Messages for agents that sleep, work and die: through the queue, with real processes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.embedded.private import end_unused
from oah.testing.fleet import Fleet
from oah.testing.profiles import install_testing_agents
from tests.support.waiting import eventually
from tests.support.warm import warm

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = Path(tempfile.mkdtemp(prefix="oah-m-", dir="/tmp"))
    install_testing_agents(directory / "d")
    env = {"OAH_MAIL__WAKE_PAUSE_SECONDS": "0.2", "OAH_WORKER__HEARTBEAT_SECONDS": "1"}
    try:
        with Fleet(directory / "d", workers=1, slots=4, env=env, starter=warm()) as opened:
            yield opened
    finally:
        end_unused(directory / "d")
        shutil.rmtree(directory, ignore_errors=True)


class Agent:
    """A session and the messages for it."""

    def __init__(self, fleet: Fleet, agent: str, *, wake: str = "eager", **env: str) -> None:
        self.fleet, self.client = fleet, fleet.client
        self.session = str(self.client.create_session(agent, wake=wake, env=env)["id"])

    def send(self, text: str, **more: Any) -> str:
        return str(self.client.send_to_session(self.session, text, **more)["id"])

    def run(self, text: str) -> dict[str, Any]:
        return self.client.wait(str(self.client.submit(self.session, text)["id"]), timeout=60)

    def message(self, message_id: str) -> dict[str, Any]:
        return self.client.session_message(self.session, message_id)

    def in_state(self, message_id: str, *states: str, within: float = 60) -> dict[str, Any]:
        """Once it is so."""

        def there() -> dict[str, Any] | None:
            found = self.message(message_id)
            return found if found["state"] in states else None

        try:
            return eventually(there, within=within, every=0.1, what=f"{message_id} is {states}")
        except AssertionError as error:
            error.add_note(json.dumps([self.message(message_id), self.runs()], indent=1, default=str))
            raise

    def runs(self, kind: str = "wake") -> list[dict[str, Any]]:
        """Oldest first."""
        found = [run for run in self.client.runs(session=self.session) if run["kind"] == kind]
        return sorted(found, key=lambda run: run["position"])

    def diary(self) -> list[str]:
        """Every text that the diary agent was given, in order."""
        texts = []
        for record in self.fleet.data_dir.glob(f"**/{self.session}/.diary/*/*.jsonl"):
            for line in record.read_text().splitlines():
                entry = json.loads(line)
                if entry["type"] == "user":
                    texts.append(entry["text"])
        return texts

    def kill_worker(self) -> None:
        """With everything in its hands; another one begins."""
        self.fleet.kill("worker-1")
        self.fleet.restart("worker-1")
        self.fleet.wait_workers()


def bodies(texts: list[str]) -> list[str]:
    """Without the line that is ours."""
    return [text.split("\n", 1)[1] if text.startswith("Message ") else text for text in texts]


def test_a_message_to_a_dead_session_is_answered_by_its_resumed_conversation(fleet: Fleet) -> None:
    agent = Agent(fleet, "diary")
    first = agent.run("remember blue")
    assert "turns=1 first='remember blue'" in agent.client.output(first["id"])
    agent.kill_worker()
    sent = agent.client.send_to_session(agent.session, "what was the colour")
    assert sent["wake_run_id"] is not None
    done = agent.in_state(sent["id"], "acked")
    assert (done["outcome"], done["attempts"], done["redelivered"]) == ("confirmed", 1, False)
    [wake] = agent.runs()
    wake = agent.client.wait(wake["id"], timeout=30)
    assert (wake["status"], wake["input"], done["run_id"]) == ("completed", "", wake["id"])
    assert "turns=2 first='remember blue'" in agent.client.output(wake["id"])
    assert [each["agent"] for each in agent.client.attempts(wake["id"])] == ["resumed"]
    text = agent.diary()[-1]
    assert text.startswith(f"Message {sent['id']} from "), text
    assert text.endswith(", 1 line:\nwhat was the colour")


def test_ten_at_once_one_wake_ten_injections_in_order(fleet: Fleet) -> None:
    submits = fleet.data_dir / "ten.jsonl"
    agent = Agent(fleet, "inky", OAH_SUBMITS=str(submits))
    ids = [agent.send(f"text number {number}") for number in range(10)]
    for message in ids:
        done = agent.in_state(message, "acked", within=90)
        assert (done["attempts"], done["redelivered"]) == (1, False)
    assert len(agent.runs()) == 1
    taken = [json.loads(line)["text"] for line in submits.read_text().splitlines()]
    assert bodies(taken) == [f"text number {number}" for number in range(10)]
    [wake] = agent.runs()
    assert agent.client.wait(wake["id"], timeout=30)["status"] == "completed"
    cursors = agent.client.message_cursors(agent.session)
    assert (cursors["received"], cursors["acked"], cursors["last"]) == (10, 10, 10)


def test_killed_in_the_middle_of_a_delivery_the_one_in_flight_comes_again_and_says_so(fleet: Fleet) -> None:
    agent = Agent(fleet, "diary")
    one, two, three = agent.send("one"), agent.send("two [[first 60 1]]"), agent.send("three")
    agent.in_state(two, "delivered")
    agent.kill_worker()
    for message, attempts, again in ((one, 1, False), (two, 2, True), (three, 1, False)):
        done = agent.in_state(message, "acked")
        assert (done["attempts"], done["redelivered"]) == (attempts, again), done
    assert [each.split()[0] for each in bodies(agent.diary())] in (
        ["one", "two", "two", "three"],
        ["one", "two", "three"],  # the record of the turn that was cut off is repaired
    )
    assert "it may have reached you before" in agent.diary()[-2]


def test_what_waits_while_no_worker_lives_comes_back_in_order(fleet: Fleet) -> None:
    agent = Agent(fleet, "diary")
    fleet.kill("worker-1")
    ids = [agent.send(f"parked {number}") for number in range(5)]
    assert {agent.message(each)["state"] for each in ids} == {"queued"}
    fleet.kill("controller")
    fleet.restart("controller")
    fleet.restart("worker-1")
    for each in ids:
        assert agent.in_state(each, "acked")["redelivered"] is False
    assert bodies(agent.diary()) == [f"parked {number}" for number in range(5)]
    fleet.wait_workers()


def test_a_lazy_session_is_given_its_messages_before_the_next_prompt(fleet: Fleet) -> None:
    agent = Agent(fleet, "diary", wake="lazy")
    first, second = agent.send("before one"), agent.send("before two")
    assert agent.runs() == []
    run = agent.run("the prompt")
    assert run["status"] == "completed"
    assert bodies(agent.diary()) == ["before one", "before two", "the prompt"]
    assert "turns=3 first='Message" in agent.client.output(run["id"])
    assert {agent.message(each)["run_id"] for each in (first, second)} == {run["id"]}
    after = agent.send("its agent is there and idle")
    agent.in_state(after, "acked")
    assert len(agent.runs()) == 1, "a warm agent is spoken to at once"


def test_steered_into_the_live_turn(fleet: Fleet) -> None:
    agent = Agent(fleet, "inky", wake="lazy", OAH_SUBMITS=str(fleet.data_dir / "steer.jsonl"))
    run = str(agent.client.submit(agent.session, "[[sleep 6]]\n[[say over]]")["id"])
    eventually(lambda: agent.client.run(run)["status"] == "running", within=30, what="it runs")
    sent = agent.client.send_to_session(agent.session, "hurry up", mode="steer")
    assert sent["state"] in ("delivered", "queued"), sent
    done = agent.in_state(sent["id"], "acked")
    assert done["outcome"] in ("confirmed", "unverified")


def test_a_shell_takes_no_messages_for_commands(fleet: Fleet) -> None:
    agent = Agent(fleet, "shell", wake="eager")
    proof = fleet.data_dir / "executed"
    sent = agent.send(f"touch {proof}")
    done = agent.in_state(sent, "dead")
    assert done["reason"] == "agent_takes_no_messages"
    assert not proof.exists()
    [letter] = agent.client.dead_letters(session=agent.session)
    assert (letter["kind"], letter["code"]) == ("message", "agent_takes_no_messages")
    as_run = agent.send("echo asked for", mode="run")
    done = agent.in_state(as_run, "acked")
    assert agent.client.output(done["run_id"]) == "asked for\n"


def test_a_run_of_one_session_speaks_to_another_and_hears_what_fails(fleet: Fleet) -> None:
    other = Agent(fleet, "diary", wake="lazy")
    speaker = Agent(fleet, "exec")
    body = json.dumps({"text": "from a colleague", "ttl_seconds": 1.5})
    command = (
        f'curl -sf -X POST $OAH_API_URL/v1/sessions/{other.session}/messages -H "Authorization: Bearer $OAH_RUN_KEY"'
        f" -H 'content-type: application/json' -d '{body}'"
    )
    run = speaker.run(command)
    assert run["status"] == "completed", (run, speaker.client.output(run["id"]))
    sent = json.loads(speaker.client.output(run["id"]))
    assert sent["sender"]["session_id"] == speaker.session
    assert sent["sender"]["run_id"] == run["id"]
    done = other.in_state(sent["id"], "expired", within=20)
    assert done["reason"] == "expired"
    hop = [each["hop"] for each in other.client.trace_message(sent["id"])["hops"]]
    assert "message.failed" in hop
