"""The long-lived processes: ``oah api``, ``oah worker run``, ``oah controller run``, ``oah gateway run``.

They block until the process has ended; the exit code is the process's own.
"""

from __future__ import annotations

from typing import Any

import click

from oah.cli.connection import load_settings
from oah.cli.failures import OneLineErrors
from oah.runtime.collector import still

_PORT = click.IntRange(0, 65535)


class Process(OneLineErrors):
    """A command that is also a console script of its own."""


@click.command("api", cls=Process)
@click.option("--api-only", is_flag=True, help="No embedded workers, no leader duties: workers are elsewhere.")
@click.option("--host", "api_host", help="Address to bind.")
@click.option("--port", "api_port", type=_PORT, help="Port to bind; 8787 when nothing says otherwise.")
@click.pass_context
def api_run(ctx: click.Context, /, *, api_only: bool, **options: Any) -> None:
    """The API, by default with a worker and the leader's duties inside."""
    with still():
        settings = load_settings(**options)
        from oah.bootstrap.api import api_process

        ctx.exit(api_process(settings, api_only=api_only))


@click.command("run", cls=Process)
@click.option("--slots", type=click.IntRange(1, 512), help="Runs at once, at most.")
@click.option("--slots-min", type=click.IntRange(1, 512), help="Slots that are always open; more open when needed.")
@click.option("--pool", help="The pool whose lanes it serves.")
@click.option("--name", help="Its name on this host; the host's name when nothing says otherwise.")
@click.pass_context
def worker_run(ctx: click.Context, /, **options: Any) -> None:
    """A worker: claims sessions and drives their agents."""
    with still():
        settings = load_settings(worker=options)
        from oah.bootstrap.worker import worker_process

        ctx.exit(worker_process(settings))


@click.command("run", cls=Process)
@click.pass_context
def controller_run(ctx: click.Context, /) -> None:
    """A controller: recovers, reconciles and relays while it leads."""
    with still():
        settings = load_settings()
        from oah.bootstrap.controller import controller_process

        ctx.exit(controller_process(settings))


@click.command("run", cls=Process)
@click.option("--host", help="Address to bind.")
@click.option("--port", "gateway_port", type=_PORT, help="Port to bind; 4222 when nothing says otherwise.")
@click.pass_context
def gateway_run(ctx: click.Context, /, *, host: str | None, gateway_port: int | None) -> None:
    """The gateway: NATS clients reach mailboxes through it."""
    with still():
        settings = load_settings(gateway={"host": host}, gateway_port=gateway_port)
        from oah.bootstrap.gateway import gateway_process

        ctx.exit(gateway_process(settings))
