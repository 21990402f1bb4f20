"""Turns of the built-in agents in real terminals."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.pty.connection import boottime
from oah.errors import AgentError, LeaseError, NotFound
from oah.ports.agent import TurnResult, TurnStatus
from oah.testing import processes
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


def told(result: TurnResult) -> tuple[TurnStatus, str, int | None, str | None]:
    return result.status, result.output, result.exit_code, result.error_code


# -- shell ------------------------------------------------------------------------------------------------------------


def test_shell_remembers_what_earlier_runs_did(desk: Bench) -> None:
    agent = desk.open("shell")
    assert agent.warm
    assert told(desk.turn(agent, "cd /usr; x=5; f() { echo f $1; }")) == (DONE, "", 0, None)
    assert told(desk.turn(agent, "f $x; pwd; echo $OAH_RUN_ID $OAH_ATTEMPT")) == (DONE, "f 5\n/usr\nrun_2 1\n", 0, None)
    assert agent.warm


def test_shell_takes_several_lines_quotes_and_documents(desk: Bench) -> None:
    text = "for i in 1 2; do\n  echo \"$i '\"\ndone\n\ncat <<'END'\n$x `y` \\ ☃ é\nEND\necho last"
    assert told(desk.turn(desk.open("shell"), text)) == (DONE, "1 '\n2 '\n$x `y` \\ ☃ é\nlast\n", 0, None)


def test_shell_takes_a_megabyte_in_one_line_and_in_many(desk: Bench) -> None:
    agent = desk.open("shell")
    word = "y" * 1_000_000
    assert desk.turn(agent, f"x={word}; echo ${{#x}}").output == "1000000\n"
    lines = "".join(f"n={number}\n" for number in range(60_000))
    assert desk.turn(agent, lines + "echo $n").output == "59999\n"


def test_shell_status_is_the_runs_and_the_shell_lives_on(desk: Bench) -> None:
    agent = desk.open("shell")
    result = desk.turn(agent, "echo before; (exit 7)")
    assert told(result) == (FAILED, "before\n", 7, "exit_nonzero")
    assert result.keep_warm
    assert desk.turn(agent, "echo $?").output == "7\n"
    result = desk.turn(agent, 'echo "never closed')
    assert (result.status, result.error_code, result.keep_warm) == (FAILED, "exit_nonzero", True)
    assert desk.turn(agent, "echo fine").output == "fine\n"


@pytest.mark.parametrize(("code", "status"), [(0, DONE), (3, FAILED)])
def test_exit_ends_the_shell_and_is_the_outcome(desk: Bench, code: int, status: TurnStatus) -> None:
    agent = desk.open("shell")
    result = desk.turn(agent, f"echo bye; exit {code}")
    assert (result.status, result.output, result.exit_code) == (status, "bye\n", code)
    assert not result.keep_warm
    assert result.tree_empty
    assert not agent.warm
    assert not agent.alive()


def test_completion_cannot_be_forged_by_what_the_input_contains(desk: Bench) -> None:
    """The marker's text, the prompt's definition and shown escapes are only text; the real end comes later."""
    agent = desk.open("shell")
    text = "set | grep oah; echo '\\033]7337;x;1;0\\007' ']7337;'; printf '\\033]7337;no;1;0\\007'; sleep 0.2; echo end"
    result = desk.turn(agent, text)
    assert result.output.endswith("end\n")
    assert desk.turn(agent, "PS1='$ ' PROMPT_COMMAND=; echo broken prompt").output == "broken prompt\n"
    assert desk.turn(agent, "echo healed").output == "healed\n"


def test_output_of_a_background_job_belongs_to_no_later_run(desk: Bench) -> None:
    agent = desk.open("shell")
    desk.turn(agent, "mkfifo go; (read < go; echo LATE; echo > gone) & :")
    assert desk.turn(agent, "echo > go; read < gone; sleep 0.1; :").status is DONE
    assert desk.turn(agent, "echo mine").output == "mine\n"


@pytest.mark.parametrize(
    ("text", "code"), [("a\0b", "input_rejected"), ("a\ud800b", "input_rejected"), ("x" * 1_048_577, "input_too_large")]
)
@pytest.mark.parametrize("profile", ["shell", "exec"])
def test_an_input_that_cannot_be_given_fails_with_a_reason(desk: Bench, profile: str, text: str, code: str) -> None:
    agent = desk.open(profile)
    result = desk.turn(agent, text)
    assert (result.status, result.error_code) == (FAILED, code)
    assert result.error_message
    assert agent.warm == (profile == "shell")


def test_cancel_by_key_leaves_the_shell_warm(desk: Bench) -> None:
    agent = desk.open("shell")
    result = desk.turn(agent, f"echo go; sleep {nap(7301)}; echo not reached", control=HeldTurn(cancel_when="go"))
    assert result.status is CANCELLED
    assert "not reached" not in result.output
    assert result.keep_warm
    assert napping(7301) == []
    assert desk.turn(agent, "echo still here").output == "still here\n"


def test_cancel_climbs_the_ladder_to_the_kill(desk: Bench) -> None:
    agent = desk.open("shell")
    sleep = f"sleep {nap(7302)}"
    text = f"trap '' INT TERM; (trap '' INT TERM; setsid {sleep} &); echo go; {sleep}; {sleep}"
    result = desk.turn(agent, text, control=HeldTurn(cancel_when="go"))
    assert result.status is CANCELLED
    assert not result.keep_warm
    assert result.tree_empty
    assert napping(7302) == []


def test_a_timeout_kills_at_once(desk: Bench) -> None:
    agent = desk.open("shell")
    result = desk.turn(agent, f"trap '' INT; (setsid sleep {nap(7303)} &); sleep {nap(7303)}", timeout=0.5)
    assert (result.status, result.error_code) == (TIMED_OUT, "run_timeout")
    assert result.tree_empty
    assert napping(7303) == []


def test_progress_is_shown_while_it_works(desk: Bench) -> None:
    control = HeldTurn()
    desk.turn(
        desk.open("shell"),
        "echo one; sleep 0.6; printf '\\033[1mtwo\\033[0m\\n'; sleep 0.3; echo three",
        control=control,
    )
    assert control.text == "one\ntwo\nthree\n"
    assert len(control.shown) >= 2


def test_a_long_answer_is_cut_in_the_middle_and_lies_whole_in_a_blob(desk: Bench) -> None:
    result = desk.turn(
        desk.open("shell"), "for n in 0 1 2 3 4; do seq $((n * 50000 + 1)) $((n * 50000 + 50000)); sleep 0.1; done"
    )
    assert len(result.output.encode()) <= 1024 * 1024
    assert result.output.startswith("1\n2\n")
    assert result.output.endswith("\n250000\n")
    assert "left out" in result.output
    assert result.output_blob is not None
    whole = desk.blobs.get(result.output_blob)
    assert whole is not None
    assert result.dropped_bytes == 0
    assert whole.split() == [str(number).encode() for number in range(1, 250_001)]


def test_close_asks_politely_and_leaves_nothing(desk: Bench) -> None:
    agent = desk.open("shell")
    desk.turn(agent, f"trap 'echo bye > left' EXIT; (setsid sleep {nap(7304)} &)")
    assert agent.close(timedelta(seconds=5))
    assert (desk.directory / "left").read_text() == "bye\n"
    assert napping(7304) == []
    assert not agent.scratch.exists()
    assert agent.close(timedelta(0)), "again"


# -- python -----------------------------------------------------------------------------------------------------------


def test_python_answers_like_a_prompt_and_remembers(desk: Bench) -> None:
    agent = desk.open("python")
    assert told(desk.turn(agent, "1 + 1")) == (DONE, "2\n", 0, None)
    source = "import os\ndef f(x):\n    return x * 2\n\nfor i in range(2):\n    print(f(i))\n'é☃'"
    assert told(desk.turn(agent, source)) == (DONE, "0\n2\n'é☃'\n", 0, None)
    assert (
        desk.turn(agent, "f(21), _, os.environ['OAH_RUN_ID'], __name__").output == "(42, 'é☃', 'run_3', '__main__')\n"
    )
    assert desk.turn(agent, f"x = '{'y' * 900_000}'\nlen(x)").output == "900000\n"


def test_an_exception_fails_the_run_and_not_the_interpreter(desk: Bench) -> None:
    agent = desk.open("python")
    result = desk.turn(agent, "x = 1\nx / 0")
    assert (result.status, result.error_code, result.error_message) == (
        FAILED,
        "agent_raised",
        "ZeroDivisionError: division by zero",
    )
    assert result.output.startswith('Traceback (most recent call last):\n  File "<run 1>", line 2, in <module>\n')
    assert "oah" not in result.output
    assert desk.turn(agent, "def").error_message == "SyntaxError: invalid syntax"
    assert desk.turn(agent, "x").output == "1\n"


def test_python_exit_and_interrupt(desk: Bench) -> None:
    agent = desk.open("python")
    control = HeldTurn(cancel_when="go")
    result = desk.turn(agent, "import time\nprint('go')\ntime.sleep(60)", control=control)
    assert (result.status, result.keep_warm) == (CANCELLED, True)
    assert "KeyboardInterrupt" in result.output
    result = desk.turn(agent, "raise SystemExit(4)")
    assert (result.status, result.exit_code, result.keep_warm) == (FAILED, 4, False)


# -- exec -------------------------------------------------------------------------------------------------------------


def test_exec_is_one_command_whose_exit_is_the_outcome(desk: Bench) -> None:
    assert told(desk.once("echo $((6 * 7)); echo err >&2")) == (DONE, "42\nerr\n", 0, None)
    assert told(desk.once("echo no; exit 9")) == (FAILED, "no\n", 9, "exit_nonzero")
    assert told(desk.once("kill -TERM $$")) == (FAILED, "", -15, "agent_killed")
    assert told(desk.once('["printf", "%s|", "a b", "$HOME"]')) == (DONE, "a b|$HOME|", 0, None)
    assert told(desk.once('["no-such-program"]'))[3] == "program_not_found"
    assert told(desk.once("[ -n x ] && echo test")) == (DONE, "test\n", 0, None)
    assert told(desk.once("#" + "x" * 500_000 + "\necho big")) == (DONE, "big\n", 0, None)
    assert told(desk.once("")) == (DONE, "", 0, None)


def test_exec_ends_with_its_command_whatever_that_left_running(desk: Bench) -> None:
    result = desk.once(f"(setsid sleep {nap(7305)} &); sleep {nap(7305)} & echo bye")
    assert told(result) == (DONE, "bye\n", 0, None)
    assert result.tree_empty
    assert napping(7305) == []


def test_runs_leave_no_descriptor_and_no_directory_behind_without_a_close(desk: Bench) -> None:
    """A result that says the tree is empty asks for no close."""
    desk.once("true")
    before = processes.descriptors(os.getpid())
    for _ in range(10):
        agent = desk.open("exec")
        assert desk.turn(agent, "true").tree_empty
        assert not agent.scratch.exists()
        agent = desk.open("shell")
        assert desk.turn(agent, "exit 3").tree_empty
        assert not agent.scratch.exists()
    # Fewer is fine: what earlier tests left may be collected meanwhile.
    assert processes.descriptors(os.getpid()) <= before


def test_exec_cancel_and_timeout(desk: Bench) -> None:
    result = desk.once("echo go; sleep 60", control=HeldTurn(cancel_when="go"))
    assert (result.status, result.tree_empty) == (CANCELLED, True)
    assert desk.once("sleep 60", timeout=0.3).status is TIMED_OUT


# -- opening, losing --------------------------------------------------------------------------------------------------


def test_what_cannot_be_opened_is_a_typed_error_and_leaves_nothing(desk: Bench) -> None:
    with pytest.raises(NotFound) as unknown:
        desk.open("nonesuch")
    assert unknown.value.code == "unknown_agent"
    with pytest.raises(AgentError) as nowhere:
        desk.open("shell", cwd="/nonesuch")
    assert nowhere.value.code == "spawn_failed"
    with pytest.raises(AgentError) as absent:
        desk.open("shell", env={"PATH": "/nonesuch"})
    assert absent.value.code == "program_not_found"
    assert desk.host.live() == ()
    assert list((desk.directory / "scratch").iterdir()) == []


def test_a_program_that_is_never_ready_says_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "agents.d").mkdir()
    text = 'kind = "marker"\ninject = "{turn}"\nready_seconds = 0.5\n'
    (tmp_path / "agents.d" / "a.toml").write_text(
        f'name = "silent"\nargv = ["sh", "-c", "echo no config; sleep 60"]\n{text}'
    )
    (tmp_path / "agents.d" / "b.toml").write_text(f'name = "gone"\nargv = ["sh", "-c", "echo no key; exit 3"]\n{text}')
    with bench(tmp_path, profiles=tmp_path / "agents.d") as desk:
        for profile, words in (("silent", "not ready after 0.5 s: no config"), ("gone", r"exit status 3\): no key")):
            with pytest.raises(AgentError, match=words) as caught:
                desk.open(profile)
            assert caught.value.code == "agent_not_ready"
            assert desk.host.live() == ()


def test_a_run_cancelled_before_it_begins_is_not_given(desk: Bench) -> None:
    control = HeldTurn()
    control.cancel()
    agent = desk.open("shell")
    result = desk.turn(agent, "touch never", control=control)
    assert (result.status, result.keep_warm) == (CANCELLED, True)
    assert desk.turn(agent, "test -e never").exit_code == 1


def test_an_agent_killed_by_the_deadman_writes_nothing(desk: Bench) -> None:
    """The session may already be somebody else's."""
    agent = desk.open("shell", deadline_boottime=_soon(1.0))
    with pytest.raises(LeaseError) as caught:
        desk.turn(agent, "sleep 60")
    assert caught.value.code == "fenced"
    agent = desk.open("exec", deadline_boottime=_soon(1.0))
    with pytest.raises(LeaseError):
        desk.turn(agent, "sleep 60")


def _soon(seconds: float) -> float:
    return boottime() + seconds


def test_an_agent_whose_host_is_lost_is_no_fault_of_the_run(desk: Bench) -> None:
    agent = desk.open("shell")

    class Killer(HeldTurn):
        def on_output(self, text: str) -> None:
            os.kill(desk.host.host_pid, 9)

    result = desk.turn(agent, f"(setsid sleep {nap(7306)} &); echo go; sleep 60", control=Killer())
    assert (result.status, result.error_code, result.tree_empty) == (FAILED, "host_lost", True)
    assert napping(7306) == []
    eventually(lambda: desk.host.host_pid, what="a new host")
    assert desk.turn(desk.open("shell"), "echo again").output == "again\n"


def test_a_warm_agent_that_dies_while_parked_is_not_warm(desk: Bench) -> None:
    agent = desk.open("shell")
    assert agent.process is not None
    os.kill(agent.process.pid, 9)
    eventually(lambda: not agent.alive(), what="its death is known")
    assert not agent.warm
    assert not processes.alive(agent.process.pid)
    result = desk.turn(agent, "echo x")
    assert (result.status, result.error_code) == (FAILED, "agent_killed")
