"""For the program that is the agent of a run: its own run, by what its environment says."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

from oah.client.client import Client
from oah.client.mailboxes import MailboxCalls
from oah.client.transport import Json
from oah.errors import InvalidRequest

LOOK_EVERY = 0.5
"""Seconds between two looks at whether a run still waits for its children."""


class OwnRun:
    """For the program that is the agent: its own run, by what its environment says. A context manager closes it.

    ::

        with OwnRun() as run:
            with run.step("bash", kind="tool", timeout=60):
                ...
            run.wait("may I push?")
            answer = input()
            review = run.submit("review it", idempotency_key="review")
            run.wait_for_children()
            print(run.client.result(review["id"])["output"])
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
        self.client = Client(url, key, timeout=timeout)
        """What the key of the run opens: this run, its children, mailboxes."""
        self.mail: MailboxCalls = self.client
        """Mailboxes of the session's workspace, as ``Client`` has them, with the key of the run."""

    def __enter__(self) -> OwnRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

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
        number = self.client.begin_step(self.run_id, name, kind=kind, timeout=timeout, data=data)["number"]
        told: dict[str, Any] = {}
        try:
            yield told
        except BaseException:
            self.client.end_step(self.run_id, number, failed=True, data=told)
            raise
        self.client.end_step(self.run_id, number, data=told)

    def progress(self, text: str | None = None, *, percent: float | None = None) -> None:
        """A sign of life."""
        self.client.report_progress(self.run_id, text, percent=percent)

    def wait(self, reason: str, *, timeout: timedelta | float | None = None) -> None:
        """The run waits from now on; whoever answers (``send_input``) types into this program's terminal."""
        self.client.begin_wait(self.run_id, reason, timeout=timeout)

    def submit(
        self, text: str, *, session_id: str | None = None, idempotency_key: str | None = None, **more: Any
    ) -> Json:
        """Start a child of this run: as ``Client.submit``, in a new session unless one is given that this run has
        opened (``run.client.create_session``). Under the same ``idempotency_key`` a later attempt finds the child that
        an earlier one has started. ``agent``, ``pool``, ``cwd``, ``env``: of the new session.

        Raises Forbidden (``child_agent``, ``child_pool``), Conflict (``tree_too_deep``, ``too_many_children``,
        ``attempt_over``, ``run_stopping``), LimitReached (``too_many_live_children``).
        """
        opening = {name: more.pop(name) for name in ("agent", "pool", "cwd", "env", "title") if name in more}
        if session_id is None:
            session_id = self.client.create_session(**opening, idempotency_key=idempotency_key)["id"]
        elif opening:
            raise InvalidRequest(f"the session is there already: {', '.join(opening)} cannot be given")
        return self.client.submit(session_id, text, idempotency_key=idempotency_key, **more)

    def children(self) -> list[Json]:
        """Runs that this one has started, in any of its attempts, newest first."""
        return self.client.runs()

    def wait_for_children(self, *, timeout: timedelta | float | None = None) -> None:
        """Returns when no run with this one as its parent lives any more and this run has a slot again; its slot is
        free meanwhile. ``timeout``: after it the run ends (``wait_timeout``)."""
        while self.client.begin_wait(self.run_id, timeout=timeout, children=True)["status"] == "waiting_tool":
            time.sleep(LOOK_EVERY)

    def resume(self) -> None:
        """What it waited for came otherwise."""
        self.client.resume_run(self.run_id)
