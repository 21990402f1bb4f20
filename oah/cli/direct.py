"""``--direct``: the stores themselves, without an API in between. For the first key, and for days when the API is
what is broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oah.errors import InvalidRequest

if TYPE_CHECKING:
    from oah.ports.broker import Broker
    from oah.ports.store import Store
    from oah.settings import Settings

direct_option = click.option("--direct", is_flag=True, help="Speak to database and Redis themselves, without an API.")


@contextmanager
def direct_store(settings: Settings) -> Iterator[Store]:
    """The database. Raises Unavailable."""
    from oah.bootstrap.kit import open_database

    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = open_database(settings)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def direct_broker(settings: Settings) -> Iterator[Broker]:
    """The broker. Raises Unavailable; InvalidRequest for one that lives inside another process."""
    if settings.in_process:
        raise InvalidRequest(
            "memory:// lives inside the API's process and cannot be reached from here",
            hint="set OAH_REDIS_URL to what the API uses (oah up: embedded://), or leave --direct out",
        )
    from oah.bootstrap.kit import open_broker

    broker = open_broker(settings)
    try:
        yield broker
    finally:
        broker.close()
