"""The page about messages: its diagram is the code's, and every test that it names exists."""

import ast
import re

from oah.core.lifecycle import MESSAGE
from tests.support.source import ROOT, python, tree

PAGE = ROOT / "docs" / "explanation" / "messages.md"


def test_the_diagram_is_the_table() -> None:
    assert f"```mermaid\n{MESSAGE.mermaid()}\n```" in PAGE.read_text()


def test_every_test_that_the_page_names_exists() -> None:
    there = {
        node.name
        for path in python(ROOT / "tests")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-Z]+\d+ \|", line)]
    assert len(rows) >= 20
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert not sorted(named - there)
