"""Inside a run: what the run says of itself, what is said to one that waits, and the same for the agent itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

from oah.client.calls import Calls, given, part, seconds
from oah.client.mailboxes import MailboxCalls
from oah.client.transport import Json, Transport
from oah.errors import InvalidRequest

LOOK_EVERY = 0.5
"""Seconds between two looks at whether a run still waits for its children."""


class InsideCalls(Calls):
    """The client's part that speaks of and to a run that is under way."""

    def begin_step(
        self,
        run_id: str,
        name: str,
        *,
        kind: str = "step",
        timeout: timedelta | float | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Json:
        """A step begins (``kind``: tool, model, step); its ``number`` is in the answer. ``timeout``: past it the run
        ends as ``step_timeout`` or ``model_timeout``; None: as the run says. Raises Conflict ``run_not_active``."""
        body = given(name=name, kind=kind, timeout_seconds=seconds(timeout), data=data)
        return self._one("POST", _steps(run_id), body={"state": "started", **body}, once=True)

    def end_step(
        self, run_id: str, number: int, *, failed: bool = False, data: Mapping[str, Any] | None = None
    ) -> Json:
        """A step has ended; the first end stays."""
        body = given(number=number, failed=failed, data=data)
        return self._one("POST", _steps(run_id), body={"state": "finished", **body})

    def report_progress(self, run_id: str, text: str | None = None, *, percent: float | None = None) -> Json:
        """A sign of life, for the idle time-out, and an event unless the last was a moment ago."""
        return self._one("POST", f"/v1/runs/{part(run_id)}/progress", body=given(text=text, percent=percent))

    def begin_wait(
        self,
        run_id: str,
        reason: str | None = None,
        *,
        timeout: timedelta | float | None = None,
        children: bool = False,
    ) -> Json:
        """The run waits for a person or for something outside (``waiting_tool``); ``children``: for its child runs,
        without a slot, and not at all where none of them lives."""
        body = given(reason=reason, timeout_seconds=seconds(timeout), children=children or None)
        return self._one("POST", f"/v1/runs/{part(run_id)}/wait", body=body)

    def resume_run(self, run_id: str) -> Json:
        """What the run waited for is over."""
        return self._one("POST", f"/v1/runs/{part(run_id)}/resume")

    def send_input(self, run_id: str, text: str, *, question: int | None = None) -> Json:
        """Answer a run that waits: ``{status, delivery, question}``. What its program asks (``run(…)["question"]``) is
        answered by the key or the words of a choice, or by any text where it takes that: ``accepted``, the run goes on
        when a slot is free. ``question``: its number, so that no other one is answered. What the run itself waits for
        is ``delivered`` or ``unverified``.

        Raises InvalidRequest ``answer_unfit`` (the hint lists the choices), Conflict ``run_not_waiting``,
        ``question_over``, ``already_answered``, Unavailable ``worker_silent`` (nothing was said).
        """
        body = {"input": text} if question is None else {"input": text, "question": question}
        return self._one("POST", f"/v1/runs/{part(run_id)}/input", body=body, once=True)

    def steps(self, run_id: str) -> list[Json]:
        """What the run did in steps, and what was done to it, in order."""
        return self._list(_steps(run_id), {})


def _steps(run_id: str) -> str:
    return f"/v1/runs/{part(run_id)}/steps"


class OwnRun:
    """For the program that is the agent: its own run, by what its environment says. A context manager closes it.

    ::

        with OwnRun() as run:
            with run.step("bash", kind="tool", timeout=60):
                ...
            run.wait("may I push?")
            answer = input()
            run.mail.send_message("team.reviews", "it is pushed")
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, timeout: float = 30.0) -> None:
        """``environment``: in place of the process's. Raises InvalidRequest outside a run."""
        found = os.environ if environment is None else environment
        try:
            url, key, self.run_id = found["OAH_API_URL"], found["OAH_RUN_KEY"], found["OAH_RUN_ID"]
        except KeyError as error:
            raise InvalidRequest(
                f"this is not inside a run: {error.args[0]} is not set", code="not_inside_a_run"
            ) from None
        self._calls = InsideCalls()
        self._calls._api = Transport(url, key, timeout=timeout, retries=5)
        self.mail = MailboxCalls()
        """Mailboxes of the session's workspace, as ``Client`` has them, with the key of the run."""
        self.mail._api = self._calls._api

    def __enter__(self) -> OwnRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._calls._api.close()

    @contextmanager
    def step(
        self,
        name: str,
        *,
        kind: str = "step",
        timeout: timedelta | float | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A step around a block; what is put into the dict it gives is told at its end. An exception fails it."""
        number = self._calls.begin_step(self.run_id, name, kind=kind, timeout=timeout, data=data)["number"]
        told: dict[str, Any] = {}
        try:
            yield told
        except BaseException:
            self._calls.end_step(self.run_id, number, failed=True, data=told)
            raise
        self._calls.end_step(self.run_id, number, data=told)

    def progress(self, text: str | None = None, *, percent: float | None = None) -> None:
        """A sign of life."""
        self._calls.report_progress(self.run_id, text, percent=percent)

    def wait(self, reason: str, *, timeout: timedelta | float | None = None) -> None:
        """The run waits from now on; whoever answers (``send_input``) types into this program's terminal."""
        self._calls.begin_wait(self.run_id, reason, timeout=timeout)

    def wait_for_children(self, *, timeout: timedelta | float | None = None) -> None:
        """Returns when no run with this one as its parent lives any more and this run has a slot again; its slot is
        free meanwhile. ``timeout``: after it the run ends (``wait_timeout``)."""
        while self._calls.begin_wait(self.run_id, timeout=timeout, children=True)["status"] == "waiting_tool":
            time.sleep(LOOK_EVERY)

    def resume(self) -> None:
        """What it waited for came otherwise."""
        self._calls.resume_run(self.run_id)
