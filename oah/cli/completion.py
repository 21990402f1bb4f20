"""``oah completion``: completion of commands and options for the shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, /, shell: str) -> None:
    """Print the script that completes oah in SHELL: eval "$(oah completion bash)"."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this click knows no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "oah", "_OAH_COMPLETE").source())
