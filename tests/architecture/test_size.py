"""How big things may be."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import PACKAGE, ROOT, files, name, python, tree

MODULE_LINES = 400
TEST_LINES = 700
LUA_LINES = 80

# Functions that are honest as one piece although they are over 40 statements or complexity 8: parsers and state
# machines. At most ten, each with its reason; each also carries its noqa where it stands.
EXCEPTIONS: dict[str, str] = {}

BANNED = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}


@pytest.mark.parametrize(
    ("folder", "limit"), [("oah", MODULE_LINES), ("benchmarks", MODULE_LINES), ("tests", TEST_LINES)]
)
def test_modules_are_short(folder: str, limit: int) -> None:
    if not (ROOT / folder).exists():
        return
    long = {
        name(path): lines for path in python(ROOT / folder) if (lines := len(path.read_text().splitlines())) > limit
    }
    assert not long


def test_scripts_are_short() -> None:
    long = {name(path): lines for path in files(".lua") if (lines := len(path.read_text().splitlines())) > LUA_LINES}
    assert not long


def _function_at(path: Path, line: int) -> str:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first <= line <= node.body[0].lineno:
                return node.name
    return f"line {line}"


def test_functions_are_small_but_for_a_short_list() -> None:
    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "C901,PLR0915",
        "--ignore-noqa",
        "--output-format",
        "json",
    ]
    answer = subprocess.run([*ruff, str(PACKAGE)], cwd=ROOT, capture_output=True, text=True, check=False)
    found = {}
    for finding in json.loads(answer.stdout):
        path = Path(finding["filename"])
        found[f"{name(path)}::{_function_at(path, finding['location']['row'])}"] = finding["message"]
    assert found.keys() == EXCEPTIONS.keys(), {key: found.get(key) for key in found.keys() ^ EXCEPTIONS.keys()}


def test_the_list_of_exceptions_is_short_and_reasoned() -> None:
    assert len(EXCEPTIONS) <= 10
    assert all(len(reason) > 20 for reason in EXCEPTIONS.values())


def test_names_say_what_is_inside() -> None:
    for path in files(".py", ".lua"):
        parts = {part.strip("_") for part in path.relative_to(ROOT).with_suffix("").parts}
        assert not parts & BANNED, name(path)
