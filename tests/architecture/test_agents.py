"""What is special about a program stands in its profile, and nowhere else."""

import re

import pytest

from tests.support.source import PACKAGE, name, python

PROFILES = PACKAGE / "core" / "dialogue" / "profiles"
OF_OAH = {"exec", "noop", "python", "shell", "generic"}
PROGRAMS = sorted(path.stem for path in PROFILES.glob("*.toml") if path.stem not in OF_OAH)
WORDS = {"claude-code": "claude", "pi": r"['\"]pi['\"]", "llm": r"['\"]llm['\"]"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_module_names_an_agent_program(program: str) -> None:
    pattern = re.compile(rf"{WORDS.get(program, program)}", re.IGNORECASE)
    naming = [name(path) for path in python(PACKAGE) if pattern.search(path.read_text(encoding="utf-8"))]
    assert naming == []


def test_there_are_profiles_to_look_for() -> None:
    assert len(PROGRAMS) >= 9
