"""Why runs wait, while the broker says nothing: one thread waits for it, all others answer."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from oah.api.looks import Looks
from oah.core.model.epoch import EpochState
from oah.errors import Broken, Unavailable
from oah.services.explain import Dispatch
from tests.support.waiting import eventually
from tests.support.worker_doubles import Scripted

OPEN = SimpleNamespace(state=EpochState.OPEN)
AWAY = Dispatch(away=True)


def broker(*views: Any) -> Any:
    return Scripted(view=list(views), workers=[[]], leader=["somebody"])


def test_while_the_broker_is_away_one_thread_waits_for_it() -> None:
    entered, back = threading.Semaphore(0), threading.Event()

    def silent() -> Any:
        entered.release()
        assert back.wait(20)
        return OPEN

    redis = broker(Unavailable("no answer"), silent)
    look = Looks(redis)
    assert look() == AWAY, "the first finds out"
    with ThreadPoolExecutor(1) as threads:
        tries = threads.submit(look)
        assert entered.acquire(timeout=20)
        assert [look() for _ in range(50)] == [AWAY] * 50, "nobody else waits"
        back.set()
        assert not tries.result(20).away
    assert redis.called("view") == 2
    assert not look().away and redis.called("view") == 3


def test_a_broker_that_answers_is_asked_by_all_at_once() -> None:
    gate = threading.Barrier(4)

    def together() -> Any:
        gate.wait(20)
        return OPEN

    look = Looks(broker(together))
    with ThreadPoolExecutor(4) as threads:
        assert not any(found.away for found in threads.map(lambda _: look(), range(4)))


def test_an_error_of_another_kind_is_raised_and_the_next_one_tries_again() -> None:
    look = Looks(broker(Broken("garbage"), OPEN))
    with pytest.raises(Broken):
        look()
    eventually(lambda: not look().away, within=5, what="another try")
