"""The reference says what there is: every command, route, metric, key and script."""

import re

import click
import pytest

from oah.cli.main import oah
from tests.support.reference_pages import TABLES, fresh
from tests.support.source import ROOT

REFERENCE = ROOT / "docs" / "reference"


def _commands(command: click.Command, path: list[str]) -> set[str]:
    if not isinstance(command, click.Group):
        return {" ".join(path)}
    return {found for name, below in command.commands.items() for found in _commands(below, [*path, name])}


def test_the_page_lists_every_command() -> None:
    page = (REFERENCE / "commands.md").read_text()
    rows = re.findall(r"^\| `(oah [^`]+)` \|", page, flags=re.M)
    listed = {" ".join(word for word in row.split() if word == word.lower() and "\\" not in word) for row in rows}
    assert listed == _commands(oah, ["oah"])


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_what_the_code_says(name: str) -> None:
    page, _ = TABLES[name]
    assert page.read_text() == fresh(name), "python -m tests.support.reference_pages"


def test_the_documents_use_no_command_that_is_not_there() -> None:
    there = _commands(oah, ["oah"])
    groups = {" ".join(command.split()[:2]) for command in there if len(command.split()) > 2}
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]
    for page in pages:
        for used in re.findall(r"(?<![\w/.-])oah ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)", _code(page.read_text())):
            command = f"oah {used}"
            first = " ".join(command.split()[:2])
            assert first in there or command in there or (first in groups and command == first), (
                f"{page.name}: {command}"
            )


def _code(text: str) -> str:
    """What is typed; of other programs, that may call a namespace or a release ``oah``, what follows their ``--``."""
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.S)
    others = r"^\$ (?:kubectl|helm|docker) (?:.* -- |(?!.* -- ).*)"
    blocks = [re.sub(others, "", block, flags=re.M) for block in blocks]
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))])
