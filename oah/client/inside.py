"""Inside a run: what the run says of itself, and what is said to one that waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from oah.client.calls import Calls, given, part, seconds
from oah.client.transport import Json


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
