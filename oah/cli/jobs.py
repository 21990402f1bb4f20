"""``oah job``: maintenance jobs, and the process that performs them."""

from __future__ import annotations

import click

from oah.cli.connection import load_settings
from oah.cli.processes import Process


@click.group()
def job() -> None:
    """Maintenance jobs: what runs, how far it came, what came of it."""


@job.command("run", cls=Process)
@click.pass_context
def run_(ctx: click.Context, /) -> None:
    """Perform jobs until stopped; a controller starts this by itself."""
    settings = load_settings()
    from oah.bootstrap.jobs import jobs_process

    ctx.exit(jobs_process(settings))
