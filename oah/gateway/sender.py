"""Messages of all clients on their way into the store: in batches, in the order in which they came.

While one batch is being stored the next one gathers, so a lone message waits for nothing and many share a commit.
While the store is away a batch is tried again for a moment; then its senders are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from oah.errors import InDoubt, OahError, RequestError, Unavailable
from oah.ports.mailboxes import Outgoing, Sent
from oah.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

BATCH = 256
BATCH_BYTES = 8_388_608
PATIENCE = 3.0
"""Seconds of trying again: clients wait for five."""
PAUSE = 0.1

Answer = Sent | OahError
Store = Callable[[Sequence[Outgoing]], Awaitable[Sequence[Sent | RequestError]]]


class Sender:
    """For the loop's thread. ``store`` stores a batch elsewhere; ``then`` of a letter hears its answer, here."""

    def __init__(self, store: Store, now: Callable[[], float], telemetry: Telemetry) -> None:
        self._store = store
        self._now = now
        self._telemetry = telemetry
        self._waiting: deque[tuple[Outgoing, Callable[[Answer], None], float]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, letter: Outgoing, then: Callable[[Answer], None]) -> None:
        """Store it soon."""
        self._waiting.append((letter, then, self._now()))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def flush(self) -> None:
        """Until everything has its answer."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                answers = await self._stored([letter for letter, _, _ in batch])
                for (_, then, since), answer in zip(batch, answers, strict=True):
                    self._telemetry.observe("oah_gateway_send_seconds", self._now() - since)
                    then(answer)
        finally:
            self._task = None

    def _next(self) -> list[tuple[Outgoing, Callable[[Answer], None], float]]:
        batch = [self._waiting.popleft()]
        size = len(batch[0][0].payload)
        while self._waiting and len(batch) < BATCH and size + len(self._waiting[0][0].payload) <= BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size += len(batch[-1][0].payload)
        return batch

    async def _stored(self, letters: Sequence[Outgoing]) -> Sequence[Answer]:
        until = self._now() + PATIENCE
        while True:
            try:
                return await self._store(letters)
            except InDoubt as error:  # it may have happened: a second time would double it
                return [error] * len(letters)
            except Unavailable as error:
                if self._now() >= until:
                    return [error] * len(letters)
                await asyncio.sleep(PAUSE)
            except OahError as error:
                log.exception("messages could not be stored")
                return [error] * len(letters)
            except Exception:  # a fault of ours: the senders are told, the next batch is tried
                log.exception("messages could not be stored")
                return [Unavailable("the message could not be stored")] * len(letters)
