"""The application: routes, their guards, and the threads that live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from oah.api import problems
from oah.api.auth import Authenticate
from oah.api.bodies import BodyLimit
from oah.api.context import ApiContext
from oah.api.measure import Measure
from oah.api.routes import (
    dead_letters,
    events,
    fleet,
    governance,
    jobs,
    mail_readers,
    mailboxes,
    messages,
    pools,
    ready_queue,
    requeue,
    rollouts,
    runs,
    schedules,
    session_messages,
    sessions,
    steps,
    submit,
    system,
    tenancy,
    terminal,
    webhooks,
)
from oah.api.state import ApiState

ROUTERS = (
    system.router,
    sessions.router,
    submit.router,
    requeue.router,
    runs.router,
    steps.router,
    events.router,
    terminal.router,
    fleet.router,
    pools.router,
    ready_queue.router,
    governance.router,
    rollouts.router,
    tenancy.router,
    jobs.router,
    schedules.router,
    webhooks.router,
    dead_letters.router,
    mailboxes.router,
    mail_readers.router,
    messages.router,
    session_messages.router,
)


def create_app(context: ApiContext) -> FastAPI:
    """The HTTP interface over what bootstrap put together. Its state is `app.state.oah` (an ApiState)."""
    state = ApiState(context)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.streams.attach(asyncio.get_running_loop())
        state.rooms.attach(asyncio.get_running_loop())
        state.bells.attach(asyncio.get_running_loop())
        state.start()
        try:
            yield
        finally:
            await asyncio.to_thread(state.stop)

    app = FastAPI(
        title="OAH",
        summary="A session-queue worker pool for agent runs",
        version=context.version,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.oah = state
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router)
    # The last added is the outermost: measure, authenticate, then bound the body.
    app.add_middleware(BodyLimit, limit=context.body_bytes)
    app.add_middleware(Authenticate, mode=context.auth, keyring=state.keyring)
    app.add_middleware(Measure, telemetry=context.telemetry, clock=context.clock)
    return app
