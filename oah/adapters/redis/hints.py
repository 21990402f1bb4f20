"""A channel of hints: (name, number) pairs, of which only the highest number of a name counts.

Best effort: what is lost is found in SQL by who listens, a little later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from redis import exceptions as foreign

from oah.adapters.redis import failures, keys
from oah.adapters.redis.link import Link
from oah.errors import Unavailable


class HintChannel:
    """One channel, with one listener per process."""

    def __init__(self, link: Link, key: keys.Key) -> None:
        self._link = link
        self._name = key.at()
        self._subscriber: Any = None
        self._guard = threading.Lock()

    def publish(self, hints: Sequence[tuple[str, int]]) -> None:
        """Best effort, within the time that a user's answer may wait."""
        if not hints:
            return
        text = "\n".join(f"{number} {name}" for name, number in hints)
        try:
            self._link.exchange([["PUBLISH", self._name, text.encode("utf-8", "surrogateescape")]], quick=True)
        except Unavailable:
            return  # counted by the link

    def hints(self, *, timeout: timedelta) -> list[tuple[str, int]]:
        """Block for hints of other processes, then take what else has come. Raises Unavailable."""
        with self._guard:
            try:
                if self._subscriber is None:
                    self._subscriber = self._link.subscriber()
                    self._subscriber.subscribe(self._name)
                return self._collect(timeout.total_seconds())
            except (foreign.RedisError, OSError) as error:
                self._unsubscribe()
                raise failures.translate(error, address=self._link.dial.address) from error

    def close(self) -> None:
        """End the subscription."""
        with self._guard:
            self._unsubscribe()

    def _collect(self, seconds: float) -> list[tuple[str, int]]:
        latest: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 or not latest:
            message = self._subscriber.get_message(timeout=0 if latest else max(left, 0.0))
            if message is None:
                if latest or left <= 0:
                    break
                continue
            for name, number in self._parse(message["data"]):
                kind = (name, min(number, 1))  # 0 and less are words, not numbers: each is kept
                latest[kind] = max(number, latest.get(kind, number))
        return [(name, number) for (name, _), number in latest.items()]

    def _parse(self, data: bytes) -> list[tuple[str, int]]:
        try:
            lines = [line.split(" ", 1) for line in data.decode().splitlines()]
            return [(name, int(number)) for number, name in lines]
        except ValueError:
            self._link.set_aside(self._name, data)
            return []

    def _unsubscribe(self) -> None:
        if self._subscriber is not None:
            try:
                self._subscriber.close()
            except (foreign.RedisError, OSError):
                pass  # it is being thrown away
            self._subscriber = None
