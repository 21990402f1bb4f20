"""What goes wrong between a driver and a terminal, as seen in other systems (docs/explanation/failures.md)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from oah.adapters.pty.connection import boottime
from oah.core.dialogue.answers import Terminal, answer
from oah.core.dialogue.escapes import Cleaner, Query
from oah.errors import AgentError
from oah.ports.agent import KillLadder, TurnRequest, TurnStatus
from oah.testing.turns import HeldTurn
from tests.support import eventually
from tests.support.pace import FULL
from tests.support.terminals import LONG, Bench, bench, nap, napping, read_until, spec, watched_memory

DONE, FAILED, CANCELLED = TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED
FLOOD_BYTES = 200_000_000 if FULL else 50_000_000
MIB = 1024


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def test_p02_a_program_that_writes_and_never_reads_blocks_nobody(desk: Bench) -> None:
    """Each of the two buffers is full: ours has a deadline, and the program's is emptied meanwhile."""
    process = desk.host.spawn(
        spec(
            "bash",
            "-c",
            f"stty raw -echo; echo up; head -c 8000000 /dev/zero | tr '\\0' x; echo END; sleep {nap(7603)}",
        )
    )
    read_until(process, b"up")
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(AgentError) as caught:
            process.terminal.write(b"y" * 1_000_000, timedelta(seconds=0.7))
        assert caught.value.code == "agent_not_reading"
        assert 0.6 < time.monotonic() - begun < 20
    read_until(process, b"END")
    assert desk.host.kill(process.agent_id)


@pytest.mark.parametrize("profile", ["exec", "shell", "inky"])
def test_p04_a_flood_is_taken_in_linear_time_and_constant_memory(desk: Bench, profile: str) -> None:
    """One line without an end, the worst for whoever looks for lines; and many to a screen."""
    shell = f"head -c {FLOOD_BYTES} /dev/zero | tr '\\0' x; echo; echo over"
    size = FLOOD_BYTES // 5 if profile == "inky" else FLOOD_BYTES
    agent = desk.open(profile)
    desk.turn(agent, "[[flood 1000000]]" if profile == "inky" else "true")
    agent = agent if profile != "exec" else desk.open(profile)
    begun, used = time.monotonic(), time.process_time()
    with watched_memory(os.getpid(), desk.host.host_pid) as grown:
        result = desk.turn(agent, f"[[flood {size}]]\n[[say over]]" if profile == "inky" else shell, timeout=100)
    seconds, used = time.monotonic() - begun, time.process_time() - used
    assert result.status is DONE, result
    assert result.output.rstrip().endswith("over"), result
    assert grown[os.getpid()] < 48 * MIB, f"{grown} KiB"
    assert grown[desk.host.host_pid] < 4 * MIB, f"{grown} KiB"
    assert used < 2 + size / 10_000_000, f"{used:.1f} s of processor time in {seconds:.1f} s"


def test_p06_a_program_that_gives_its_terminal_up_first_keeps_its_exit_status(desk: Bench) -> None:
    result = desk.once("echo tail; exec </dev/null >/dev/null 2>&1; sleep 0.7; exit 7")
    assert (result.status, result.exit_code, result.output) == (FAILED, 7, "tail\n")
    result = desk.once("echo tail; kill -SEGV $$")
    assert (result.exit_code, result.output) == (-11, "tail\n")


def test_p06_what_was_written_just_before_the_end_is_kept(desk: Bench) -> None:
    """The last reader of a terminal is told EIO, and the kernel may still hold the tail."""
    for number in range(20):
        result = desk.once(f"seq 1 {number * 200}; printf 'the tail %s' {number}; exit {number}")
        assert result.output.splitlines()[-1] == f"the tail {number}"
        assert result.exit_code == number


def test_p06_nobody_else_can_take_an_exit_status_away(desk: Bench) -> None:
    """Whoever waits for any child in this process gets none of the agents."""
    over = threading.Event()
    agent_pids: set[int] = set()
    taken: list[int] = []

    def steal() -> None:
        while not over.wait(0.001):
            with contextlib.suppress(ChildProcessError):
                taken.append(os.waitpid(-1, os.WNOHANG)[0])

    thread = threading.Thread(target=steal)
    thread.start()
    try:
        for code in range(1, 9):
            process = desk.host.spawn(spec("sh", "-c", f"exit {code}"))
            agent_pids.add(process.pid)
            notice = process.wait(LONG)
            assert notice is not None
            assert notice.exit_code == code
            process.terminal.close()
    finally:
        over.set()
        thread.join()
    assert not agent_pids & set(taken)


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
    assert took < 20, f"{took:.2f} s, and it is silent for a minute"
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


