"""Tests wait for conditions, run everywhere, and are allowed to fail."""

import ast
from pathlib import Path

from tests.support.source import ROOT, calls, dotted, name, python, tree

# Places that may sleep: none of them waits for something to have happened.
ALLOWED_SLEEPS = {
    "tests/support/waiting.py": "polls a condition until a deadline: what everybody else uses",
}


def _test_files() -> list[Path]:
    return python(ROOT / "tests")


def _sleeps(path: Path) -> list[int]:
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio", "anyio")
        for alias in node.names
        if alias.name == "sleep"
    }
    return [
        call.lineno
        for call in calls(path)
        if dotted(call.func) in {"time.sleep", "asyncio.sleep", "anyio.sleep"} | names and not _yields(call)
    ]


def _yields(call: ast.Call) -> bool:
    """`asyncio.sleep(0)` waits for nothing: it lets the loop run what is ready."""
    first = call.args[0] if call.args else None
    return dotted(call.func) == "asyncio.sleep" and isinstance(first, ast.Constant) and first.value == 0


def test_no_test_sleeps() -> None:
    sleeping = {name(path): lines for path in _test_files() if (lines := _sleeps(path))}
    assert sleeping.keys() == ALLOWED_SLEEPS.keys(), "wait with tests.support.eventually instead"


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    banned = {"pytest.skip", "pytest.xfail", "pytest.importorskip", "pytest.mark.skip", "pytest.mark.skipif"}
    banned |= {"pytest.mark.xfail", "pytest.mark.flaky", "unittest.skip"}
    for path in _test_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                assert dotted(node) not in banned, f"{name(path)}:{node.lineno}"


Functions = dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]


def _functions() -> Functions:
    found: Functions = {}
    for path in [*_test_files(), *python(ROOT / "oah" / "testing")]:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, []).append(node)
    return found


def _called(node: ast.AST) -> set[str]:
    calls_inside = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls_inside}


def _checks(node: ast.AST) -> bool:
    asserts = any(isinstance(one, ast.Assert) for one in ast.walk(node))
    return asserts or bool(_called(node) & {"raises", "fail", "AssertionError", "run_state_machine_as_test"})


def test_every_test_checks_something() -> None:
    """By itself or through what it calls: a test that checks nothing cannot fail for the right reason."""
    functions = _functions()
    checking = {name for name, nodes in functions.items() if any(map(_checks, nodes))}
    while more := {
        name
        for name, nodes in functions.items()
        if name not in checking and any(_called(one) & checking for one in nodes)
    }:
        checking |= more
    assert not {name for name in functions if name.startswith("test_")} - checking
