"""What a killed program leaves of its record, and how much of it can be gone on with."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from oah.core.dialogue.records import Judgement, RecordRules, State, judge, path_of
from oah.core.dialogue.resuming import is_ref, ref_in, resume_rules
from oah.errors import InvalidRequest

A = "0a1b2c3d-0000-4000-8000-00000000000a"
CALLS = ("message.content[type=tool_use].id", "payload[type=function_call].call_id")
ANSWERS = ("message.content[type=tool_result].tool_use_id", "payload[type=function_call_output].call_id")


def rules(*, cut: bool = True) -> RecordRules:
    paths = [tuple(path for text in texts if (path := path_of(text)) is not None) for texts in (CALLS, ANSWERS)]
    return RecordRules(paths[0], paths[1], cut)


def said(text: str) -> dict[str, Any]:
    return {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}


def call(*ids: str) -> dict[str, Any]:
    return {"message": {"content": [{"type": "tool_use", "id": each, "name": "x"} for each in ids]}}


def answer(*ids: str) -> dict[str, Any]:
    return {"message": {"content": [{"type": "tool_result", "tool_use_id": each} for each in ids]}}


def record(*documents: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in documents)


def test_a_whole_record_is_sound() -> None:
    data = record({"message": {"content": "a plain text"}}, call("1"), answer("1"), said("done"))
    assert judge(data, rules()) == Judgement(State.SOUND, len(data))


@pytest.mark.parametrize("left", [b"{", b'{"a": "b', b"\0\0\0", '{"a": "é'.encode()[:-1], b'"text"', b"12"])
def test_a_last_line_that_is_not_whole_is_cut_off(left: bytes) -> None:
    data = record(said("one"), said("two"))
    found = judge(data + left, rules(cut=False))
    assert (found.state, found.keep, found.newline) == (State.CUT, len(data), False)


def test_a_last_line_without_its_end_gets_one() -> None:
    data = record(said("one"), said("two"))[:-1]
    found = judge(data, rules())
    assert (found.state, found.keep, found.newline) == (State.CUT, len(data), True)


@pytest.mark.parametrize("data", [b"", b"\n", b"{", b"\0" * 100])
def test_nothing_is_nothing_to_go_on_with(data: bytes) -> None:
    assert judge(data, rules()).state is State.BROKEN


def test_damage_in_the_middle_is_no_work_for_us() -> None:
    assert judge(record(said("one")) + b'{"br\n' + record(said("two")), rules()).state is State.BROKEN


def test_a_call_that_nobody_answered_is_cut_off_or_makes_it_useless() -> None:
    before = record(said("one"), call("1"), answer("1"))
    data = before + record(call("2"), said("and"))
    assert judge(data, rules(cut=False)).state is State.BROKEN
    found = judge(data, rules())
    assert (found.state, found.keep) == (State.CUT, len(before))


def test_what_is_cut_off_may_hold_the_answer_of_an_earlier_call() -> None:
    before = record(said("one"))
    found = judge(before + record(call("1"), call("2"), answer("1")), rules())
    assert (found.state, found.keep) == (State.CUT, len(before))
    assert judge(record(call("1"), call("2"), answer("1")), rules()).state is State.BROKEN


def test_a_broken_answer_leaves_its_call_open() -> None:
    before = record(said("one"))
    found = judge(before + record(call("1")) + record(answer("1"))[:-5], rules())
    assert (found.state, found.keep) == (State.CUT, len(before))


def test_other_shapes_by_other_paths() -> None:
    before = record({"payload": {"type": "message"}})
    data = before + record({"payload": {"type": "function_call", "call_id": "c"}})
    assert judge(data, rules()).keep == len(before)
    done = data + record({"payload": {"type": "function_call_output", "call_id": "c"}})
    assert judge(done, rules()).state is State.SOUND


def test_of_the_end_alone_the_first_line_may_be_the_rest_of_one() -> None:
    data = b'st of it"}\n' + record(said("two"), answer("before"))
    assert judge(data, rules(), partial=True) == Judgement(State.SOUND, len(data))
    assert judge(data, rules()).state is State.BROKEN


def test_a_repaired_record_is_sound_wherever_it_was_broken_off() -> None:
    chance = random.Random(27)
    documents: list[dict[str, Any]] = [said("begin")]
    for number in range(40):
        ids = [f"{number}-{each}" for each in range(chance.randint(1, 3))]
        documents += [call(*ids), *(answer(each) for each in chance.sample(ids, len(ids))), said("é" * number)]
    data = record(*documents)
    for _ in range(300):
        broken = data[: chance.randint(len(record(said("begin"))), len(data))]
        found = judge(broken, rules())
        assert found.state is not State.BROKEN
        repaired = broken[: found.keep] + (b"\n" if found.newline else b"")
        assert judge(repaired, rules()) == Judgement(State.SOUND, len(repaired))


@pytest.mark.parametrize(
    ("record_", "path", "ref"),
    [
        (".claude/projects/*/{ref}.jsonl", f".claude/projects/-w/{A}.jsonl", A),
        (".claude/projects/*/{ref}.jsonl", ".claude/projects/-w/agent-1234.jsonl", None),
        (".claude/projects/*/{ref}.jsonl", f".claude/projects/-w/x/{A}.jsonl", None),
        (".codex/sessions/**/*{ref}.jsonl", f".codex/sessions/2026/11/30/rollout-2026-11-30T10-00-00-{A}.jsonl", A),
        (".codex/sessions/**/*{ref}.jsonl", f".codex/sessions/{A}.jsonl", A),
        (".codex/sessions/**/*{ref}.jsonl", f".codex/sessions/{A}.jsonl.oah-kept-1", None),
        ("plain.jsonl", "plain.jsonl", None),
    ],
)
def test_a_records_name_is_the_conversations(record_: str, path: str, ref: str | None) -> None:
    assert ref_in(record_, path) == ref


@pytest.mark.parametrize("text", [A, "ses_12ab", "last", "a.b:c@d"])
def test_names_that_may_be_given_to_a_program(text: str) -> None:
    assert is_ref(text)


@pytest.mark.parametrize("text", ["", "-p", "--help", "a b", "../x", "a\n", "x" * 201, "é"])
def test_names_that_may_not(text: str) -> None:
    assert not is_ref(text)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({}, "argv"),
        ({"argv": "x"}, "argv"),
        ({"argv": ["x"], "recrod": ""}, "recrod"),
        ({"argv": ["x"], "record": "/etc/{ref}"}, "record"),
        ({"argv": ["x"], "record": "../{ref}"}, "record"),
        ({"argv": ["x"], "dangling": "maybe"}, "dangling"),
        ({"argv": ["x"], "calls": ["a[b"]}, "calls"),
        ({"argv": ["x"], "any_cwd": "no"}, "any_cwd"),
    ],
)
def test_a_profiles_mistake_is_named(table: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        resume_rules(table, lambda text: pytest.fail(text), source="x.toml")
    assert error.value.code == "invalid_profile"
    assert word in error.value.message and "x.toml" in error.value.message
