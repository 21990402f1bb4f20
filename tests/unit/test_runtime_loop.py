"""Components and loops, on clocks and waits that the test moves."""

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.errors import Broken, InvalidRequest, Unavailable
from oah.runtime.component import Component, ThreadComponent
from oah.runtime.loop import Backoff, Loop
from tests.support.clock import StillClock

SECOND = timedelta(seconds=1)


class Waits:
    """Records every wait of a loop and ends it after so many."""

    def __init__(self, clock: StillClock, ends_after: int) -> None:
        self.clock = clock
        self.left = ends_after
        self.seconds: list[float] = []
        self.loop: Loop | None = None
        self.during: Callable[[int], None] = lambda number: None

    def __call__(self, event: threading.Event, seconds: float) -> bool:
        assert self.loop is not None
        self.seconds.append(round(seconds, 3))
        self.during(len(self.seconds))
        if not event.is_set():
            self.clock.seconds += seconds
        if len(self.seconds) >= self.left:
            self.loop.stop(timedelta(0))
        return event.is_set()


def _loop(work: Callable[[], timedelta | None], *, waits: int, **options: object) -> tuple[Loop, Waits]:
    clock = StillClock()
    wait = Waits(clock, waits)
    loop = Loop("test", work, interval=SECOND, clock=clock, wait=wait, **options)  # type: ignore[arg-type]
    wait.loop = loop
    return loop, wait


def test_a_loop_works_every_interval() -> None:
    moments: list[float] = []
    loop, wait = _loop(lambda: moments.append(wait.clock.seconds), waits=6)
    loop.run()
    assert [round(moment - 1000, 3) for moment in moments] == [0, 1, 2]
    assert wait.seconds == [0.001, 0.999] * 3


def test_the_answer_of_a_pass_is_the_time_until_the_next() -> None:
    answers = iter([timedelta(0), timedelta(seconds=5), None, timedelta(seconds=-3)])
    loop, wait = _loop(lambda: next(answers), waits=6)
    loop.run()
    assert wait.seconds == [0.0, 0.001, 4.999, 0.001, 0.999, 0.0]


def test_waking_brings_the_next_pass_but_no_busy_loop() -> None:
    passes = []
    loop, wait = _loop(lambda: passes.append(wait.clock.seconds), waits=20, floor=timedelta(milliseconds=10))
    wait.during = lambda number: loop.wake()
    loop.run()
    gaps = [round(after - before, 3) for before, after in itertools.pairwise(passes)]
    assert gaps
    assert set(gaps) == {0.01}


def test_a_wake_during_a_pass_is_not_lost() -> None:
    passes = []

    def work() -> None:
        passes.append(wait.clock.seconds)
        if len(passes) == 1:
            loop.wake()

    loop, wait = _loop(work, waits=4)
    loop.run()
    assert round(passes[1] - passes[0], 3) == 0.001


def test_absence_backs_off_up_to_the_cap_and_is_heard() -> None:
    heard: list[tuple[str, int]] = []
    telemetry = PrometheusTelemetry(process="test", version="0")

    def work() -> None:
        raise Unavailable("away")

    loop, wait = _loop(
        work, waits=6, telemetry=telemetry, on_failure=lambda error, count: heard.append((error.code, count))
    )
    loop.run()
    assert wait.seconds == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert heard == [("unavailable", number) for number in range(1, 7)]
    assert loop.failures == 6
    assert telemetry.value("oah_loop_failures_total", loop="test") == 6
    assert telemetry.value("oah_loop_passes_total", loop="test") is None


def test_waking_does_not_shorten_the_wait_after_a_failure() -> None:
    passes = []

    def work() -> None:
        passes.append(wait.clock.seconds)
        raise Unavailable("away")

    loop, wait = _loop(work, waits=3)
    wait.during = lambda number: loop.wake()
    loop.run()
    assert [round(one - 1000, 3) for one in passes] == [0, 0.1, 0.3]


def test_success_forgets_the_failures() -> None:
    answers = iter([Unavailable("away"), Unavailable("away"), None, Unavailable("away")])

    def work() -> None:
        if error := next(answers):
            raise error

    loop, wait = _loop(work, waits=5)
    loop.run()
    assert wait.seconds == [0.1, 0.2, 0.001, 0.999, 0.1]


def test_jitter_takes_at_most_half() -> None:
    backoff = Backoff(first=SECOND, cap=timedelta(seconds=10))
    assert backoff.after(failures=1, chance=0.0) == SECOND
    assert backoff.after(failures=1, chance=0.999) > SECOND / 2
    assert backoff.after(failures=10_000, chance=0.0) == timedelta(seconds=10)


@pytest.mark.parametrize("error", [Broken("bug"), InvalidRequest("bug"), ZeroDivisionError(), SystemExit(3)])
def test_a_bug_ends_the_loop_and_is_seen(error: BaseException) -> None:
    ended: list[Component] = []

    def work() -> None:
        raise error

    loop = Loop("test", work, interval=SECOND, clock=StillClock())
    loop.watch(ended.append)
    loop.start()
    assert loop.join(timedelta(seconds=10))
    assert loop.failure is error
    assert ended == [loop]
    assert loop.started.is_set()


def test_a_real_loop_stops_while_it_waits_for_an_hour() -> None:
    done = threading.Event()
    loop = Loop("test", done.set, interval=timedelta(hours=1), clock=StillClock())
    loop.start()
    assert done.wait(60)
    loop.stop(timedelta(0))
    assert loop.join(timedelta(seconds=10))
    assert loop.failure is None


def test_a_real_loop_that_fails_stops_while_it_backs_off() -> None:
    failed = threading.Event()

    def work() -> None:
        failed.set()
        raise Unavailable("away")

    hour = timedelta(hours=1)
    loop = Loop("test", work, interval=hour, clock=StillClock(), backoff=Backoff(first=hour, cap=hour))
    loop.start()
    assert failed.wait(60)
    loop.stop(timedelta(0))
    assert loop.join(timedelta(seconds=10))


def test_a_real_loop_is_woken() -> None:
    passes: list[threading.Event] = [threading.Event(), threading.Event()]
    left = iter(passes)
    loop = Loop("test", lambda: next(left).set(), interval=timedelta(hours=1), clock=StillClock())
    loop.start()
    assert passes[0].wait(60)
    loop.wake()
    assert passes[1].wait(60)
    loop.stop(timedelta(0))
    assert loop.join(timedelta(seconds=10))


class Once(ThreadComponent):
    def run(self) -> None:
        self.serving()
        self.stopping.wait(60)


def test_a_component_starts_once() -> None:
    component = Once("once")
    component.start()
    assert component.started.wait(60)
    with pytest.raises(Broken):
        component.start()
    component.stop(SECOND)
    assert component.join(timedelta(seconds=10))
    assert component.grace == SECOND


def test_a_component_that_was_stopped_before_never_runs() -> None:
    passes: list[int] = []
    loop = Loop("test", lambda: passes.append(1), interval=SECOND, clock=StillClock())
    loop.stop(timedelta(0))
    assert loop.join()
    loop.start()
    assert loop.join(timedelta(seconds=10))
    assert passes == []


def test_a_late_watcher_is_told_at_once() -> None:
    component, ended = Once("once"), []
    component.start()
    component.stop(timedelta(0))
    assert component.join(timedelta(seconds=10))
    component.watch(ended.append)
    assert ended == [component]
