"""Fixtures are modules in tests/support; this file only lists them."""

from tests.support import nats_clients
from tests.support.real_agents import told

pytest_plugins = [
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


def pytest_report_header() -> list[str]:
    """Which real programs this run drives is said, not left to be found out."""
    return [told(), nats_clients.told()]
