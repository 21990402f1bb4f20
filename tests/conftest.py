"""Fixtures are modules in tests/support; this file only lists them."""

import os

from tests.support import nats_clients
from tests.support.real_agents import settle, told

pytest_plugins = [
    "tests.support.pace",
    "tests.support.warm",
    "tests.support.servers_redis",
    "tests.support.servers_sql",
    "tests.support.broker_desk",
    "tests.support.worlds",
    "tests.support.api",
    "tests.support.fleets",
    "tests.support.receiver",
    "tests.support.mail_clerk",
    "tests.support.gateway",
]


def pytest_configure() -> None:
    """What is decided here, the processes of pytest-xdist inherit."""
    settle(os.environ)
    nats_clients.settle(os.environ)


def pytest_report_header() -> list[str]:
    """Which real programs this run drives is said, not left to be found out."""
    return [told(), nats_clients.told()]
