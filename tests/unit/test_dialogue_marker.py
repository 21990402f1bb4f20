"""Markers, injections, inputs that cannot be given."""

import re

import pytest

from oah.core.dialogue.marker import Ended, begin_pattern, end_pattern, ended, injection, input_fault, prompt_pattern


def test_markers_are_found_only_with_nonce_turn_and_escape() -> None:
    pattern = re.compile(end_pattern("abc", 3))
    found = pattern.search("text\x1b]7337;abc;3;12;6869\x07more")
    assert found is not None
    assert ended(*found.groups()) == Ended(12, "hi")
    for other in ("\x1b]7337;abd;3;0\x07", "\x1b]7337;abc;4;0\x07", "]7337;abc;3;0\x07", "\x1b]7337;abc;3;begin\x07"):
        assert pattern.search(other) is None
    assert re.search(begin_pattern("abc", 3), "\x1b]7337;abc;3;begin\x07")


def test_a_prompt_is_that_of_any_turn_and_no_beginning() -> None:
    pattern = re.compile(prompt_pattern("abc"))
    assert pattern.search("text\x1b]7337;abc;3;12;6869\x07") and pattern.search("\x1b]7337;abc;0;0\x07")
    for other in ("\x1b]7337;abd;3;0\x07", "]7337;abc;3;0\x07", "\x1b]7337;abc;3;begin\x07"):
        assert pattern.search(other) is None


def test_broken_messages_are_no_message() -> None:
    assert ended("1", "abc") == Ended(1, "")
    assert ended("0", None) == Ended(0, "")


def test_a_nonce_is_a_plain_name() -> None:
    with pytest.raises(ValueError, match="not a nonce"):
        end_pattern("a;b", 1)


def test_an_injection_holds_numbers_and_plain_names_only() -> None:
    line = injection(
        "{turn} {status} {run} {attempt}", nonce="n", turn=2, status=1, run_id="run_1; rm -rf /", attempt=3
    )
    assert line == "2 1 run_1__rm_-rf__ 3"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\0b", "input_rejected"),
        ("a\ud800b", "input_rejected"),
        ("x" * 11, "input_too_large"),
        ("é" * 6, "input_too_large"),
    ],
)
def test_inputs_that_cannot_be_given_are_named(text: str, code: str) -> None:
    fault = input_fault(text, limit=10)
    assert fault is not None
    assert fault[0] == code


def test_all_other_inputs_can() -> None:
    assert input_fault("", limit=10) is None
    assert input_fault("é☃\n\x1b", limit=10) is None
