"""P27: an agent that is killed in the middle of a tool loop leaves a conversation that the next one can go on with."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import oah.testing
from oah.adapters.pty.resume import Conversation
from oah.errors import AgentError
from oah.ports.agent import AgentSpec
from oah.ports.opening import REFUSED, AgentKind

PROGRAM = Path(oah.testing.__file__).parent / "diary_agent.py"
TABLES = tomllib.loads((PROGRAM.parent / "agents.d" / "diary.toml").read_text())


def spec(home: Path, ref: str | None = None) -> AgentSpec:
    return AgentSpec(
        agent_id="a",
        session_id="s",
        workspace_id="w",
        profile="diary",
        run_id="r",
        attempt=1,
        worker_id="w1",
        cwd=str(home),
        home=str(home),
        deadline_boottime=0.0,
        session_ref=ref,
    )


def started(home: Path, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [os.path.realpath(sys.executable), "-I", "-S", str(PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"HOME": str(home)},
        cwd=home,
    )


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def say(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode() + b"\n")
    process.stdin.flush()


def test_p27_killed_at_a_hundred_points_of_a_tool_loop_it_goes_on_a_hundred_times(tmp_path: Path) -> None:
    chance, kinds, turns = random.Random(27), [], 0
    ref = None
    for point in range(100):
        if point % 10 == 0:  # ten conversations, each killed and gone on with ten times
            home, ref, turns = tmp_path / str(point), None, 0
            home.mkdir()
        conversation = Conversation(spec(home, ref), TABLES, source="diary")
        process = started(home, conversation.begin())
        assert line(process) == "ready", f"point {point}: {conversation.opening}"
        kinds.append(conversation.opening.kind)
        assert (conversation.opening.kind is AgentKind.FRESH) == (turns == 0), f"point {point}: {conversation.opening}"
        say(process, "a text")
        told = line(process)
        assert int(told.split()[0].removeprefix("turns=")) > turns, told
        turns = int(told.split()[0].removeprefix("turns="))
        ref = conversation.current()
        say(process, "[[tools 100000 0]]")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.0005, 0.02))  # the point
        process.kill()
        process.communicate()
    assert kinds.count(AgentKind.FRESH) == 10
    assert kinds.count(AgentKind.REPAIRED) >= 45, "the points were not in the middle of anything"


def test_without_its_name_a_conversation_is_found_by_its_record(tmp_path: Path) -> None:
    """The attempt that began it was lost before anybody knew its name."""
    first = Conversation(spec(tmp_path), TABLES, source="diary")
    process = started(tmp_path, first.begin())
    assert line(process) == "ready"
    say(process, "hello")
    line(process)
    process.kill()
    process.communicate()
    again = Conversation(spec(tmp_path), TABLES, source="diary")
    arguments = again.begin()
    assert again.opening.kind in (AgentKind.RESUMED, AgentKind.REPAIRED)
    assert arguments == ("--resume", first.opening.session_ref)


def test_what_was_cut_off_lies_beside_the_record(tmp_path: Path) -> None:
    ref = "0a1b2c3d-0000-4000-8000-00000000000a"
    record = tmp_path / ".diary" / "-w" / f"{ref}.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text('{"type": "user", "text": "x"}\n{"type": "call", "id": "1"}\n{"ty')
    conversation = Conversation(spec(tmp_path, ref), TABLES, source="diary")
    conversation.begin()
    assert (conversation.opening.kind, conversation.opening.reason) == (AgentKind.REPAIRED, "record_cut")
    assert record.read_text() == '{"type": "user", "text": "x"}\n'
    assert record.with_name(record.name + ".oah-kept-1").read_text() == '{"type": "call", "id": "1"}\n{"ty'


def test_a_record_that_leads_out_of_the_home_is_not_touched(tmp_path: Path) -> None:
    ref = "0a1b2c3d-0000-4000-8000-00000000000a"
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / ".diary").mkdir(parents=True)
    outside.mkdir()
    victim = outside / f"{ref}.jsonl"
    victim.write_text('{"a": 1}\n{"half')
    (home / ".diary" / "-w").symlink_to(outside)
    conversation = Conversation(spec(home, ref), TABLES, source="diary")
    conversation.begin()
    assert conversation.opening.kind is AgentKind.FRESH
    assert victim.read_text() == '{"a": 1}\n{"half'
    (home / ".diary" / "-x").mkdir()
    (home / ".diary" / "-x" / f"{ref}.jsonl").symlink_to(victim)
    Conversation(spec(home, ref), TABLES, source="diary").begin()
    assert victim.read_text() == '{"a": 1}\n{"half'


def test_reasons_to_begin_anew(tmp_path: Path) -> None:
    ref = "0a1b2c3d-0000-4000-8000-00000000000a"
    missing = Conversation(spec(tmp_path, ref), TABLES, source="diary")
    arguments = missing.begin()
    assert (missing.opening.reason, missing.opening.before) == ("no_record", ref)
    assert arguments == ("--session-id", missing.opening.session_ref) and missing.opening.session_ref != ref
    record = tmp_path / ".diary" / "-w" / f"{ref}.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text('{"bro\n{"type": "user"}\n')
    broken = Conversation(spec(tmp_path, ref), TABLES, source="diary")
    broken.begin()
    assert (broken.opening.kind, broken.opening.reason) == (AgentKind.FRESH, "transcript_broken")
    assert broken.current() == broken.opening.session_ref, "an old record is not taken for the new conversation's"


def test_without_words_of_its_own_an_end_before_it_is_ready_is_a_refusal(tmp_path: Path) -> None:
    """The run begins anew, which is said; it does not fail for ever."""
    tables = {"resume": {"argv": ["--continue", "{ref}"]}}
    conversation = Conversation(spec(tmp_path, "a-name"), tables, source="any")
    conversation.begin()
    assert conversation.going_on
    with pytest.raises(AgentError) as caught:
        conversation.refuse("whatever it says")
    assert caught.value.code == REFUSED
    with_words = Conversation(
        spec(tmp_path, "a-name"), {"resume": {**tables["resume"], "refused": ["No such"]}}, source=""
    )
    with_words.begin()
    with_words.refuse("the network is away")
    with pytest.raises(AgentError):
        with_words.refuse("Error: No such conversation")
