"""Queue and pools, and who scales them."""

from __future__ import annotations

from collections.abc import Iterator

from oah.client.calls import Calls, given, part
from oah.client.transport import Json


class PoolCalls(Calls):
    """What waits, and what could take it."""

    def queue(self) -> Json:
        """The health snapshot of queue and fleet, camelCase."""
        return self._one("GET", "/v1/queue")

    def pools(self) -> list[Json]:
        """Pools in which anything waits, runs or serves."""
        return self._list("/v1/pools", {})

    def pool(self, name: str) -> Json:
        """One pool with its ``members`` and the last ``decisions`` about its size. Raises NotFound."""
        return self._one("GET", f"/v1/pools/{part(name)}")

    def pool_metric(self, name: str) -> Json:
        """What an autoscaler reads: ``value``. Raises Unavailable while it could be too little."""
        return self._one("GET", f"/v1/pools/{part(name)}/metric")

    def scale_decisions(self, *, pool: str | None = None, limit: int | None = None) -> list[Json]:
        """What was decided about the sizes of pools, newest first."""
        return self._list("/v1/controller/decisions", {"pool": pool}, limit=limit)

    def queue_session(self, session_id: str) -> Json:
        """Where both stores have a session: ``owner`` in SQL, place in the ``broker``. Raises NotFound."""
        return self._one("GET", f"/v1/queue/sessions/{part(session_id)}")

    def queue_faults(self) -> Iterator[Json]:
        """Page after page of what SQL and the broker say differently; nothing is changed."""
        cursor: str | None = None
        while True:
            page = self._one("GET", "/v1/queue/faults", params={"cursor": cursor})
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def repair_queue(self, *, reconcile: bool = False) -> Iterator[Json]:
        """The same pages, each with what was put right. ``reconcile``: the broker is told once more of every session
        with queued runs. Raises Unavailable while the queues are being rebuilt."""
        cursor: str | None = None
        while True:
            page = self._one("POST", "/v1/queue/repair", body=given(cursor=cursor, reconcile=reconcile or None))
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return
