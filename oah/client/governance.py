"""Workers, and what an operator tells them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

from oah.client.calls import Calls, given, part, seconds
from oah.client.transport import Json
from oah.errors import Conflict

LOOK_SECONDS = 0.5
GONE_SECONDS = 15.0
"""A worker that was at work and reports no more is believed to be gone after this: a broker that was restarted has
forgotten everybody, until their next reports."""


class GovernanceCalls(Calls):
    """Who runs the agents, and who shall."""

    def workers(self) -> list[Json]:
        """Workers that are alive by their own report."""
        return self._list("/v1/workers", {})

    def worker(self, worker_id: str) -> Json:
        """One worker by id or name. Raises NotFound."""
        return self._one("GET", f"/v1/workers/{part(worker_id)}")

    def cordon(self, worker_id: str, *, for_seconds: float | None = None) -> Json:
        """Take no new runs, in this life and the next ones of that name; until it is uncordoned, or for so long."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/cordon", body=given(for_seconds=for_seconds) or None)

    def cordons(self) -> list[Json]:
        """What is cordoned so, also of workers that are gone."""
        return self._list("/v1/cordons", {})

    def uncordon(self, worker_id: str) -> Json:
        """Undo ``cordon``, also of a worker that is gone; and a drain that has not ended the worker."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/uncordon")

    def drain(
        self, worker_id: str, *, deadline_seconds: float | None = None, then: str | None = None, stay: bool = False
    ) -> Json:
        """Finish current runs, then stop. ``then``: what becomes of runs at the deadline: ``wait``, ``requeue``,
        ``fail``; ``stay``: take nothing, and do not stop."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/drain", body=_drain(deadline_seconds, then, stay=stay))

    def wait_drained(self, worker_ids: Iterable[str], *, timeout: timedelta | float | None = None) -> None:
        """Until these are gone or empty. Raises Conflict ``drain_taken_back``, TimeoutError; they drain on then."""
        left, draining = set(worker_ids), set[str]()
        seen: dict[str, tuple[float, Json]] = {}
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        while True:
            at = time.monotonic()
            found = {worker["id"]: worker for worker in self.workers() if worker["id"] in left}
            seen |= {each: (at, worker) for each, worker in found.items()}
            now = {each for each, worker in found.items() if worker["draining"]}
            back = sorted((draining - now) & set(found))
            if back:
                raise Conflict(f"the drain of {back[0]} was taken back", code="drain_taken_back")
            draining |= now
            missed = {each for each, (last, worker) in seen.items() if _works(worker) and at - last < GONE_SECONDS}
            left &= {each for each in found if each not in now or _works(found[each])} | (missed - set(found))
            if not left:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{len(left)} worker(s) still drain: {', '.join(sorted(left)[:5])}")
            time.sleep(LOOK_SECONDS)

    def cordon_pool(self, pool: str, *, for_seconds: float | None = None) -> Json:
        """All its workers that are alive now. Raises NotFound."""
        return self._one("POST", f"/v1/pools/{part(pool)}/cordon", body=given(for_seconds=for_seconds) or None)

    def uncordon_pool(self, pool: str) -> Json:
        """All its workers."""
        return self._one("POST", f"/v1/pools/{part(pool)}/uncordon")

    def drain_pool(
        self, pool: str, *, deadline_seconds: float | None = None, then: str | None = None, stay: bool = False
    ) -> Json:
        """All its workers, at once."""
        return self._one("POST", f"/v1/pools/{part(pool)}/drain", body=_drain(deadline_seconds, then, stay=stay))

    def rollouts(self, *, limit: int | None = None, pool: str | None = None) -> list[Json]:
        """Rolling restarts, newest first."""
        return self._list("/v1/rollouts", {"pool": pool}, limit=limit)

    def rollout(self, rollout_id: str) -> Json:
        """Where each of its workers stands. Raises NotFound."""
        return self._one("GET", f"/v1/rollouts/{part(rollout_id)}")

    def restart_pool(
        self,
        pool: str,
        *,
        batch: int | None = None,
        deadline_seconds: float | None = None,
        then: str | None = None,
        settle_seconds: float | None = None,
        health_seconds: float | None = None,
        version: str | None = None,
        reason: str | None = None,
    ) -> Json:
        """Restart the workers of a pool, ``batch`` at a time. Raises NotFound, Conflict ``rollout_open``."""
        body = given(
            pool=pool,
            batch=batch,
            deadline_seconds=deadline_seconds,
            then=then,
            settle_seconds=settle_seconds,
            health_seconds=health_seconds,
            version=version,
            reason=reason,
        )
        return self._one("POST", "/v1/rollouts", body=body, once=True)

    def abort_rollout(self, rollout_id: str) -> Json:
        """Who drains serves again. Raises NotFound, Conflict ``rollout_ended``."""
        return self._one("POST", f"/v1/rollouts/{part(rollout_id)}/abort")

    def wait_rollout(
        self,
        rollout_id: str,
        *,
        timeout: timedelta | float | None = None,
        on_progress: Callable[[Json], None] = lambda _: None,
    ) -> Json:
        """The rollout once it has ended; ``on_progress`` sees each look. Raises TimeoutError; it goes on then."""
        deadline = None if timeout is None else time.monotonic() + (seconds(timeout) or 0.0)
        while True:
            found = self.rollout(rollout_id)
            on_progress(found)
            if found["state"] != "running":
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"rollout {rollout_id} goes on: {found['done']} of {found['workers']}")
            time.sleep(LOOK_SECONDS)


def _works(worker: Json) -> bool:
    return bool(worker["busy"] or worker["parked"])


def _drain(deadline_seconds: float | None, then: str | None, *, stay: bool) -> Json:
    return given(deadline_seconds=deadline_seconds, then=then, stay=stay or None)
