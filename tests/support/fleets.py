"""Fixtures for tests with real processes: a short directory (Unix sockets lie below it) and fleets in it."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.embedded.private import end_unused
from oah.testing.fleet import Fleet
from tests.support.warm import warm


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory with a short path, gone afterwards together with the private server that lived in it."""
    directory = Path(tempfile.mkdtemp(prefix="oah-t-", dir="/tmp"))
    yield directory
    for data_dir in (directory, *directory.glob("*")):
        end_unused(data_dir)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def start_fleet(short_tmp: Path) -> Iterator[Callable[..., Fleet]]:
    """``start_fleet(workers=2, …)``: a running fleet, stopped at the end of the test. One per test and directory.
    ``starter=execute`` where fresh interpreters matter."""
    with ExitStack() as stack:

        def start(name: str = "d", **options: Any) -> Fleet:
            return stack.enter_context(Fleet(short_tmp / name, **{"starter": warm(), **options}))

        yield start
