"""A child process as a component."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from oah.adapters.system.clock import SystemClock
from oah.runtime.child import ChildProcess
from oah.runtime.loop import Backoff
from tests.support.waiting import eventually

SOON = Backoff(first=timedelta(milliseconds=10), cap=timedelta(milliseconds=20))
GRACE = timedelta(seconds=20)


def child(program: str, *words: str) -> ChildProcess:
    def command(lifeline: int) -> Sequence[str]:
        return (sys.executable, "-c", program, str(lifeline), *words)

    return ChildProcess("child", command, env=dict, clock=SystemClock(), backoff=SOON)


def test_it_is_started_again_until_it_is_stopped(tmp_path: Path) -> None:
    made = child("import sys, pathlib; open(sys.argv[2], 'a').write('x')", str(tmp_path / "log"))
    made.start()
    eventually(lambda: made.starts >= 3, within=30)
    made.stop(GRACE)
    assert made.join(GRACE) and made.failure is None
    assert len((tmp_path / "log").read_text()) >= 2


def test_a_stop_is_a_sigterm_and_a_stop_without_grace_kills(tmp_path: Path) -> None:
    polite = (
        "import signal, sys, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[2]).write_text('bye'), sys.exit(0)))\n"
        "pathlib.Path(sys.argv[2]).write_text('up')\n"
        "signal.pause()"
    )
    made = child(polite, str(tmp_path / "polite"))
    made.start()
    eventually(lambda: (tmp_path / "polite").exists() and (tmp_path / "polite").read_text() == "up", within=30)
    made.stop(GRACE)
    assert made.join(GRACE) and (tmp_path / "polite").read_text() == "bye" and made.starts == 1

    stubborn = "import signal, sys, pathlib\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    made = child(
        stubborn + "pathlib.Path(sys.argv[2]).write_text('up')\nwhile True: signal.pause()", str(tmp_path / "s")
    )
    made.start()
    eventually(lambda: (tmp_path / "s").exists(), within=30)
    made.stop(GRACE)
    assert not made.join(timedelta(milliseconds=200))
    made.stop(timedelta(0))
    assert made.join(GRACE)


def test_what_cannot_be_started_is_tried_again() -> None:
    made = ChildProcess("child", lambda _: ("/no/such/program",), env=dict, clock=SystemClock(), backoff=SOON)
    made.start()
    assert made.started.wait(60)
    made.stop(GRACE)
    assert made.join(GRACE) and made.failure is None
