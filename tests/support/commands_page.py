"""The table of commands in docs/reference/commands.md, made from the commands themselves.

``python -m tests.support.commands_page`` writes it; a test compares.
"""

from collections.abc import Iterator

import click

from oah.cli.main import oah
from tests.support.source import ROOT

PAGE = ROOT / "docs" / "reference" / "commands.md"
BEGIN, END = "<!-- commands -->\n", "<!-- end -->\n"
HEAD = (
    "| command | does |\n|---|---|\n| `oah-api`, `oah-worker`, `oah-controller` | the three processes; "
    "the same as `oah api`, `oah worker run`, `oah controller run` |\n"
)
EVERYWHERE = {"--json", "--help", "--limit", "--workspace"}
"""Options that many commands share; the page names them once."""


def commands(group: click.Group = oah, path: str = "oah") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, sorted."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def row(path: str, command: click.Command) -> str:
    """One line of the table."""
    ctx = click.Context(command)
    arguments = [p.make_metavar(ctx) for p in command.params if isinstance(p, click.Argument)]
    names = [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)]
    options = [f"`{name}`" for name in names if name not in EVERYWHERE]
    words = " ".join((command.help or "").split("\n\n")[0].split())
    assert words, f"{path} has no help"
    more = f" Options: {', '.join(options)}." if options else ""
    usage = " ".join([path, *arguments])
    return f"| `{usage}` | {words}{more} |".replace("TEXT|-", "TEXT\\|-") + "\n"


def table() -> str:
    """The whole table."""
    return HEAD + "".join(row(path, command) for path, command in commands())


def page_with(text: str) -> str:
    """The page with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
