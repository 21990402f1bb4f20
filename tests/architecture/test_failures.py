"""Every test that the table of failures names exists: a guarantee without its test is a wish."""

import ast
import re

from tests.support.source import ROOT, python, tree

PAGE = ROOT / "docs" / "explanation" / "failures.md"


def _tests() -> set[str]:
    return {
        node.name
        for path in python(ROOT / "tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_test_of_the_table_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 30
    assert not sorted(named - _tests())


def test_a_story_that_a_test_is_named_for_is_in_the_table() -> None:
    """`test_p09_…` is row P09's."""
    named = {(name, found[1].upper()) for name in _tests() if (found := re.match(r"test_(p\d\d)_", name))}
    rows = {
        line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if re.match(r"\| [BP]\d+ \|", line)
    }
    assert not sorted(name for name, story in named if f"`{name}`" not in rows.get(story, ""))


def test_every_row_names_a_test_or_the_judge() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-Z]+\d+ \|", line)]
    assert len(rows) >= 48
    assert not [row for row in rows if "`test_" not in row.split("|")[4] and "the judge" not in row.split("|")[4]]
