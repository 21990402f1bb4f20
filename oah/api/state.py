"""What the HTTP process keeps between requests, and how a route gets at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, cast

from fastapi import Depends, Request

from oah.api.auth import Keyring
from oah.api.batch import SubmitBatches
from oah.api.bells import Bells
from oah.api.context import ApiContext
from oah.api.counting import Counting
from oah.api.hearing import Hearing
from oah.api.looks import Looks
from oah.api.rooms import Rooms
from oah.api.stream import Streams
from oah.api.subscriptions import Subscriptions
from oah.api.waiting import Waiters
from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.errors import RequestError, Unavailable
from oah.ports.store import Accepted, NewRun
from oah.runtime.component import ThreadComponent
from oah.runtime.loop import Loop
from oah.services.submit import commit

REMEMBERED_SESSIONS = 50_000
MAIL_STEP = timedelta(seconds=1)
"""How long one wait for news of mailboxes may be: this long the end of the process may be held up."""
STEERS_AT_ONCE = 16
"""Of the forty threads that answer requests (anyio's default)."""


class ApiState:
    """Batches, keys, streams and the threads behind them."""

    def __init__(self, context: ApiContext) -> None:
        self.context = context
        self.keyring = Keyring(context)
        self.waiters = Waiters()
        self.streams = Streams(context, self.waiters)
        self.rooms = Rooms(context)
        self.hearing = Hearing(context.store, context.broker, context.clock, context.epoch)
        self.bells = Bells(context.watch, context.telemetry)
        self.subscriptions = Subscriptions(context.post, context.clock, self.bells)
        self.components: tuple[ThreadComponent, ...] = (self.hearing, self.streams.tailer, self._mail_loop())
        """Threads behind the requests; one that has failed makes the process unready."""
        self.batches = SubmitBatches(self._commit, committed=self._committed, telemetry=context.telemetry)
        self.stopping = threading.Event()
        self.look = Looks(context.broker)
        self.counts = Counting(context)
        self._steers = threading.BoundedSemaphore(STEERS_AT_ONCE)
        self._workspaces: dict[SessionId, WorkspaceId] = {}

    def _commit(self, runs: Sequence[NewRun]) -> list[Accepted | RequestError]:
        return commit(self.context.store, runs, self.context.limits)

    def _committed(self, accepted: Sequence[Accepted]) -> None:
        for one in accepted:
            if not one.replayed and one.steer is None:
                self.context.telemetry.count("oah_runs_submitted_total", class_=str(one.run.run_class))
        self.hearing.put(accepted)

    @contextmanager
    def steering(self) -> Iterator[None]:
        """While a request thread waits for a worker's answer: few enough at once to leave threads for all others.

        Raises Unavailable.
        """
        if not self._steers.acquire(blocking=False):
            raise Unavailable("too many texts wait for their workers", retry_after=timedelta(seconds=2))
        try:
            yield
        finally:
            self._steers.release()

    def _mail_loop(self) -> Loop:
        context = self.context

        def step() -> timedelta:
            context.watch.step(MAIL_STEP)
            return timedelta(0)

        return Loop("api-mail", step, interval=MAIL_STEP, clock=context.clock, telemetry=context.telemetry)

    def workspace_of(self, session_id: SessionId) -> WorkspaceId:
        """A session's workspace, which never changes. Raises NotFound, Unavailable."""
        found = self._workspaces.get(session_id)
        if found is None:
            found = self.context.store.session(session_id, None).workspace_id
            if len(self._workspaces) >= REMEMBERED_SESSIONS:
                self._workspaces.clear()
            self._workspaces[session_id] = found
        return found

    def epoch(self) -> EpochId | None:
        """The epoch of SQL, for the rare calls that cannot wait for a repair; None before the first, or SQL is away."""
        try:
            return self.context.store.current_epoch()
        except Unavailable:
            return None

    def start(self) -> None:
        """Start the threads."""
        for component in self.components:
            component.start()

    def drain(self) -> None:
        """Say that this process goes away, and end its streams. From any thread."""
        self.stopping.set()
        self.streams.close()
        self.rooms.close()
        self.bells.close()
        self.waiters.release()

    def stop(self) -> None:
        """End the threads; what was accepted last is still heard of."""
        self.drain()
        for component in self.components:
            component.stop(timedelta(seconds=2))
        for component in self.components:
            component.join(timedelta(seconds=3))


async def state(request: Request) -> ApiState:
    """The process's state, for a route."""
    return cast(ApiState, request.app.state.oah)


Desk = Annotated[ApiState, Depends(state)]
