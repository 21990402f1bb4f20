"""Entry points of the five console scripts, and the tree of commands.

Command modules import click and each other only; a command imports the client, the settings or an adapter when it
runs, so that ``oah --help`` and completion stay quick.
"""

from __future__ import annotations

import click

from oah import __version__
from oah.cli.agents import agent
from oah.cli.audit_trail import audit
from oah.cli.completion import completion
from oah.cli.configuration import config
from oah.cli.connection import Connection
from oah.cli.controllers import controller as controller_group
from oah.cli.database import db
from oah.cli.dead_letters import dead_letter, quarantine
from oah.cli.doctor import doctor
from oah.cli.failures import OneLineErrors
from oah.cli.gateways import gateway as gateway_group
from oah.cli.jobs import job
from oah.cli.keys import key
from oah.cli.mailbox import mailbox
from oah.cli.message import message
from oah.cli.pauses import cap, pause, pauses, resume
from oah.cli.pools import pool
from oah.cli.processes import api_run, controller_run, gateway_run, worker_run
from oah.cli.queue import queue
from oah.cli.recovery import recovery
from oah.cli.requeue import requeue
from oah.cli.rollouts import rollout
from oah.cli.runs import run
from oah.cli.schedules import schedule
from oah.cli.sessions import session
from oah.cli.top import top
from oah.cli.up import up
from oah.cli.webhooks import webhook
from oah.cli.workers import worker as worker_group
from oah.cli.workspaces import workspace


class Root(OneLineErrors, click.Group):
    """The ``oah`` command."""


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="oah")
@click.option("--url", help="Address of the API; OAH_API_URL when left out.")
@click.pass_context
def oah(ctx: click.Context, /, *, url: str | None) -> None:
    """Session queues, workers and terminals for agent runs.

    The API's address is OAH_API_URL, the key OAH_API_KEY; on the machine of `oah up` the key is found below the data
    directory. Exit codes: 0 done, 1 it failed, 2 bad input, 3 not found, 4 conflict or refused, 5 server unavailable.
    """
    ctx.ensure_object(Connection).at(url)


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


for command in (
    up,
    session,
    run,
    requeue,
    worker_group,
    rollout,
    pool,
    queue,
    pause,
    resume,
    pauses,
    cap,
    dead_letter,
    quarantine,
    job,
    audit,
    recovery,
    controller_group,
    gateway_group,
    workspace,
    key,
    webhook,
    schedule,
    mailbox,
    message,
    agent,
    db,
    doctor,
    top,
    config,
    completion,
    version,
    api_run,
):
    oah.add_command(command)


def main() -> None:
    """``oah``."""
    oah.main(prog_name="oah")


def api() -> None:
    """``oah-api``."""
    api_run.main(prog_name="oah-api")


def worker() -> None:
    """``oah-worker``."""
    worker_run.main(prog_name="oah-worker")


def controller() -> None:
    """``oah-controller``."""
    controller_run.main(prog_name="oah-controller")


def gateway() -> None:
    """``oah-gateway``."""
    gateway_run.main(prog_name="oah-gateway")
