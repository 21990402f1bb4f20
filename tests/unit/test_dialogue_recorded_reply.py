"""A reply that the screen did not keep, from the program's own record: only where it is the same turn."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.adapters.pty.matching import compiled
from oah.adapters.pty.resume import Conversation
from oah.core.dialogue.headless import spot
from oah.core.dialogue.recorded_reply import ALIKE, RecordedRules, recorded_rules, reply_in
from oah.core.dialogue.screen import folded
from oah.core.dialogue.screen_profile import screen_profile
from oah.errors import InvalidRequest
from oah.ports.agent import AgentSpec

SAID, TOLD = "said if who=me", "said if who=you"
_SPOTS = (spot(SAID), spot(TOLD))
assert _SPOTS[0] is not None and _SPOTS[1] is not None
RULES = RecordedRules(*_SPOTS)  # type: ignore[arg-type]
REF = "11111111-2222-4333-8444-555555555555"


def record(*turns: tuple[str, str]) -> bytes:
    return b"".join(json.dumps({"who": who, "said": said}).encode() + b"\n" for who, said in turns)


LONG = "\n".join(f"row {row} of a **long** answer" for row in range(200))
OURS = record(("you", "old"), ("me", "an old answer"), ("you", "say\nmore"), ("me", "I look."), ("me", LONG))
SHOWN = "\n".join(f"│ row {row} of a long answer │" for row in range(170, 200))


def test_the_whole_of_it_is_there_where_the_screen_shows_its_end() -> None:
    assert reply_in(OURS, "say more", SHOWN, RULES) == f"I look.\n\n{LONG}"
    assert reply_in(OURS + b'{"who": "me", "sa', "say more", SHOWN, RULES) == f"I look.\n\n{LONG}", (
        "it is being written"
    )
    assert reply_in(b'rest"}\n' + OURS, "say more", SHOWN, RULES, partial=True) is not None


@pytest.mark.parametrize(
    ("data", "text", "shown"),
    [
        (OURS, "say less", SHOWN),
        (OURS, "old", SHOWN[:-20]),
        (OURS, "say more", SHOWN + "\nand more"),
        (OURS, "say more", ""),
        (OURS, "", SHOWN),
        (record(("you", "say more")), "say more", SHOWN),
        (OURS.replace(b'{"who": "me", "said": "I look."}', b"{broken"), "say more", SHOWN),
        (b"", "say more", SHOWN),
    ],
    ids=["other-text", "older-turn", "other-end", "nothing-shown", "no-text", "nothing-said", "broken", "empty"],
)
def test_what_is_not_seen_to_be_the_same_turn_is_not_taken(data: bytes, text: str, shown: str) -> None:
    assert reply_in(data, text, shown, RULES) is None


def test_a_text_that_was_given_twice_is_answered_by_the_last() -> None:
    twice = record(("you", "go"), ("me", "first " * 20), ("you", "go"), ("me", "second " * 20))
    assert reply_in(twice, "go", "second " * 9, RULES) == "second " * 20
    assert reply_in(twice, "go", "first " * 9, RULES) is None


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1, max_size=300), st.text(max_size=300))
def test_only_an_end_that_is_alike_is_taken(said: str, shown: str) -> None:
    found = reply_in(record(("you", "go"), ("me", said)), "go", shown, RULES)
    if found is not None:
        alike = min(len(folded(said)), len(folded(shown)), ALIKE)
        assert alike and folded(said)[-alike:] == folded(shown)[-alike:]


# --- profiles ---

WRITTEN: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "claude-code": (
        {"type": "user", "isSidechain": False, "message": {"role": "user", "content": "say more"}},
        {
            "type": "assistant",
            "isSidechain": False,
            "message": {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": LONG}],
            },
        },
    ),
    "codex": (
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"text": "say more"}]}},
        {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": [{"text": LONG}]}},
    ),
    "copilot": (
        {"type": "user.message", "data": {"content": "say more", "transformedContent": "<now/> say more"}},
        {"type": "assistant.message", "data": {"content": LONG, "toolRequests": []}},
    ),
    "pi": (
        {"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": "say more"}]}},
        {"type": "message", "message": {"role": "assistant", "content": [{"type": "text", "text": LONG}]}},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_profiles_know_where_it_is_said(name: str) -> None:
    table = tomllib.loads((files("oah.core.dialogue.profiles") / f"{name}.toml").read_text(encoding="utf-8"))
    rules = screen_profile(table, compiled, source=name).recorded
    assert rules is not None and "{ref}" in rules.file
    data = b"".join(json.dumps(each).encode() + b"\n" for each in WRITTEN[name])
    assert reply_in(data, "say more", SHOWN, rules) == LONG


def test_a_table_that_says_too_little_or_leads_elsewhere_is_refused() -> None:
    good = {"said": SAID, "told": TOLD}
    assert recorded_rules(good, record="d/{ref}.jsonl", source="x").file == "d/{ref}.jsonl"
    for wrong in (
        {"said": SAID},
        {**good, "more": ""},
        {**good, "said": "a.."},
        {**good, "file": "/etc/{ref}"},
        {**good, "file": "../{ref}"},
        {**good, "file": "log"},
    ):
        with pytest.raises(InvalidRequest) as caught:
            recorded_rules(wrong, record="d/{ref}.jsonl", source="x")
        assert caught.value.code == "invalid_profile"


# --- files ---


def conversation(home: Path, *, ref: str | None = None) -> Conversation:
    spec = AgentSpec(
        agent_id="a",
        session_id="s",
        workspace_id="w",
        profile="p",
        run_id="r",
        attempt=1,
        worker_id="w",
        cwd=str(home),
        home=str(home),
        deadline_boottime=0.0,
        session_ref=ref,
    )
    found = Conversation(spec, {"resume": {"argv": ["--resume", "{ref}"]}}, source="x")
    found.begin()
    return found


def kept(home: Path, data: bytes = OURS, ref: str = REF) -> Path:
    path = home / "talks" / f"{ref}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


IN_FILES = RecordedRules(RULES.said, RULES.told, "talks/{ref}.jsonl")


def test_a_conversation_without_a_name_is_found_by_what_it_says(tmp_path: Path) -> None:
    asking = conversation(tmp_path)
    assert asking.said("say more", SHOWN, IN_FILES) is None
    kept(tmp_path, record(("you", "hello"), ("me", "world")), REF.replace("1", "9"))
    kept(tmp_path)
    assert asking.said("say more", SHOWN, IN_FILES) == f"I look.\n\n{LONG}"
    kept(tmp_path, ref=REF.replace("1", "8"))
    assert asking.said("say more", SHOWN, IN_FILES) is None, "two say so: which is ours?"
    assert conversation(tmp_path, ref=REF).said("say more", SHOWN, IN_FILES) is not None, "the one that is named"


def test_what_was_recorded_before_the_turn_is_no_reply_of_it(tmp_path: Path) -> None:
    """A schedule gives the same text each time, is answered in much the same words, and the program is slow to write
    them down."""
    asking = conversation(tmp_path, ref=REF)
    path = kept(tmp_path)
    asking.turns(IN_FILES)
    assert asking.said("say more", SHOWN, IN_FILES) is None
    more = f"And now: {LONG}"
    with path.open("ab") as file:
        file.write(record(("you", "say more"), ("me", more)))
    assert asking.said("say more", SHOWN, IN_FILES) == more
    asking.turns(IN_FILES)
    assert asking.said("say more", SHOWN, IN_FILES) is None
    path.write_bytes(b"")
    assert asking.said("say more", SHOWN, IN_FILES) is None


def test_no_record_leads_out_of_the_home(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir(), outside.mkdir()
    path = kept(home)
    path.unlink()
    (outside / "secret").write_bytes(OURS)
    for lead in (os.symlink, os.link):
        lead(outside / "secret", path)
        assert conversation(home, ref=REF).said("say more", SHOWN, IN_FILES) is None
        path.unlink()
    os.mkfifo(path)
    assert conversation(home, ref=REF).said("say more", SHOWN, IN_FILES) is None
