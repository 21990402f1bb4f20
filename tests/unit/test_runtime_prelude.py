"""A prelude waits for what must be there first, and lets the components behind it live and die like a group."""

from datetime import timedelta

import pytest

from oah.adapters.system.clock import SystemClock
from oah.errors import Broken, InvalidRequest, Unavailable
from oah.runtime.component import Component, ThreadComponent
from oah.runtime.prelude import Prelude
from tests.support import eventually

TEN = timedelta(seconds=10)


class Part(ThreadComponent):
    def __init__(self, journal: list[str], *, fails: bool = False) -> None:
        super().__init__("part")
        self.journal, self.fails = journal, fails

    def run(self) -> None:
        self.serving()
        self.journal.append("+")
        if self.fails:
            raise Broken("bug")
        self.stopping.wait(60)
        self.journal.append("-")


def _prelude(prepare, journal: list[str], **options: bool) -> Prelude:
    def parts() -> list[Component]:
        return [Part(journal, **options)]

    return Prelude("prelude", prepare, parts, clock=SystemClock())


def test_it_repeats_until_the_store_is_there() -> None:
    journal: list[str] = []
    answers = iter([Unavailable("away"), Unavailable("away"), None])

    def prepare() -> None:
        journal.append("?")
        if error := next(answers):
            raise error

    prelude = _prelude(prepare, journal)
    prelude.start()
    assert prelude.started.wait(60)
    eventually(lambda: prelude.prepared)
    assert journal == ["?", "?", "?", "+"]
    prelude.stop(TEN)
    assert prelude.join(TEN)
    assert prelude.failure is None
    assert journal[-1] == "-"
    assert not prelude.prepared


def test_it_stops_while_the_store_is_away() -> None:
    def prepare() -> None:
        raise Unavailable("away")

    journal: list[str] = []
    prelude = _prelude(prepare, journal)
    prelude.start()
    assert prelude.started.wait(60)
    prelude.stop(timedelta(0))
    assert prelude.join(TEN)
    assert prelude.failure is None
    assert journal == []


def test_what_cannot_get_better_ends_it() -> None:
    def prepare() -> None:
        raise InvalidRequest("no such database")

    prelude = _prelude(prepare, [])
    prelude.start()
    assert prelude.join(TEN)
    assert isinstance(prelude.failure, InvalidRequest)


@pytest.mark.parametrize("grace", [TEN, timedelta(0)])
def test_a_component_that_fails_ends_it(grace: timedelta) -> None:
    prelude = _prelude(lambda: None, [], fails=True)
    prelude.start()
    assert prelude.join(TEN)
    assert isinstance(prelude.failure, Broken)
    prelude.stop(grace)
