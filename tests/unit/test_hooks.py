"""Hooks: how they are written, what a call of one may do, and when a worker makes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.hooks.caller import HookCalls
from oah.core.dialogue.hooks import hooks_from
from oah.core.dialogue.profile import parse_profile
from oah.core.model.hook import Hook, HookWhen
from oah.core.model.run import RunStatus
from oah.errors import InvalidRequest
from oah.ports.hooks import EXCERPT_BYTES, HookAnswer
from oah.ports.http import HttpAnswer, HttpCall, HttpFailed, HttpFault
from oah.testing import processes
from tests.support import eventually
from tests.support.terminals import nap, napping

SECOND = timedelta(seconds=1)


def test_hooks_of_a_profile() -> None:
    profile = parse_profile(
        """
        name = "x"
        kind = "command"
        argv = ["true"]
        [[hooks]]
        name = "notify"
        when = ["on_failed", "on_timed_out"]
        url = "https://example.org/hook"
        [[hooks]]
        name = "prepare"
        when = "before_run"
        command = ["git", "fetch"]
        timeout_seconds = 2.5
        """,
        source="x.toml",
    )
    notify, prepare = profile.hooks
    assert (notify.url, notify.when) == ("https://example.org/hook", {HookWhen.ON_FAILED, HookWhen.ON_TIMED_OUT})
    assert (prepare.command, prepare.timeout) == (("git", "fetch"), 2.5 * SECOND)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "a", "when": "before_run"}, "command and url"),
        ({"name": "a", "when": "before_run", "command": ["x"], "url": "http://x"}, "command and url"),
        ({"name": "a", "when": "sometimes", "command": ["x"]}, "when"),
        ({"name": "a", "when": [], "command": ["x"]}, "when"),
        ({"name": "a", "when": "before_run", "command": "rm -rf"}, "list of words"),
        ({"name": "a", "when": "before_run", "command": []}, "list of words"),
        ({"name": "a", "when": "before_run", "url": "ftp://x"}, "http"),
        ({"name": "a", "when": "before_run", "command": ["x"], "timeout_seconds": 0}, "timeout_seconds"),
        ({"name": "a", "when": "before_run", "command": ["x"], "timeout_seconds": True}, "timeout_seconds"),
        ({"name": "a", "when": "before_run", "command": ["x"], "shell": True}, "shell"),
    ],
)
def test_a_hook_that_makes_no_sense_says_where(table: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as caught:
        hooks_from([table], source="oah.toml")
    assert caught.value.code == "invalid_hook"
    assert "oah.toml: hook 1" in caught.value.message


def test_every_terminal_status_has_its_moment() -> None:
    ends = {status: HookWhen.at_end(status) for status in RunStatus}
    assert {status for status, when in ends.items() if when} == {status for status in RunStatus if status.terminal}


# --- calls -----------------------------------------------------------------------------------------------------------


class Sender:
    """Answers as it was told."""

    def __init__(self, answer: HttpAnswer | HttpFailed) -> None:
        self.answer = answer
        self.calls: list[HttpCall] = []

    def send(self, call: HttpCall) -> HttpAnswer | HttpFailed:
        self.calls.append(call)
        return self.answer

    def send_all(self, calls: Any) -> list[HttpAnswer | HttpFailed]:
        return [self.send(call) for call in calls]


def hook(*command: str, url: str | None = None, seconds: float = 10) -> Hook:
    when = frozenset({HookWhen.AFTER_RUN})
    return Hook(name="h", when=when, command=command, url=url, timeout=timedelta(seconds=seconds))


def call(one: Hook, facts: Mapping[str, str] | None = None, stop: Callable[[], bool] = lambda: False) -> HookAnswer:
    return HookCalls(Sender(HttpAnswer(204, "", SECOND))).call(one, facts or {}, stop=stop)


def test_a_command_gets_the_facts_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_DATABASE_URL", "postgresql://secret")
    answer = call(hook("env"), {"run_id": "run_1", "status": "failed"})
    assert answer.reason is None
    found = dict(line.split("=", 1) for line in answer.output.splitlines())
    assert (found["OAH_RUN_ID"], found["OAH_STATUS"]) == ("run_1", "failed")
    assert set(found) == {"PATH", "LANG", "OAH_RUN_ID", "OAH_STATUS"}


def test_what_goes_wrong_is_an_answer() -> None:
    failed = call(hook("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert (failed.reason, failed.output) == ("exit_status", "out\nerr\n")
    assert call(hook("/nonesuch")).reason == "not_started"
    assert call(hook("kill\0")).reason == "not_started"


def test_a_hook_that_hangs_is_killed_with_what_it_started() -> None:
    begun = time.monotonic()
    sleep = f"sleep {nap(7601)}"
    answer = call(hook("sh", "-c", f"trap '' TERM; {sleep} & echo hung; {sleep}", seconds=0.5))
    assert (answer.reason, answer.output) == ("timeout", "hung\n")
    assert time.monotonic() - begun < 20
    eventually(lambda: napping(7601) == [], what="what it started is gone")


def test_a_hook_is_left_when_nobody_needs_it() -> None:
    gone = threading.Event()
    gone.set()
    assert call(hook("sleep", nap(7602)), stop=gone.is_set).reason == "interrupted"
    eventually(lambda: napping(7602) == [], what="what it started is gone")


def test_what_a_hook_says_is_bounded_and_never_waits_for_us() -> None:
    answer = call(hook("sh", "-c", "yes word | head -c 5000000; echo end >&2"))
    assert (answer.reason, len(answer.output)) == (None, EXCERPT_BYTES)


def test_a_child_that_keeps_the_output_open_keeps_nobody() -> None:
    answer = call(hook("sh", "-c", f"sleep {nap(7603)} & echo done", seconds=20))
    assert (answer.reason, answer.output) == (None, "done\n")
    eventually(lambda: napping(7603) == [])


def test_a_program_that_closes_its_output_is_waited_for() -> None:
    answer = call(hook("sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4"))
    assert answer.reason == "exit_status"


def test_no_descriptor_is_left() -> None:
    import os

    call(hook("true"))
    before = processes.descriptors(os.getpid())
    for _ in range(5):
        call(hook("true"))
        call(hook("/nonesuch"))
        call(hook("sleep", "60", seconds=0.1))
    assert processes.descriptors(os.getpid()) <= before


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (HttpAnswer(204, "", SECOND), None),
        (HttpAnswer(302, "", SECOND), "http_status"),
        (HttpAnswer(500, "oops", SECOND), "http_status"),
        (HttpFailed(HttpFault.TIMEOUT, "slow", SECOND), "timeout"),
        (HttpFailed(HttpFault.REFUSED, "10.0.0.1 is a private address", SECOND), "refused"),
    ],
)
def test_an_http_hook(answer: HttpAnswer | HttpFailed, reason: str | None) -> None:
    sender = Sender(answer)
    found = HookCalls(sender).call(hook(url="https://example.org/h", seconds=3), {"run_id": "r", "status": "ümlaut"})
    assert found.reason == reason
    (sent,) = sender.calls
    assert (sent.method, sent.timeout, sent.headers["content-type"]) == ("POST", 3 * SECOND, "application/json")
    assert "ümlaut" in sent.body.decode()


def test_the_profiles_of_the_package_have_no_hooks_of_their_own() -> None:
    from oah.adapters.pty.profiles import load_profiles

    assert all(profile.hooks == () for profile in load_profiles(Path("/nonesuch")).values())
