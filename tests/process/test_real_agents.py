"""Real agent programs through the queue, offline: a fleet, their own terminals, and a model that can be foretold.

`make test` runs those that install quickly (tests/support/real_agents.py says which), `make test-agents` all of them.
One conversation with each program goes through all tests, because their starts are what costs.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oah.testing.fleet import Fleet
from tests.support.mock_llm import Asked, MockModel, mock_model
from tests.support.real_agents import PROGRAMS, chosen, environment, path, settle, told
from tests.support.waiting import eventually
from tests.support.warm import warm

NAMES = chosen()
ONE_LINE = {"llm"}
"""Their chat takes one line at a time; without a screen they take any text."""
NAMELESS = {"llm"}
"""Its screen does not say how a conversation is called: it is gone on with by name without a screen."""
RECORDED = {"claude-code", "codex", "copilot", "pi"}
"""Their own record says a reply that their screen has not kept; codex and copilot draw on the other screen."""
SECONDS = 120

real = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def model() -> Iterator[MockModel]:
    with mock_model() as found:
        yield found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One worker that knows where the programs are."""
    with ExitStack() as stack:
        directory = Path("/tmp") / f"oah-r-{secrets.token_hex(4)}"
        directory.mkdir(mode=0o700)
        stack.callback(_remove, directory)
        env = {"OAH_WORKER__PATH": path(*NAMES), "OAH_WORKER__CHECK_PROFILES": "version"}
        yield stack.enter_context(Fleet(directory / "d", workers=1, slots=2, lease_seconds=30, env=env, starter=warm()))


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


class Talk:
    """A session with one program."""

    def __init__(self, fleet: Fleet, model: MockModel, directory: Path, agent: str) -> None:
        self.fleet, self.model = fleet, model
        env = environment(agent, model.url, directory / "settings")
        self.session = str(fleet.client.create_session(agent, env=env)["id"])
        self.last = ""

    @property
    def over(self) -> bool:
        """Whether it is free for another text."""
        return not self.last or self.fleet.client.run(self.last)["status"] in ("completed", "cancelled")

    def submit(self, text: str) -> str:
        self.last = str(self.fleet.client.submit(self.session, text)["id"])
        return self.last

    def done(self, run: str) -> str:
        """What a run has answered."""
        row = self.fleet.client.wait(run, timeout=SECONDS)
        assert row["status"] == "completed", row
        return _plain(self.fleet.client.output(run))

    def say(self, text: str) -> str:
        return self.done(self.submit(text))

    def asked(self, word: str) -> list[Asked]:
        """The questions whose newest texts contain this."""
        return [each for each in list(self.model.asked) if any(word in text for text in each.texts)]

    def question(self, word: str) -> Asked:
        """That with the whole conversation: some programs ask for a title with its last text alone."""
        return max((each for each in self.asked(word) if word in each.last), key=lambda each: len(each.texts))


@pytest.fixture(scope="module")
def talks() -> dict[str, Talk]:
    return {}


@pytest.fixture
def talk(fleet: Fleet, model: MockModel, tmp_path: Path, name: str, talks: dict[str, Talk]) -> Talk:
    """The conversation that the tests before have left, unless they have left it in the middle."""
    if name not in talks or not talks[name].over:
        talks[name] = Talk(fleet, model, tmp_path, name)
    return talks[name]


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@real
def test_three_turns_are_one_conversation(talk: Talk) -> None:
    words = [secrets.token_hex(6) for _ in range(3)]
    for number, word in enumerate(words):
        assert f"heard=remember {word}" in talk.say(f"remember {word}")
        said = "\n".join(talk.question(word).texts)
        assert [said.count(each) for each in words] == [1] * (number + 1) + [0] * (2 - number)


@real
def test_a_long_text_of_many_lines_is_given_once_and_whole(
    fleet: Fleet, model: MockModel, tmp_path: Path, talk: Talk, name: str
) -> None:
    if name in ONE_LINE:
        talk = Talk(fleet, model, tmp_path, f"{name}-headless")
    mark = secrets.token_hex(6)
    text = "\n".join([f"begin {mark}", *(f"{row:03d} {'lorem ipsum ' * 4}{mark}" for row in range(270)), "end."])
    assert len(text) > 17_000
    talk.say(text)
    questions = talk.asked(f"begin {mark}")
    assert questions
    for each in questions:
        said = "\n".join(each.texts)
        assert said.count(f"begin {mark}") == 1
        assert said.count(mark) <= 271
    assert any(_plain(text) in _plain(each.last) for each in questions)


@pytest.mark.parametrize("name", [name for name in NAMES if name in RECORDED])
def test_a_reply_that_is_longer_than_the_screen_is_whole(talk: Talk, fleet: Fleet, name: str) -> None:
    run = talk.submit(f"[[long:3000]]say {secrets.token_hex(6)}")
    said = talk.done(run)
    assert all(f"row {row} of a long answer" in said for row in range(120)) and "scrolled off" not in said
    ended = next(event.data for event in fleet.client.stream(run) if event.type == "run.completed")
    assert "output_cut" not in ended


