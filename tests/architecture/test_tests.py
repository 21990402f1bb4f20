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
        if dotted(call.func) in {"time.sleep", "asyncio.sleep", "anyio.sleep"} | names
    ]


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


def test_every_test_checks_something() -> None:
    """A test without an assertion, a `raises` or a call of something that checks cannot fail for the right reason."""
    checking = ("assert", "check", "expect", "eventually", "verify", "judge", "raises", "run_state_machine")
    for path in _test_files():
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            inside = list(ast.walk(node))
            asserts = any(isinstance(one, ast.Assert) for one in inside)
            called = [dotted(one.func).split(".")[-1] for one in inside if isinstance(one, ast.Call)]
            assert asserts or any(word in call.lower() for call in called for word in checking), (
                f"{name(path)}:{node.lineno} {node.name} checks nothing"
            )
