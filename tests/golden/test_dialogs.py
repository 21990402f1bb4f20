"""Screens on which programs ask, or cannot go on: recorded, and each is known for what it is."""

import tomllib
from pathlib import Path

import pytest

from oah.adapters.pty.screen import ScreenModel
from oah.core.dialogue.reading import Condition, read
from oah.core.model.question import DialogKind
from tests.golden.replay import Replay, names, recording, rules_of

PERMISSIONS = names("permission")


@pytest.mark.parametrize("name", PERMISSIONS)
def test_a_permission_is_asked_with_its_choices(name: str) -> None:
    replay = Replay(recording(name))
    reading = replay.asking[0]
    assert reading.condition is Condition.ASKING
    assert reading.dialog is not None
    assert reading.dialog.kind is DialogKind.PERMISSION
    assert len(reading.dialog.choices) >= 2
    assert len({choice.key for choice in reading.dialog.choices}) == len(reading.dialog.choices)
    assert all(choice.words for choice in reading.dialog.choices)


@pytest.mark.parametrize("name", PERMISSIONS)
def test_a_turn_that_asks_is_not_over(name: str) -> None:
    """Not before the answer: what came before it is never the end."""
    replay = Replay(recording(name))
    seen = replay.turns[0]
    assert Condition.ASKING in seen.conditions
    assert seen.over_at is None or "make a file" in seen.reply


def test_programs_that_ask_were_recorded() -> None:
    assert {recording(name).profile for name in PERMISSIONS} == {
        "claude-code", "copilot", "gemini", "opencode", "qwen",
    }  # fmt: skip


SCREENS = Path(__file__).parent / "screens"
INDEX = tomllib.loads((SCREENS / "index.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_start_that_stops_is_never_ready(name: str) -> None:
    """Whatever part of it has been drawn."""
    entry, data = INDEX[name], (SCREENS / f"{name}.bin").read_bytes()
    rules = rules_of(entry["profile"])
    model = ScreenModel(rows=40, columns=100)
    reading = read(model.look(), rules.screen)
    for at in range(0, len(data), 64):
        model.feed(data[at : at + 64])
        reading = read(model.look(), rules.screen)
        assert reading.condition is not Condition.READY or entry.get("begins_ready"), f"{at} bytes"
    assert reading.condition == entry["condition"]
    assert reading.dialog is not None
    assert reading.dialog.name == entry["dialog"]
    assert [choice.key for choice in reading.dialog.choices] == entry["choices"]
