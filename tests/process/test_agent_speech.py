"""What is said to a working agent: typed once, proved by its terminal, and never left lying for the next run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.pty import speech
from oah.adapters.pty.agents import PtyAgent
from oah.ports.agent import TurnResult, TurnStatus
from oah.ports.commands import Delivery
from oah.testing.turns import HeldTurn
from tests.support import eventually
from tests.support.terminals import Bench, bench

PATIENCE = timedelta(seconds=10)
BRIEF = timedelta(seconds=0.4)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def begun(desk: Bench, pool: ThreadPoolExecutor, agent: PtyAgent, text: str) -> Future[TurnResult]:
    """A turn that has said ``go``."""
    control = HeldTurn()
    turn = pool.submit(desk.turn, agent, text, control=control)
    eventually(lambda: "go" in control.text or turn.done(), what="the turn says go")
    return turn


@pytest.mark.parametrize(
    ("profile", "text", "answer"),
    [
        ("scripted", "[[say go]]\n[[dialog Really?]]", "answered: yes of course"),
        ("shell", "echo go; read -r line; echo heard $line", "heard yes of course"),
        ("python", "print('go')\nprint('heard', input())", "heard yes of course"),
    ],
)
def test_a_text_is_typed_once_and_proved(
    desk: Bench, pool: ThreadPoolExecutor, profile: str, text: str, answer: str
) -> None:
    agent = desk.open(profile)
    turn = begun(desk, pool, agent, text)
    assert agent.say("yes of course", PATIENCE) is Delivery.DELIVERED
    result = turn.result(20)
    assert (result.status, result.keep_warm) == (TurnStatus.COMPLETED, True)
    assert result.output.count("yes of course") == 1 and answer in result.output
    assert "yes" not in desk.turn(agent, text="echo next" if profile == "shell" else "").output


def test_several_texts_come_in_their_order(desk: Bench, pool: ThreadPoolExecutor) -> None:
    agent = desk.open("shell")
    turn = begun(desk, pool, agent, "echo go; for n in 1 2 3; do read -r line; echo got:$line; done")
    for word in ("one", "two", "three"):
        assert agent.say(word, PATIENCE) is Delivery.DELIVERED
    assert turn.result(20).output.split() == ["go", "got:one", "got:two", "got:three"]


def test_a_program_in_raw_mode_gets_the_return_key(desk: Bench, pool: ThreadPoolExecutor) -> None:
    agent = desk.open("shell")
    reads = "import os, tty; tty.setraw(0); print('go', flush=True); print(ascii(os.read(0, 99)), end='')"
    turn = begun(desk, pool, agent, f'python3 -c "{reads}"; stty sane')
    agent.say("key", BRIEF)
    assert r"b'key\r'" in turn.result(20).output


@pytest.mark.parametrize("profile", ["shell", "python", "scripted"])
def test_what_the_program_did_not_read_is_not_given_to_the_next_run(
    desk: Bench, pool: ThreadPoolExecutor, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech, "LOOSE_SECONDS", 0.3)
    trap = tmp_path / "trap"
    text = {
        "shell": "echo go; sleep 1.2; echo over",
        "python": "import time; print('go'); time.sleep(1.2); print('over')",
        "scripted": "[[say go]]\n[[sleep 1.2]]\n[[say over]]",
    }[profile]
    agent = desk.open(profile)
    turn = begun(desk, pool, agent, text)
    assert agent.say(f"echo leaked > {trap}", BRIEF) is Delivery.UNVERIFIED
    result = turn.result(20)
    assert (result.status, result.keep_warm) == (TurnStatus.COMPLETED, True)
    again = desk.turn(agent, "echo next" if profile == "shell" else "")
    assert again.status is TurnStatus.COMPLETED and "leaked" not in again.output
    assert not trap.exists()


def test_an_agent_that_may_not_have_read_the_last_word_is_not_kept(desk: Bench, pool: ThreadPoolExecutor) -> None:
    agent = desk.open("shell")
    turn = begun(desk, pool, agent, "echo go; sleep 1")
    assert agent.say("unheard", PATIENCE) is Delivery.UNVERIFIED
    assert not turn.result(20).keep_warm


def test_it_is_missed_where_no_turn_listens_and_refused_where_the_profile_says_so(desk: Bench) -> None:
    agent = desk.open("shell")
    assert agent.say("hello", BRIEF) is Delivery.MISSED
    assert "hello" not in desk.turn(agent, "echo quiet").output
    assert agent.say("hello", BRIEF) is Delivery.MISSED
    assert desk.open("exec").say("hello", PATIENCE) is Delivery.UNSUPPORTED