@pytest.mark.parametrize("name", [name for name in NAMES if PROGRAMS[name].tool])
def test_what_it_may_not_do_by_itself_is_allowed_over_http(talk: Talk, fleet: Fleet, name: str) -> None:
    client, mark = fleet.client, secrets.token_hex(6)
    run = talk.submit(f"{PROGRAMS[name].tool}make a file {mark}")
    row = eventually(lambda: _found(client.run(run)), within=SECONDS, what="it asks, or ends")
    assert row["status"] == "waiting_tool", row
    question = row["question"]
    assert (question["kind"], len(question["choices"]) >= 2) == ("permission", True), question
    assert "touch here" in question["text"]
    assert not _made(fleet)
    client.send_input(run, question["choices"][0]["key"])
    assert mark in talk.done(run)
    for made in _made(fleet):
        made.unlink()
        break
    else:
        raise AssertionError("it was allowed and not done")


def _found(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["status"] not in ("queued", "running") else None


def _made(fleet: Fleet) -> list[Path]:
    return list((fleet.data_dir / "work").rglob("here"))


@real
def test_a_turn_that_works_is_cancelled_and_the_session_goes_on(talk: Talk, name: str) -> None:
    mark, after = secrets.token_hex(6), secrets.token_hex(6)
    run = talk.submit(f"[[wait:60]]take your time {mark}")
    eventually(lambda: talk.asked(mark), within=SECONDS, what="the model was asked")
    talk.fleet.client.cancel(run)
    assert talk.fleet.client.wait(run, timeout=30)["status"] == "cancelled"
    assert after in talk.say(f"and now {after}")


@real
def test_without_its_screen_it_goes_on_with_its_conversation(
    fleet: Fleet, model: MockModel, tmp_path: Path, name: str
) -> None:
    talk = Talk(fleet, model, tmp_path, f"{name}-headless")
    first, second = secrets.token_hex(6), secrets.token_hex(6)
    assert f"hold {first}" in talk.say(f"hold {first}")
    assert f"hold {second}" in talk.say(f"hold {second}")
    assert sum(text.count(first) for text in talk.question(second).texts) == 1


@real
def test_a_message_to_a_dead_session_is_answered_by_its_resumed_conversation(
    fleet: Fleet, model: MockModel, tmp_path: Path, name: str
) -> None:
    talk = Talk(fleet, model, tmp_path, f"{name}-headless" if name in NAMELESS else name)
    client, first, second, third = fleet.client, *(secrets.token_hex(6) for _ in range(3))
    assert f"remember {first}" in talk.say(f"remember {first}")
    # Politely: a program that is killed at once may not have written its conversation down.
    fleet.kill("worker-1", signal.SIGTERM, reap=60)
    fleet.restart("worker-1")
    fleet.wait_workers(within=SECONDS)
    client.update_session(talk.session, wake="eager")
    sent = [str(client.send_to_session(talk.session, f"what about {word}")["id"]) for word in (second, third)]

    def settled() -> bool:
        return all(client.session_message(talk.session, each)["state"] in ("acked", "dead") for each in sent)

    eventually(settled, within=SECONDS - 30, what="the messages are settled")
    messages = [client.session_message(talk.session, each) for each in sent]
    assert [(each["state"], each["reason"]) for each in messages] == [("acked", None)] * 2
    assert {each["run_id"] for each in messages} == {messages[0]["run_id"]}, "one wake"
    run = client.wait(messages[0]["run_id"], timeout=SECONDS)
    assert (run["kind"], run["status"]) == ("wake", "completed")
    answer = _plain(client.output(run["id"]))
    assert answer.index(second) < answer.index(third)
    assert client.attempts(run["id"])[-1]["agent"] in ("resumed", "repaired")
    said = "\n".join(talk.question(third).texts)
    assert [said.count(f"Message {each} from ") for each in sent] == [1, 1]
    assert said.count(first) >= 1, "it remembers"


def test_agents_without_a_program_are_withdrawn_and_shown(fleet: Fleet) -> None:
    worker = fleet.client.worker(fleet.client.workers()[0]["id"])
    assert set(NAMES) <= set(worker["profiles"])
    missing = {name for name in PROGRAMS if name not in NAMES and not _here(name)}
    assert missing <= set(worker["withdrawn"])
    assert not missing & set(worker["profiles"])
    assert all("on the PATH" in worker["withdrawn"][name] for name in missing)


def _here(name: str) -> bool:
    return any((Path(part) / PROGRAMS[name].binary).exists() for part in ["/usr/local/bin", "/usr/bin", "/bin"])


def test_the_run_says_which_programs_it_tries() -> None:
    first, _, rest = told().partition(";")
    assert all(name in first for name in NAMES)
    assert all(name in rest for name in PROGRAMS if name not in NAMES)
    assert NAMES


def test_without_npm_the_others_run_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.real_agents.CACHE", tmp_path)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    for variable in ("OAH_TEST_AGENTS", "OAH_TEST_AGENTS_MISSED"):
        monkeypatch.delenv(variable, raising=False)
    settle(os.environ)
    assert chosen() == ("llm",)
    assert "real agents: llm; NPM COULD NOT BE REACHED FOR: codex, qwen; not in this run: claude-code" in told()
    monkeypatch.setenv("OAH_TEST_AGENTS", "codex")
    settle(os.environ)
    assert chosen() == ("codex",), "what was asked for by name must be there"
