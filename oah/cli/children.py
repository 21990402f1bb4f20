"""Child processes of a supervisor on this machine: start, read, signal, reap.

Each child leads a session of its own, so that the terminal's Ctrl-C reaches the supervisor alone; each ends when the
supervisor dies (`oah.cli.child`). Nothing here decides when to restart: that is `oah.cli.fleet`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

LAST_LINES = 40
"""Lines of a child that are kept for the moment of its death."""

LineSink = Callable[[str, str], None]
"""Receives (name of the child, one line of its output). Called from the reading threads."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start: a name for people, arguments of ``oah``, the whole environment."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]


class Started(Protocol):
    """What is used of a process that was started; `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


class Starter(Protocol):
    """How a child comes to be: `oah.cli.child` with these words, in a session of its own, its output in a pipe.

    ``lifeline`` is the descriptor that it must inherit and watch; the caller closes its own copy.
    """

    def __call__(self, words: Sequence[str], *, lifeline: int, env: Mapping[str, str], cwd: Path) -> Started: ...


def execute(words: Sequence[str], *, lifeline: int, env: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """A fresh interpreter. Raises OSError when it cannot be started."""
    return subprocess.Popen(
        [sys.executable, "-m", "oah.cli.child", str(lifeline), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        pass_fds=(lifeline,),
    )


class Child:
    """One child over its restarts. Not for two threads at once, but for the reading thread it starts itself."""

    def __init__(self, spec: ChildSpec, *, sink: LineSink, cwd: Path, starter: Starter = execute) -> None:
        self.spec = spec
        self.starts = 0
        self.started_at = 0.0
        """Monotonic moment of the last start."""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._sink = sink
        self._cwd = cwd
        self._starter = starter
        self._process: Started | None = None
        self._lifeline: int | None = None
        self._reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name given."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """The process id of the last start; None before the first."""
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs (or was never started); negative for a signal. Reaps."""
        return self._process.poll() if self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it (again). The caller has seen the last one end."""
        assert not self.running, f"{self.name} runs already"
        self._drop_lifeline()
        self.last_lines.clear()
        watched, self._lifeline = os.pipe()
        environment = {**self.spec.env, "PYTHONUNBUFFERED": "1"}
        try:
            self._process = self._starter(self.spec.command, lifeline=watched, env=environment, cwd=self._cwd)
        finally:
            os.close(watched)
        self.starts += 1
        self.started_at = time.monotonic()
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name=f"output-{self.name}", daemon=True
        )
        self._reader.start()

    def _read(self, process: Started) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for raw in lines:
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self.last_lines.append(line)
                self._sink(self.name, line)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself (never its group: agents have their own way to end)."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait(self, timeout: float) -> int | None:
        """Its exit code, or None when it still lives after ``timeout`` seconds."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        if self._reader is not None:
            # A grandchild may hold the pipe open for ever; what the child said is read by then.
            self._reader.join(timeout=0.5)
        return code

    def close(self) -> None:
        """Let go of what belongs to the last start; ends the child if it lives."""
        self._drop_lifeline()

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
