"""Calls hooks: a command as a child process in a session of its own, a URL by the sender that judges addresses.

A command has no shell, a clean environment and no input but its facts. What it says is read as it comes and thrown
away beyond an excerpt, so that it never waits for us; when its time is over its whole session is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from oah.core.model.hook import Hook
from oah.ports.hooks import EXCERPT_BYTES, HookAnswer
from oah.ports.http import HttpAnswer, HttpCall, HttpSender

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOOK_SECONDS = 0.1


class HookCalls:
    """See ports.hooks.HookCaller."""

    def __init__(self, sender: HttpSender) -> None:
        self._sender = sender

    def call(self, hook: Hook, facts: Mapping[str, str], *, stop: Callable[[], bool] = lambda: False) -> HookAnswer:
        """An HTTP call is not interrupted by `stop`: it is bounded by its time-out alone."""
        if hook.url is not None:
            return self._send(hook, hook.url, facts)
        return _run(hook, facts, stop)

    def _send(self, hook: Hook, url: str, facts: Mapping[str, str]) -> HookAnswer:
        body = json.dumps(dict(facts), ensure_ascii=False).encode("utf-8", "replace")
        headers = {"content-type": "application/json"}
        call = HttpCall(url, body, headers, timeout=hook.timeout, excerpt=EXCERPT_BYTES)
        answer = self._sender.send(call)
        if not isinstance(answer, HttpAnswer):
            return HookAnswer(answer.fault.value, answer.message, answer.duration)
        fine = 200 <= answer.status < 300
        reason, message = (None, "") if fine else ("http_status", f"answered with {answer.status}")
        return HookAnswer(reason, message, answer.duration, answer.text)


def _run(hook: Hook, facts: Mapping[str, str], stop: Callable[[], bool]) -> HookAnswer:
    begun = time.monotonic()
    try:
        child = subprocess.Popen(
            hook.command,
            env={"PATH": _PATH, "LANG": "C.UTF-8", **_environment(facts)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return HookAnswer("not_started", str(error), timedelta(seconds=time.monotonic() - begun))
    try:
        said, reason = _attend(child, begun + hook.timeout.total_seconds(), stop)
    finally:
        _end(child)
    took = timedelta(seconds=time.monotonic() - begun)
    output = said.decode("utf-8", "replace")
    if reason is not None:
        words = "did not end in time" if reason == "timeout" else "was not waited for any longer"
        return HookAnswer(reason, words, took, output)
    if child.returncode:
        return HookAnswer("exit_status", f"exit status {child.returncode}", took, output)
    return HookAnswer(None, "", took, output)


def _environment(facts: Mapping[str, str]) -> dict[str, str]:
    return {f"OAH_{name.upper()}": value.replace("\0", "") for name, value in facts.items()}


def _attend(child: subprocess.Popen[bytes], end: float, stop: Callable[[], bool]) -> tuple[bytes, str | None]:
    """Read until it has ended; (the beginning of what it said, why it was given up)."""
    assert child.stdout is not None  # asked for
    fd = child.stdout.fileno()
    os.set_blocking(fd, False)
    said = bytearray()
    open_ = True
    while True:
        ended = child.poll() is not None
        open_ = open_ and _read(fd, said, 0.0 if ended else _LOOK_SECONDS)
        if ended:
            return bytes(said), None
        if time.monotonic() >= end:
            return bytes(said), "timeout"
        if stop():
            return bytes(said), "interrupted"
        if not open_:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK_SECONDS)


def _read(fd: int, said: bytearray, seconds: float) -> bool:
    """What is there; False at the end."""
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLHUP)
    if not poller.poll(seconds * 1000):
        return True
    try:
        data = os.read(fd, 65536)
    except BlockingIOError:
        return True
    room = EXCERPT_BYTES - len(said)
    said.extend(data[: max(room, 0)])
    return bool(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Nothing of it is left that did not run away into another session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
