"""The ear goes on, whatever the stores do while it promotes."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from oah.errors import EpochMismatch, OahError, Rebuilding, Unavailable
from oah.worker.ear import Ear
from tests.support import eventually
from tests.support.worker_doubles import Scripted, context


@pytest.mark.parametrize("error", [EpochMismatch("flushed"), Rebuilding("wait"), Unavailable("away")], ids=str)
def test_a_promotion_that_fails_does_not_end_the_ear(error: OahError) -> None:
    """Nobody leads and Redis was flushed: the agents of this worker must not pay for it."""
    hints: list[int] = []
    promoted = Scripted(promote=[error, None])
    waits = Scripted(wait=[lambda *args, timeout: threading.Event().wait(0.01) or None], look=[None])
    claimer = SimpleNamespace(lanes=lambda: (), tick_stale=True, next_due=None, hint=lambda: hints.append(1))
    ear = Ear(context(None, waits, promote=promoted.promote), claimer, look=lambda: None)  # type: ignore[arg-type]
    ear.start()
    eventually(lambda: promoted.called("promote") >= 2 or ear.failure is not None, within=5)
    assert ear.failure is None and len(hints) >= 2, "and the claim looks which epoch it is"
    ear.stop(ear.grace)
    assert ear.join(timedelta(seconds=5))
