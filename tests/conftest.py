"""Fixtures are modules in tests/support; this file only lists them."""

pytest_plugins = [
    "tests.support.servers_redis",
    "tests.support.servers_sql",
    "tests.support.broker_desk",
    "tests.support.worlds",
    "tests.support.api",
    "tests.support.fleets",
    "tests.support.receiver",
]
