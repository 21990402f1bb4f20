"""Profiles of screens: what is wrong in one is said with file and key."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from importlib.resources import files
from typing import Any, cast

import pytest

from oah.core.dialogue.reading import Condition, Pattern, read
from oah.core.dialogue.screen import Screen
from oah.core.dialogue.screen_profile import ScreenProfile, screen_profile
from oah.core.model.question import DialogKind
from oah.errors import InvalidRequest


def compiled(text: str) -> Pattern:
    return cast(Pattern, re.compile(text))


def made(screen: dict[str, Any] | None = None, **tables: Any) -> ScreenProfile:
    table = {"screen": {"composer": {"start": "^> "}, **(screen or {})}, **tables}
    return screen_profile(table, compiled, source="agents.d/x.toml")


def test_the_least_profile() -> None:
    profile = made()
    assert profile.injection.submit == b"\r"
    assert profile.turn.unknown == timedelta(seconds=20)
    assert profile.injection.window == timedelta(seconds=5)


def test_a_profile_of_plain_prompts_asks_nobody_about_silence() -> None:
    assert made({"composer": {"start": "^> ", "at_cursor": True}}).turn.unknown is None
    assert made({"composer": {"start": "^> ", "at_cursor": True}, "unknown_seconds": 9}).turn.unknown is not None
    assert made({"unknown_seconds": 0}).turn.unknown is None


def test_gemini_is_ready_though_its_old_footer_stands_below_the_new_one() -> None:
    table = tomllib.loads((files("oah.core.dialogue.profiles") / "gemini.toml").read_text(encoding="utf-8"))
    rules = screen_profile(table, compiled, source="gemini").screen
    footer = ["▀" * 60, " workspace (/directory)    sandbox", " /work    no sandbox"]
    lines = ["✦ row 163", "▄" * 60, " > and more", "   of it", *footer * 2]
    reading = read(Screen(lines=tuple(lines), columns=80), rules)
    assert reading.condition is Condition.READY and reading.composer is not None
    assert reading.composer.draft == "and more\nof it"


def test_everything_it_can_say() -> None:
    profile = made(
        {
            "busy": ["working"],
            "near": 9,
            "settle_seconds": 1.5,
            "unseen_seconds": 4,
            "ready_without": 7,
            "dialogs": [
                {
                    "name": "d",
                    "kind": "trust",
                    "lines": ["x"],
                    "choice": r"(\d)\. (.*)",
                    "free": True,
                    "keys": {"1": "y"},
                }
            ],
            "submit": {"key": "\n", "clear": "\x03", "commands": "/", "guard": " ", "multiline": True, "blind": True},
            "reply": {"begin": "^● ", "noise": ["x"], "stop": ["y"], "echo": "^> "},
        }
    )
    assert (profile.screen.near, profile.release, profile.turn.settle) == (
        9,
        timedelta(seconds=7),
        timedelta(seconds=1.5),
    )
    assert (profile.screen.dialogs[0].kind, profile.screen.dialogs[0].free) == (DialogKind.TRUST, True)
    assert profile.keys == {"d": {"1": "y"}}
    assert (profile.injection.submit, profile.injection.clear, profile.injection.guard) == (b"\n", b"\x03", " ")


@pytest.mark.parametrize(
    ("screen", "key"),
    [
        ({"composer": {}}, "screen.composer.start is missing"),
        ({"composer": {"start": 1}}, "screen.composer.start has the wrong type"),
        ({"composer": {"start": "^", "nonsense": 1}}, "screen.composer.nonsense"),
        ({"composer": {"start": "^", "footer": True}}, "screen.composer.footer has the wrong type"),
        ({"composer": 3}, "screen.composer"),
        ({"busy": [1]}, "screen.busy must be a list of strings"),
        ({"busy": "x"}, "screen.busy has the wrong type"),
        ({"speed": 1}, "screen.speed"),
        ({"dialogs": [{"kind": "trust", "lines": ["x"]}]}, "screen.dialogs[0].name is missing"),
        ({"dialogs": [{"name": "d", "kind": "riddle", "lines": ["x"]}]}, "screen.dialogs[0].kind"),
        ({"dialogs": [{"name": "d"}]}, "screen.dialogs[0].lines is missing"),
        ({"dialogs": [{"name": "d", "lines": ["x"], "keys": {"1": 1}}]}, "screen.dialogs[0].keys.1 has the wrong type"),
        ({"submit": {"blind": "yes"}}, "screen.submit.blind has the wrong type"),
        ({"submit": {"window_seconds": "5"}}, "screen.submit.window_seconds has the wrong type"),
        ({"reply": {"start": "x"}}, "screen.reply.start"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(screen: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(screen)
    assert caught.value.code == "invalid_profile"
    assert "agents.d/x.toml" in caught.value.message
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"files": [{"path": "/etc/passwd", "text": ""}]}, "files[0].path"),
        ({"files": [{"path": "../x", "text": ""}]}, "files[0].path"),
        ({"resume": {"new": ["x"]}}, "resume.argv is missing"),
        ({"version": {"known": [1]}}, "version.known must be a list of strings"),
    ],
)
def test_the_other_tables_too(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(**tables)
    assert key in caught.value.message
