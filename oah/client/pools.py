"""Queue and pools."""

from __future__ import annotations

from oah.client.calls import Calls, part
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
