"""The nursery of this pytest process: fleets of tests are forked from it, unless they ask for fresh processes."""

from __future__ import annotations

import os
import sys
from functools import cache

from oah.cli.children import Starter, execute
from oah.testing.nursery import Nursery

_ENVIRONMENT: dict[str, str] = {}
"""As pytest found and configured it, before any test changed it."""


def pytest_sessionstart() -> None:
    _ENVIRONMENT.update(os.environ)


@cache
def _nursery() -> Nursery:
    return Nursery(_ENVIRONMENT)


def warm() -> Starter:
    """How a fleet's processes come to be when the test does not look at how: forks where there is a nursery."""
    return _nursery() if sys.platform == "linux" else execute


def pytest_unconfigure() -> None:
    if _nursery.cache_info().currsize:
        _nursery().close()
