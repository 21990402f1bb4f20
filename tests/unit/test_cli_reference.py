"""docs/reference/commands.md shows the commands there are."""

import click

from oah.cli.main import oah
from tests.support.commands_page import EVERYWHERE, PAGE, commands, page_with


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(text) == text, "run python -m tests.support.commands_page"


def test_every_list_and_show_has_json() -> None:
    for path, command in commands(oah):
        if path.split()[-1] in ("list", "show", "stats", "current", "doctor", "result", "attempts"):
            assert any("--json" in p.opts for p in command.params), path


def test_every_option_is_explained() -> None:
    for path, command in commands(oah):
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{path} {option.opts}"


def test_the_page_names_the_shared_options() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "--json" in text
    assert all(name in text for name in EVERYWHERE - {"--help"})
