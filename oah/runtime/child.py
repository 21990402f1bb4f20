"""A child process as a component: started, started again when it ends, told to stop, never outliving its parent.

The child gets the reading end of a pipe that only this process holds the other end of: at its end the parent is gone,
however it died, and the child ends itself. It is executed, not forked, so that threads of the parent do not matter, and
it leads a session of its own: the terminal's Ctrl-C reaches the parent, which stops it in its order.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from oah.ports.clock import Clock
from oah.runtime.component import ThreadComponent
from oah.runtime.loop import Backoff

log = logging.getLogger(__name__)

SETTLED = timedelta(seconds=30)
"""A child that lived this long is not in a row of deaths."""
PAUSES = Backoff(first=timedelta(milliseconds=500), cap=timedelta(seconds=15))


class ChildProcess(ThreadComponent):
    """``command``: from the number of the pipe's descriptor to the words of the child. Its output is this process's."""

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        *,
        env: Callable[[], Mapping[str, str]],
        clock: Clock,
        backoff: Backoff = PAUSES,
    ) -> None:
        super().__init__(name)
        self._command = command
        self._env = env
        self._clock = clock
        self._backoff = backoff
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killer: threading.Timer | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Of the child that runs, or ran last."""
        process = self._process
        return None if process is None else process.pid

    def run(self) -> None:
        """One child after the other until `stop`."""
        self.serving()
        in_a_row = 0
        while not self.stopping.is_set():
            began = self._clock.monotonic()
            code = self._one()
            if self.stopping.is_set():
                break
            lived = self._clock.monotonic() - began
            in_a_row = 1 if lived >= SETTLED.total_seconds() else in_a_row + 1
            pause = self._backoff.after(failures=in_a_row, chance=0)
            log.warning(
                "child ended, starting it again", extra={"child": self.name, "code": code, "in": pause.total_seconds()}
            )
            self.stopping.wait(pause.total_seconds())
        if self._killer is not None:
            self._killer.cancel()

    def interrupt(self) -> None:
        """SIGTERM, and SIGKILL when the grace is over."""
        with self._guard:
            process = self._process
            if process is None or process.poll() is not None:
                return
            if self._killer is not None:
                self._killer.cancel()
            if self.grace <= timedelta(0):
                process.kill()
                return
            process.terminate()
            self._killer = threading.Timer(self.grace.total_seconds(), self._kill, args=(process,))
            self._killer.daemon = True
            self._killer.start()

    def _one(self) -> int | None:
        """Start one and wait for its end."""
        watched, lifeline = os.pipe()
        try:
            with self._guard:
                if self.stopping.is_set():
                    return None
                process = self._process = subprocess.Popen(
                    list(self._command(watched)),
                    stdin=subprocess.DEVNULL,
                    env=dict(self._env()),
                    start_new_session=True,
                    pass_fds=(watched,),
                )
                self.starts += 1
            log.info("child started", extra={"child": self.name, "pid": process.pid})
            return process.wait()
        except OSError as error:
            log.error("child cannot be started: %s", error, extra={"child": self.name})
            return None
        finally:
            os.close(watched)
            os.close(lifeline)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            process.kill()
