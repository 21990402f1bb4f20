"""Agents that misbehave, on order."""

import itertools
import resource
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from oah.ports.agent import TurnRequest, TurnStatus
from oah.testing.ledger import LedgerRun, judge, read_ledger
from oah.testing.turns import HeldTurn
from tests.support import eventually
from tests.support.terminals import Bench, bench, nap, napping

DONE, FAILED, CANCELLED, TIMED_OUT = TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED, TurnStatus.TIMED_OUT


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


def test_it_says_what_it_is_told_and_ends_as_it_is_told(desk: Bench) -> None:
    agent = desk.open("scripted")
    assert desk.turn(agent, "hello\n[[say there]]").output == "said: hello\nthere\n"
    result = desk.turn(agent, "[[status 6]]")
    assert (result.status, result.exit_code, result.keep_warm) == (FAILED, 6, True)
    result = desk.turn(agent, "[[say last]]\n[[exit 0]]")
    assert (result.status, result.output, result.keep_warm) == (DONE, "last\n", False)


def test_echo_and_raw_mode_change_nothing_about_the_answer(desk: Bench) -> None:
    agent = desk.open("scripted")
    desk.turn(agent, "[[echo on]]")
    assert desk.turn(agent, "with echo").output == "said: with echo\n"
    assert desk.turn(agent, "[[raw]]\nraw\n[[cooked]]").output == "said: raw\n"
    assert desk.turn(agent, "cooked again").output == "said: cooked again\n"


def test_broken_and_split_characters_do_not_break_the_answer(desk: Bench) -> None:
    result = desk.turn(desk.open("scripted"), "[[bytes e29883 41 ff c3a9 e298 42 0a]]")
    assert result.status is DONE
    assert result.output == "☃A\ufffdé\ufffdB\n"


def test_a_spinner_leaves_its_last_word(desk: Bench) -> None:
    assert desk.turn(desk.open("scripted"), "[[spinner 0.3]]").output == "done\n"


def test_a_program_that_never_ends_its_turn_runs_into_the_timeout(desk: Bench) -> None:
    for text in ("[[no-marker]]\nx", "[[hang]]", "[[dialog Proceed?]]"):
        agent = desk.open("scripted")
        assert desk.turn(agent, text, timeout=0.5).status is TIMED_OUT


def test_a_program_that_ignores_every_polite_signal_is_killed_with_its_grandchild(desk: Bench) -> None:
    agent = desk.open("scripted")
    text = f"[[ignore INT,TERM,HUP,QUIT]]\n[[grandchild {nap(7401)}]]\n[[say go]]\n[[hang]]"
    result = desk.turn(agent, text, control=HeldTurn(cancel_when="go"))
    assert (result.status, result.tree_empty) == (CANCELLED, True)
    assert napping(7401) == []


def test_a_stopped_program_is_killed_too(desk: Bench) -> None:
    result = desk.turn(desk.open("scripted"), "[[say go]]\n[[stop]]", control=HeldTurn(cancel_when="go"))
    assert (result.status, result.tree_empty) == (CANCELLED, True)


def test_a_program_that_gives_its_terminal_up_is_ended(desk: Bench) -> None:
    result = desk.turn(desk.open("scripted"), "[[say before]]\n[[leave]]")
    assert (result.status, result.output, result.tree_empty) == (FAILED, "before\n", True)
    assert result.error_code == "agent_killed"


def test_a_flood_keeps_head_and_tail_in_constant_memory(desk: Bench) -> None:
    """40 MB through a terminal: what nobody took in time is counted, memory stays."""
    agent = desk.open("scripted")
    desk.turn(agent, "[[flood 4000000]]")
    before = _resident_kib()
    result = desk.turn(agent, "[[say first]]\n[[flood 40000000]]\n[[say last]]", timeout=120)
    grown = _resident_kib() - before
    assert result.status is DONE
    assert result.output.startswith("first\n")  # what comes next may have gone by before anybody took it
    assert "\n0123456789abcde\n" in result.output[:200]
    assert result.output.endswith("\nlast\n")
    assert len(result.output.encode()) <= 1024 * 1024
    assert grown < 64 * 1024, f"{grown} KiB more"


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_the_ledger_agent_writes_who_lived_when(desk: Bench, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    env = {"OAH_LEDGER": str(ledger)}
    for name in ("run_a", "run_b"):
        agent = desk.open("ledger", env=env, run_id=name)
        agent.bind(run_id=name, attempt=2)
        result = agent.turn(TurnRequest(run_id=name, attempt=2, input="0.3 grandchild"), HeldTurn())
        assert (result.status, result.tree_empty) == (DONE, True)
    lines = read_ledger(ledger)
    assert len({line.pid for line in lines}) == 4, "two agents and their grandchildren"
    assert {(line.session, line.run, line.attempt) for line in lines} == {("ses_1", "run_a", 2), ("ses_1", "run_b", 2)}
    runs = [
        LedgerRun(run=name, session="ses_1", position=place, attempt=2) for place, name in enumerate(("run_a", "run_b"))
    ]
    assert judge(lines, runs) == []
    own = [line.at for line in lines if line.pid == lines[0].pid]
    gaps = [after - before for before, after in itertools.pairwise(own)]
    assert len(own) >= 5
    assert sorted(gaps)[len(gaps) // 2] < 100_000_000


def test_the_judge_catches_an_agent_that_was_left_alive(desk: Bench, tmp_path: Path) -> None:
    """The deliberate violation in small: the first attempt is still there when the second begins."""
    ledger = tmp_path / "ledger"
    agent = Path(__file__).parents[2] / "oah" / "testing" / "ledger_agent.py"
    text = f"""
import os, subprocess, sys, time
for attempt in ("1", "2"):
    env = dict(os.environ, OAH_LEDGER={str(ledger)!r}, OAH_SESSION_ID="s", OAH_RUN_ID="r", OAH_ATTEMPT=attempt)
    subprocess.Popen([sys.executable, {str(agent)!r}, "0.5"], env=env)
    time.sleep(0.1)
"""
    desk.turn(desk.open("python"), text)
    eventually(lambda: len({line.attempt for line in read_ledger(ledger)}) == 2, what="both attempts wrote")
    eventually(
        lambda: judge(read_ledger(ledger), [LedgerRun(run="r", session="s", position=1, attempt=2)]), what="a violation"
    )


def test_the_scripted_agent_needs_nothing_but_python(desk: Bench) -> None:
    agent = desk.open("scripted")
    assert agent.process is not None
    command = Path(f"/proc/{agent.process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"-I" in command
    assert b"-S" in command
    assert agent.close(timedelta(seconds=5))
