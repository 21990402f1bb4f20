"""What goes wrong between a driver and a terminal, as seen in other systems (docs/explanation/terminals.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oah.core.dialogue.answers import Terminal, answer
from oah.core.dialogue.escapes import Cleaner, Query
from oah.ports.agent import KillLadder, TurnRequest, TurnStatus
from oah.testing.turns import HeldTurn
from tests.support import eventually
from tests.support.terminals import Bench, bench, nap, napping

FAILED, CANCELLED = TurnStatus.FAILED, TurnStatus.CANCELLED


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def test_p06_a_program_that_gives_its_terminal_up_first_keeps_its_exit_status(desk: Bench) -> None:
    result = desk.once("echo tail; exec </dev/null >/dev/null 2>&1; sleep 0.7; exit 7")
    assert (result.status, result.exit_code, result.output) == (FAILED, 7, "tail\n")
    result = desk.once("echo tail; kill -SEGV $$")
    assert (result.exit_code, result.output) == (-11, "tail\n")


@pytest.mark.parametrize("profile", ["exec", "inky"])
def test_p09_a_cancel_wakes_whoever_waits_for_a_silent_program(desk: Bench, profile: str) -> None:
    text = f"sleep {nap(7601)}" if profile == "exec" else f"[[grandchild {nap(7601)}]]\n[[silent 60]]"
    agent, control = desk.open(profile), HeldTurn()
    request = TurnRequest(run_id="run_1", attempt=1, input=text, ladder=KillLadder())
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(agent.turn, request, control)
        eventually(lambda: napping(7601), what="it sleeps")
        begun = time.monotonic()
        control.cancel()
        assert turn.result().status is CANCELLED
        took = time.monotonic() - begun
    assert took < (0.5 if profile == "exec" else 1.5), f"{took:.2f} s"
    agent.close(KillLadder().key)
    assert napping(7601) == []


_ASK = r"""
import os, select, sys, tty, time
tty.setraw(0)
asks = b"\x1b[6n \x1b[c \x1b[>c \x1b[5n \x1b[?u \x1b]11;?\x07 \x1b[>0q \x1b[?2026$p"
for asked in asks.split():
    for byte in asked:
        os.write(1, bytes([byte]))
        time.sleep(0.002)
    if not select.select([0], [], [], 2.0)[0]:
        os._exit(9)
    os.read(0, 1024)
os.write(1, b"> ready\r\n")
time.sleep(60)
"""


def test_p14_each_question_is_answered_though_it_comes_byte_by_byte(desk: Bench) -> None:
    """A program that is never answered ends with 9 and so is never ready."""
    directory = desk.directory / "asking.d"
    directory.mkdir()
    (desk.directory / "ask.py").write_text(_ASK)
    (directory / "asks.toml").write_text(
        f'name = "asks"\nkind = "screen"\nready_seconds = 20\n'
        f'argv = ["{{python}}", "-I", "{desk.directory / "ask.py"}"]\n'
        "[screen]\nsettle_seconds = 0.2\n[screen.composer]\nstart = '^> ready()$'\n"
    )
    with bench(desk.directory / "other", profiles=directory) as other:
        agent = other.open("asks")
        assert agent.alive()


def test_p14_a_question_is_answered_once_and_right() -> None:
    cleaner, said = Cleaner(), b""
    for byte in b"ab\x1b[6n\x1b[6":
        for piece in cleaner.feed(bytes([byte])):
            if isinstance(piece, Query):
                said += answer(piece, Terminal(40, 100, 1, 3))
    assert said == b"\x1b[1;3R"


def test_p21_no_grandchild_survives_an_exit(desk: Bench) -> None:
    agent = desk.open("inky")
    result = desk.turn(agent, f"[[grandchild {nap(7602)}]]\n[[exit 0]]")
    assert result.exit_code == 0
    desk.close_agents()
    assert napping(7602) == []
