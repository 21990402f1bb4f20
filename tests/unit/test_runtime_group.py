"""Groups, signals and whole processes."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from oah.adapters.system.clock import SystemClock
from oah.errors import Broken, Unavailable
from oah.runtime.component import ThreadComponent
from oah.runtime.group import Group
from oah.runtime.signals import Signals
from tests.support import eventually

TEN = timedelta(seconds=10)


class Part(ThreadComponent):
    """Writes into a journal what happens to it."""

    def __init__(
        self, name: str, journal: list[str], *, fails: str = "", deaf: bool = False, leaves: bool = False
    ) -> None:
        super().__init__(name)
        self.journal, self.fails, self.deaf, self.leaves = journal, fails, deaf, leaves
        self.let_fail, self.let_end = threading.Event(), threading.Event()

    def run(self) -> None:
        self.journal.append(f"+{self.name}")
        if self.fails == "at start":
            raise Unavailable("no store")
        if self.fails != "never serves":
            self.serving()
        if self.leaves:
            return
        if self.fails == "later":
            self.let_fail.wait(60)
            raise Broken("bug")
        (self.let_end if self.deaf else self.stopping).wait(60)
        self.journal.append(f"-{self.name}")


def _group(*parts: Part, start_timeout: timedelta = TEN) -> Group:
    return Group(parts, clock=SystemClock(), start_timeout=start_timeout)


def test_started_in_order_stopped_in_reverse() -> None:
    journal: list[str] = []
    group = _group(*(Part(name, journal) for name in "abc"))
    group.start()
    assert not group.wait(timedelta(0))
    group.request_stop()
    assert group.wait(TEN)
    assert group.stop(TEN) == []
    assert journal == ["+a", "+b", "+c", "-c", "-b", "-a"]
    group.raise_failure()
    assert group.failure is None


def test_a_failed_start_stops_what_runs_and_starts_no_more() -> None:
    journal: list[str] = []
    group = _group(Part("a", journal), Part("b", journal, fails="at start"), Part("c", journal))
    with pytest.raises(Unavailable, match="no store"):
        group.start()
    assert journal == ["+a", "+b", "-a"]
    assert group.failed == "b"


def test_a_late_start_is_a_failure() -> None:
    journal: list[str] = []
    group = _group(
        Part("a", journal), Part("b", journal, fails="never serves"), start_timeout=timedelta(milliseconds=20)
    )
    with pytest.raises(Unavailable) as caught:
        group.start()
    assert caught.value.code == "start_timeout"
    assert journal[-2:] == ["-b", "-a"]


def test_the_first_failure_ends_the_wait() -> None:
    journal: list[str] = []
    bad = Part("b", journal, fails="later")
    group = _group(Part("a", journal), bad, Part("c", journal))
    group.start()
    bad.let_fail.set()
    assert group.wait(TEN)
    assert group.stop(TEN) == []
    assert (group.failed, journal) == ("b", ["+a", "+b", "+c", "-c", "-a"])
    with pytest.raises(Broken, match="bug"):
        group.raise_failure()


def test_who_leaves_unasked_is_a_failure_too() -> None:
    journal: list[str] = []
    group = _group(Part("a", journal), Part("b", journal, leaves=True))
    with pytest.raises(Broken, match="b ended by itself"):
        group.start()
        group.wait(TEN)
        group.raise_failure()
    group.stop(TEN)
    assert journal[-1] == "-a"


def test_who_does_not_stop_is_named() -> None:
    journal: list[str] = []
    deaf = Part("deaf", journal, deaf=True)
    group = _group(Part("a", journal), deaf)
    group.start()
    assert group.stop(timedelta(0), settle=timedelta(milliseconds=20)) == ["deaf"]
    assert "-a" in journal
    deaf.let_end.set()
    assert deaf.join(TEN)


def test_hurry_takes_the_grace_away() -> None:
    class Slow(Part):
        def run(self) -> None:
            self.serving()
            self.stopping.wait(60)
            assert self.grace > timedelta(seconds=5)
            self.journal.append("draining")
            eventually(lambda: self.grace == timedelta(0))
            self.journal.append("hurried")

    journal: list[str] = []
    group = _group(Slow("slow", journal))
    group.start()
    stopper = threading.Thread(target=group.stop, args=(timedelta(hours=1),))
    stopper.start()
    eventually(lambda: journal == ["draining"])
    group.hurry()
    stopper.join(60)
    assert journal == ["draining", "hurried"]


def test_first_signal_drains_second_is_now_third_is_nothing() -> None:
    got: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with Signals(drain=lambda: got.append("drain"), now=lambda: got.append("now")):
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: got == ["drain"])
        os.kill(os.getpid(), signal.SIGINT)
        eventually(lambda: got == ["drain", "now"])
        os.kill(os.getpid(), signal.SIGTERM)
    assert got == ["drain", "now"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_the_system_gave_to_another_thread_is_answered_while_the_main_thread_waits() -> None:
    """The main thread runs handlers only between two instructions, and in a wait there are none."""
    about_to_wait, drained = threading.Event(), threading.Event()
    main = threading.main_thread().ident or 0
    places: list[tuple[int, int]] = []

    def stands_still() -> bool:
        frame = sys._current_frames()[main]
        places.append((id(frame), frame.f_lasti))
        return frame.f_code.co_name == "wait" and len(places) > 5 and len(set(places[-5:])) == 1

    def take_it() -> None:
        about_to_wait.wait()
        eventually(stands_still, what="the main thread waits")
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with Signals(drain=drained.set, now=lambda: None):
        taker = threading.Thread(target=take_it)
        taker.start()
        about_to_wait.set()
        assert drained.wait(60)
        taker.join()


def test_signals_are_for_the_main_thread() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            with Signals(drain=lambda: None, now=lambda: None):
                pass
        except Broken as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1


PROGRAM = """
import sys
from datetime import timedelta
from oah.adapters.system.clock import SystemClock
from oah.errors import Broken
from oah.runtime.component import ThreadComponent
from oah.runtime.group import Group
from oah.runtime.logging import configure
from oah.runtime.process import serve

class Part(ThreadComponent):
    def run(self):
        self.serving()
        if sys.argv[1] == "fails":
            raise Broken("bug")
        self.stopping.wait()
        print("draining", self.grace.total_seconds() > 60, flush=True)
        while sys.argv[1] == "slow" and self.grace:
            self.stopping.wait(0.01)

configure(process="test")
group = Group([Part("part")], clock=SystemClock())
sys.exit(serve(group, grace=timedelta(hours=1), on_serving=lambda: print("serving", flush=True)))
"""


def _program(kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_drains_and_exits_0(number: signal.Signals) -> None:
    with _program("quick") as process:
        assert process.stdout
        assert process.stdout.readline() == "serving\n"
        process.send_signal(number)
        out, errors = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "draining True\n"), errors
    assert f"signal={number.name} answer=drain" in errors


def test_a_second_signal_ends_a_slow_process() -> None:
    with _program("slow") as process:
        assert process.stdout
        assert process.stdout.readline() == "serving\n"
        process.terminate()
        assert process.stdout.readline() == "draining True\n"
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors


def test_a_process_whose_part_fails_exits_1() -> None:
    with _program("fails") as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "component=part" in errors
    assert "oah.errors.Broken: bug" in errors
