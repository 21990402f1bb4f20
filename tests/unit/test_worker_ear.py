"""The ear goes on, whatever the stores do while it promotes."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from oah.core.model.lane import Lane
from oah.errors import EpochMismatch, OahError, Rebuilding, Unavailable
from oah.ports.broker import WakeKind
from oah.worker.ear import Ear
from tests.support import eventually
from tests.support.worker_doubles import Scripted, context


@pytest.mark.parametrize("error", [EpochMismatch("flushed"), Rebuilding("wait"), Unavailable("away")], ids=str)
def test_a_promotion_that_fails_does_not_end_the_ear(error: OahError) -> None:
    """Nobody leads and Redis was flushed: the agents of this worker must not pay for it."""
    hints: list[int] = []
    promoted = Scripted(promote=[error, None])
    waits = Scripted(wait=[lambda *args, timeout: threading.Event().wait(0.01) or None], look=[None])
    claimer = SimpleNamespace(
        lanes=lambda: (), takes=True, tick_stale=True, next_due=None, hint=lambda: hints.append(1)
    )
    ear = Ear(context(None, waits, promote=promoted.promote), claimer, look=lambda: None)  # type: ignore[arg-type]
    ear.start()
    eventually(lambda: promoted.called("promote") >= 2 or ear.failure is not None, within=5)
    assert ear.failure is None and len(hints) >= 2, "and the claim looks which epoch it is"
    ear.stop(ear.grace)
    assert ear.join(timedelta(seconds=5))


LANE = Lane("default", "noop")


def heard(broker: Scripted, *, takes: bool) -> Ear:
    """An ear that has waited once for work of that lane."""
    claimer = SimpleNamespace(lanes=lambda: (LANE,), takes=takes, tick_stale=False, next_due=None, hint=lambda: None)
    ear = Ear(context(None, broker), claimer, look=lambda: None)  # type: ignore[arg-type]
    ear._listen()
    return ear


@pytest.mark.parametrize(("takes", "kind"), [(True, WakeKind.WORK), (False, WakeKind.WORK), (False, None)])
def test_a_token_that_came_too_late_is_handed_on(*, takes: bool, kind: WakeKind | None) -> None:
    """Cordoned, or under pressure, in the middle of a wait: others would not hear of that work for seconds."""
    broker = Scripted(wait=[kind], wake=[None])
    heard(broker, takes=takes)
    handed = [list(args[0]) for name, args, _ in broker.calls if name == "wake"]
    assert handed == ([[LANE]] if kind is not None and not takes else [])


def test_a_nudge_ends_a_wait_once() -> None:
    broker = Scripted(wait=[None], look=[None])
    ear = heard(broker, takes=True)
    ear.undeafen()
    assert broker.called("look") == 0, "it listens for work"
    ear.nudge()
    ear.nudge()
    assert broker.called("look") == 1
    ear._listen()
    ear.nudge()
    assert broker.called("look") == 2
