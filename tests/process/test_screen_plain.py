"""Programs with a plain prompt, or none, driven by their screens: their echo is seen, and silence is told from it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import pytest

from oah.adapters.pty.agents import PtyAgent
from oah.core.model.delivery import Outcome
from oah.ports.agent import TurnStatus
from tests.support import eventually
from tests.support.real_agents import node
from tests.support.terminals import Bench, bench

DONE = TurnStatus.COMPLETED

_PROFILE = """
name = "{name}"
kind = "screen"
argv = {argv}
quit = "\\u0004"
ready_seconds = 20
[env]
TERM = "xterm-256color"
[screen]
settle_seconds = 0.4
unseen_seconds = 1.5
[screen.composer]
start = '{start}'
at_cursor = true
footer = 0
[screen.submit]
blind = true
multiline = true
window_seconds = 2
[screen.reply]
echo = '{echo}'
"""
_PROGRAMS = {
    "bash": ('["bash", "--noprofile", "--norc", "-i"]', r"^bash-[0-9.]+[#$] ?(.*)$"),
    "python": ('["{python}", "-i", "-q"]', r"^>>> ?(.*)$"),
    "node": (f'["{node()}", "-i"]', r"^> ?(.*)$"),
    "sqlite": ('["sqlite3"]', r"^sqlite> ?(.*)$"),
    "repl": ('["{python}", "-c", "import code; code.interact(\'\')"]', r"^>>> ?(.*)$"),
    "cat": ('["cat"]', "^(.*)$"),
    "sink": ('["sh", "-c", "stty -echo; cat >swallowed"]', "^(.*)$"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("desk")
    profiles = directory / "agents.d"
    profiles.mkdir()
    for name, (argv, start) in _PROGRAMS.items():
        echo = start if start != "^(.*)$" else "^(.+)$"
        text = (
            _PROFILE.replace("{name}", name).replace("{argv}", argv).replace("{start}", start).replace("{echo}", echo)
        )
        (profiles / f"{name}.toml").write_text(text)
    with bench(directory, profiles=profiles) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def opened(desk: Bench, name: str) -> PtyAgent:
    if name == "sqlite" and shutil.which("sqlite3") is None:
        name = "repl"  # the same questions to a prompt that is always there
    return desk.open(name)


_TALKS = {
    "bash": [
        ("echo hi there", "hi there"),
        ("for i in 1 2; do\necho n$i\ndone", "n1\nn2"),
        ("sleep 1; echo late", "late"),
    ],
    "python": [("print('hi')", "hi"), ("x = 6 * 7", ""), ("x", "42")],
    "node": [("console.log('hi')", "hi\nundefined"), ("6 * 7", "42")],
    "sqlite": [("select 6 * 7;", "42"), ("select 'hi';", "hi")],
}


@pytest.mark.parametrize("name", list(_TALKS))
def test_an_interpreter_confirms_and_answers(desk: Bench, name: str) -> None:
    agent = opened(desk, name)
    talk = _TALKS[name] if agent.profile.name == name else _TALKS["python"]
    for text, answer in talk:
        result = desk.turn(agent, text)
        assert (result.status, result.delivery, result.keep_warm) == (DONE, Outcome.CONFIRMED, True), (text, result)
        assert result.output.strip() == answer


def test_silent_work_of_an_interpreter_is_not_over(desk: Bench) -> None:
    begun = time.monotonic()
    result = desk.turn(desk.open("bash"), "sleep 2.5; echo over")
    assert result.output.strip() == "over"
    assert time.monotonic() - begun > 2.5


def test_cat_confirms_every_line(desk: Bench) -> None:
    agent = desk.open("cat")
    for text in ("hello", "another line", "漢字 🙂"):
        result = desk.turn(agent, text)
        assert (result.status, result.delivery) == (DONE, Outcome.CONFIRMED)
        assert text in result.output


def test_a_sink_is_unverified_once(desk: Bench) -> None:
    agent = desk.open("sink")
    begun = time.monotonic()
    result = desk.turn(agent, "hello")
    assert (result.status, result.delivery, result.output) == (DONE, Outcome.UNVERIFIED, "")
    assert time.monotonic() - begun < 40
    swallowed = desk.directory / "swallowed"
    eventually(lambda: swallowed.read_text() == "hello\n", what="it was given once")


@pytest.mark.parametrize("size", [255, 1023, 1024, 4095])
def test_lines_that_a_cooked_terminal_takes_arrive_whole(desk: Bench, size: int) -> None:
    result = desk.turn(desk.open("cat"), "x" * size)
    assert (result.status, result.delivery) == (DONE, Outcome.CONFIRMED)
    assert result.output.replace("\n", "").count("x") == size


def test_lines_that_it_would_cut_are_refused_and_nothing_is_typed(desk: Bench) -> None:
    agent = desk.open("cat")
    for text in ("x" * 4096, "x" * 65536, "漢" * 1400):
        result = desk.turn(agent, text)
        assert (result.status, result.error_code, result.keep_warm) == (TurnStatus.FAILED, "line_too_long", True)
    assert desk.turn(agent, "short").output.strip().splitlines()[-1] == "short"


def test_the_programs_that_were_there() -> None:
    """sqlite3 is stood for by a Python prompt where it is missing."""
    assert all(shutil.which(name) for name in ("bash", "cat", str(node())))
