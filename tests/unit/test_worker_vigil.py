"""When a worker gives its PTY host up, and when it must not."""

from __future__ import annotations

from typing import Any

from oah.worker.witnesses import Vigil
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, context

PERIOD = 5.0
"""A sixth of the lease of the doubles."""


def vigil(clock: StillClock, **answers: Any) -> tuple[Vigil, Scripted]:
    host = Scripted(**{"live": [("a",)], "extend": [None], "abandon": [None], "acknowledged_at": [0.0], **answers})
    return Vigil(context(None, None, clock=clock, agent_host=host)), host


def test_a_host_that_acknowledges_is_kept() -> None:
    clock = StillClock()
    watch, host = vigil(clock, acknowledged_at=[lambda: clock.seconds])
    for _ in range(5):
        assert watch.passed("mark")
        watch.beat()
        clock.seconds += PERIOD
    assert host.called("abandon") == 0


def test_a_pass_right_after_another_gives_the_host_its_whole_period() -> None:
    """Somebody wakes the mark at once: the host has had no time to answer, and is not lost."""
    clock = StillClock()
    watch, host = vigil(clock)
    for _ in range(20):
        assert watch.passed("mark")
        clock.seconds += PERIOD / 100
    assert host.called("abandon") == 0


def test_many_questions_do_not_put_off_the_end_of_a_silent_host() -> None:
    clock = StillClock()
    watch, host = vigil(clock)
    for _ in range(12):
        watch.passed("mark")
        watch.beat()
        clock.seconds += PERIOD / 10
    assert host.called("abandon") >= 1


def test_without_agents_there_is_nothing_to_lose() -> None:
    clock = StillClock()
    watch, host = vigil(clock, live=[()])
    for _ in range(5):
        assert watch.passed("renew")
        watch.beat()
        clock.seconds += PERIOD
    assert host.called("abandon") == 0


def test_a_main_loop_that_hangs_silences_both_witnesses() -> None:
    clock = StillClock()
    watch, host = vigil(clock, acknowledged_at=[lambda: clock.seconds])
    clock.seconds += 3 * PERIOD + 0.1
    assert not watch.passed("renew")
    assert not watch.passed("mark")
    assert host.called("abandon") == 2
