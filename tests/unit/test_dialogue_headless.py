"""Programs without their screen: where in what they write a reply stands."""

import json

import pytest

from oah.core.dialogue.headless import documents, spot
from oah.core.dialogue.versions import is_known, said_version

LINES = "\n".join(
    [
        "a warning that is no document",
        json.dumps({"type": "thread.started", "thread_id": "t-1"}),
        json.dumps({"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}}),
        json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "first"}}),
        json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": "last"}}),
        json.dumps({"type": "item.completed", "item": {"type": "reasoning", "text": "done"}}),
    ]
)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("item.text if item.type=agent_message", "last"),
        ("thread_id if type=thread.started", "t-1"),
        ("thread_id", "t-1"),
        ("item.text", "done"),
        ("item.text if item.type=nothing", None),
        ("nothing.at.all", None),
        ("item.text if type=item.completed and item.text^=fir", "first"),
    ],
)
def test_the_last_document_that_has_it_says_it(where: str, found: str | None) -> None:
    place = spot(where)
    assert place is not None
    assert place.found(documents(LINES)) == found


def test_lists_are_looked_through_and_texts_joined() -> None:
    document = {"message": {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"text": "two"}, {}]}}
    place = spot("message.content.text if message.role=assistant")
    assert place is not None
    assert place.found([document]) == "one\ntwo"


@pytest.mark.parametrize(
    "text",
    [
        '[{"a": 1}, {"b": 2}]',
        '{"a": 1}\n{"b": 2}\n',
        'noise\n[\n  {"a": 1},\n  {"b": 2}\n]',
        'x\n{"a": 1}\ny\n{"b": 2}',
    ],
)
def test_documents_are_found_however_they_are_written(text: str) -> None:
    assert documents(text) == ({"a": 1}, {"b": 2})


@pytest.mark.parametrize("text", ["", "words", "{", "[" * 100_000, '{"a": '])
def test_what_is_no_document_is_none(text: str) -> None:
    assert documents(text) == ()


def test_a_flag_is_a_condition() -> None:
    place = spot("result if is_error=true")
    assert place is not None
    assert place.found([{"result": "bad", "is_error": True}]) == "bad"
    assert place.found([{"result": "good", "is_error": False}]) is None


@pytest.mark.parametrize("text", ["a..b", "a if b", ".a"])
def test_a_bad_spot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"path|condition"):
        spot(text)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("2.1.197 (Claude Code)", "2.1.197"),
        ("codex-cli 0.171.0", "0.171.0"),
        ("GitHub Copilot CLI 1.0.102.\nRun 'x update'", "1.0.102"),
        ("llm, version 0.36", "0.36"),
        ("v20.20.2", "20.20.2"),
        ("no version here", None),
    ],
)
def test_a_version_is_found_among_words(said: str, version: str | None) -> None:
    assert said_version(said) == version


def test_a_version_is_known_by_its_beginning() -> None:
    assert is_known("2.1.197", ["2.1."])
    assert is_known("2.1", ["2.1."])
    assert not is_known("2.10.1", ["2.1."])
    assert is_known("7", ())
