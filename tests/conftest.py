"""Fixtures are modules in tests/support; this file only lists them."""

import os
from collections.abc import Iterator

import pytest

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
    # Tests keep a machine busy: that is no pressure for the workers in them, unless a test says so.
    os.environ.setdefault("OAH_WORKER__PRESSURE__LOAD", "0")
    settle(os.environ)
    nats_clients.settle(os.environ)


def pytest_report_header() -> list[str]:
    """Which real programs this run drives is said, not left to be found out."""
    return [told(), nats_clients.told()]


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """What a test assembles in this process may close itself off, as the product does; the next test shall not care."""
    kept = os.umask(0o022)
    os.umask(kept)
    yield
    os.umask(kept)