def test_p15_a_start_that_shows_nothing_is_not_ready_and_one_that_nobody_knows_is_asked_about(desk: Bench) -> None:
    directory = desk.directory / "starts.d"
    directory.mkdir()
    for name, shell in (("blank", "sleep 60"), ("strange", "echo are you sure; sleep 60")):
        (directory / f"{name}.toml").write_text(
            f'name = "{name}"\nkind = "screen"\nready_seconds = 1.5\nargv = ["sh", "-c", "{shell}"]\n'
            "[screen]\nsettle_seconds = 0.1\nready_without = 0.5\nunknown_seconds = 0.3\n"
            "[screen.composer]\nstart = '^> ()$'\n"
        )
    with bench(desk.directory / "starts", profiles=directory) as other:
        with pytest.raises(AgentError) as caught:
            other.open("blank")
        assert caught.value.code == "agent_not_ready"
        result = other.turn(other.open("strange"), "hello")
        assert result.status is TurnStatus.WAITING
        assert result.question is not None
        assert "are you sure" in result.question.text


def test_p14_a_question_is_answered_once_and_right() -> None:
    """And only by us: what a viewer's terminal is given to draw asks it nothing."""
    cleaner, said, drawn = Cleaner(), b"", ""
    for byte in b"ab\x1b[6n\x1b]11;?\x07\x1b[c\x1b[6":
        for piece in cleaner.feed(bytes([byte])):
            if isinstance(piece, Query):
                said += answer(piece, Terminal(40, 100, 1, 3))
            elif isinstance(piece, str):
                drawn += piece
    assert said == b"\x1b[1;3R\x1b]11;rgb:1010/1010/1010\x1b\\\x1b[?62;22c"
    assert drawn == "ab"


def test_p10_while_many_are_ended_the_others_deadlines_are_extended_in_time(desk: Bench) -> None:
    host = desk.host
    spawned = [host.spawn(spec("sh", "-c", f"sleep {nap(7604)} & wait", life=30)) for _ in range(60)]
    ended, kept = spawned[:20], spawned[20:]
    took: list[float] = []
    with ThreadPoolExecutor(20) as pool:
        killed = [pool.submit(host.kill, process.agent_id) for process in ended]
        while not all(each.done() for each in killed) or len(took) < 20:
            begun = time.monotonic()
            host.extend({process.agent_id: boottime() + 30 for process in kept})
            took.append(time.monotonic() - begun)
            threading.Event().wait(0.01)
    assert all(each.result() for each in killed)
    assert sorted(took)[len(took) * 9 // 10] < 1.0, f"{max(took):.2f} s at most"
    assert all(process.wait(timedelta(0)) is None for process in kept)
    for process in kept:
        assert host.kill(process.agent_id)
    assert napping(7604) == []


_LEFT = {
    "setsid": "setsid sleep {0} &",
    "double-fork": "( ( sleep {0} & ) & )",
    "deaf": "(trap '' HUP INT TERM; sleep {0}) &",
    "without-environment": "env -i setsid sleep {0} &",
}


@pytest.mark.parametrize("end", ["exit", "cancel"])
def test_p21_no_grandchild_survives_however_it_went_away(desk: Bench, end: str) -> None:
    script = "\n".join(each.format(nap(7605)) for each in _LEFT.values())
    control, wait = HeldTurn(), f"while :; do sleep {nap(7606)}; done"
    with ThreadPoolExecutor(1) as pool:
        text = f"{script}\n" + ("sleep 0.2; exit 0" if end == "exit" else wait)
        turn = pool.submit(desk.once, text, control=control)
        eventually(lambda: len(napping(7605)) == len(_LEFT), what="all of them")
        control.cancel() if end == "cancel" else None
        result = turn.result()
    assert result.status is (DONE if end == "exit" else CANCELLED)
    assert result.tree_empty
    assert napping(7605) + napping(7606) == []


def test_p23_a_program_has_a_terminal_and_is_heard_as_it_speaks(desk: Bench) -> None:
    """Behind a pipe it would keep its words until there are 4,096 bytes of them."""
    control = HeldTurn()
    script = "import sys, time; print(sys.stdin.isatty(), sys.stdout.isatty()); time.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(desk.once, f'python3 -c "{script}"', control=control)
        eventually(lambda: "True True" in control.text, what="its first words while it works")
        assert not turn.done()
        control.cancel()
        assert turn.result().status is CANCELLED


def test_p21_no_grandchild_survives_an_exit(desk: Bench) -> None:
    agent = desk.open("inky")
    result = desk.turn(agent, f"[[grandchild {nap(7602)}]]\n[[exit 0]]")
    assert result.exit_code == 0
    desk.close_agents()
    assert napping(7602) == []
