"""Workers, and what an operator tells them."""

from __future__ import annotations

from oah.client.calls import Calls, given, part
from oah.client.transport import Json


class GovernanceCalls(Calls):
    """Who runs the agents, and who shall."""

    def workers(self) -> list[Json]:
        """Workers that are alive by their own report."""
        return self._list("/v1/workers", {})

    def worker(self, worker_id: str) -> Json:
        """One worker by id or name. Raises NotFound."""
        return self._one("GET", f"/v1/workers/{part(worker_id)}")

    def cordon(self, worker_id: str) -> Json:
        """Take no new runs."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/cordon")

    def uncordon(self, worker_id: str) -> Json:
        """Undo ``cordon``, and a drain that has not ended the worker."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/uncordon")

    def drain(
        self, worker_id: str, *, deadline_seconds: float | None = None, then: str | None = None, stay: bool = False
    ) -> Json:
        """Finish current runs, then stop. ``then``: what becomes of runs at the deadline: ``wait``, ``requeue``,
        ``fail``; ``stay``: take nothing, and do not stop."""
        return self._one("POST", f"/v1/workers/{part(worker_id)}/drain", body=_drain(deadline_seconds, then, stay=stay))

    def cordon_pool(self, pool: str) -> Json:
        """All its workers that are alive now. Raises NotFound."""
        return self._one("POST", f"/v1/pools/{part(pool)}/cordon")

    def uncordon_pool(self, pool: str) -> Json:
        """All its workers."""
        return self._one("POST", f"/v1/pools/{part(pool)}/uncordon")

    def drain_pool(
        self, pool: str, *, deadline_seconds: float | None = None, then: str | None = None, stay: bool = False
    ) -> Json:
        """All its workers, at once."""
        return self._one("POST", f"/v1/pools/{part(pool)}/drain", body=_drain(deadline_seconds, then, stay=stay))


def _drain(deadline_seconds: float | None, then: str | None, *, stay: bool) -> Json:
    return given(deadline_seconds=deadline_seconds, then=then, stay=stay or None)
