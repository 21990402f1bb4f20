"""Waiting for a condition. The only place in the tests that sleeps."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 3
"""How many times longer than a test says a machine may take that is busy with other tests. It costs nothing when all
is well, and how fast things are is no test's question (`benchmarks/`)."""


def eventually(probe: Callable[[], T], *, within: float = 10.0, every: float = 0.01, what: str = "") -> T:
    """Call `probe` until it answers something true and return that; AssertionError after `PATIENCE` times `within` s.

    An AssertionError raised by the probe counts as "not yet" and is shown when time is up. Choose `within` at least
    three times the expected time: it costs nothing when all is well.
    """
    patient = within * PATIENCE
    deadline = time.monotonic() + patient
    while True:
        failure: AssertionError | None = None
        try:
            answer = probe()
        except AssertionError as error:
            failure, answer = error, None  # type: ignore[assignment]
        if failure is None and answer:
            return answer
        if time.monotonic() >= deadline:
            name = what or getattr(probe, "__name__", repr(probe))
            raise AssertionError(f"not within {patient:g} s: {name} (last answer: {answer!r})") from failure
        time.sleep(every)
