"""The whole port, composed of its parts."""

from __future__ import annotations

from datetime import timedelta

from oah.adapters.redis import keys
from oah.adapters.redis.epochs import RedisEpochs
from oah.adapters.redis.link import Link, Word
from oah.adapters.redis.poison import RedisPoison
from oah.adapters.redis.protocol import RedisDispatch
from oah.adapters.redis.registry import RedisRegistry
from oah.adapters.redis.signals import RedisSignals
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.errors import InvalidRequest
from oah.ports.broker import LaneDepth, QueueFigures

_FACTS = (
    "redis_version",
    "valkey_version",
    "server_name",
    "redis_mode",
    "role",
    "run_id",
    "maxmemory",
    "maxmemory_policy",
    "used_memory",
    "aof_enabled",
    "rdb_last_bgsave_status",
    "rdb_last_save_time",
    "loading",
    "connected_clients",
    "evicted_keys",
    "uptime_in_seconds",
)


class RedisBroker(RedisDispatch, RedisEpochs, RedisSignals, RedisRegistry, RedisPoison):
    """Everything the broker offers; safe to use from many threads."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._epochs = self
        RedisSignals.__init__(self, link)

    def figures(self) -> QueueFigures:
        """Depths by lane and class: two round trips, whatever the backlog. What waits for a host is its lane's, too."""
        lanes = [lane for name in self._ask([["SMEMBERS", keys.LANES.at()]])[0] if (lane := self._lane(name))]
        pairs = [(lane, ready_class) for lane in sorted(lanes) for ready_class in ReadyClass]
        commands: list[list[Word]] = [["TIME"], ["ZCARD", keys.LEASES.at()], ["ZCARD", keys.DUE.at()]]
        commands += [["ZCARD", keys.HELD.at()]]
        for lane, ready_class in pairs:
            since = keys.SINCE.at(str(lane), ready_class.value)
            commands += [["ZCARD", since], ["ZRANGE", since, 0, 0, "WITHSCORES"]]
        time, leased, due, held, *rest = self._ask(commands)
        oldest = None
        depths: dict[tuple[Lane, ReadyClass], int] = {}
        for (lane, ready_class), count, first in zip(pairs, rest[::2], rest[1::2], strict=True):
            where = (Lane(lane.pool, lane.profile), ready_class)
            depths[where] = depths.get(where, 0) + count
            if first:
                age = _seconds(time) - float(first[1]) / 1000
                oldest = age if oldest is None else max(oldest, age)
        return QueueFigures(
            ready=tuple(LaneDepth(lane, ready_class, count) for (lane, ready_class), count in depths.items()),
            oldest_ready=None if oldest is None else timedelta(seconds=max(oldest, 0.0)),
            leased=leased,
            due=due,
            held=held,
        )

    def active(self, workspace_id: WorkspaceId) -> list[SessionId]:
        """Members of the workspace's cap."""
        members = self._ask([["SMEMBERS", keys.ACTIVE.at(workspace_id)]])[0]
        return [SessionId(member.decode("utf-8", "surrogateescape")) for member in members]

    def now(self) -> float:
        """The server's clock, in seconds."""
        return _seconds(self._ask([["TIME"]])[0])

    def facts(self) -> dict[str, str]:
        """What INFO says of version, memory, eviction and persistence; ``mode`` says how it is reached."""
        if self._link.dial.in_process:
            return {"mode": "in-process", "address": self._link.dial.address}
        found = self._link.info(self._ask([["INFO"]])[0])
        facts = {name: found[name] for name in _FACTS if name in found}
        return {"mode": "server", "address": self._link.dial.address, **facts}

    def close(self) -> None:
        """Close all connections; calls in other threads end with Unavailable."""
        self._link.close()
        RedisSignals.close(self)

    def _lane(self, name: bytes) -> Lane | None:
        try:
            return Lane.parse(name.decode())
        except (UnicodeDecodeError, InvalidRequest):
            self._link.set_aside(keys.LANES.at(), name)
            return None


def _seconds(time: list[bytes]) -> float:
    return int(time[0]) + int(time[1]) / 1_000_000
