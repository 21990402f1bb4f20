"""The whole port, composed of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from oah.adapters.redis import keys
from oah.adapters.redis.epochs import RedisEpochs
from oah.adapters.redis.link import Call, Link
from oah.adapters.redis.ready import RedisReady
from oah.adapters.redis.registry import RedisRegistry
from oah.adapters.redis.rim import chunks, group_word, maybe_from_ms, rows
from oah.adapters.redis.signals import RedisSignals
from oah.core.model.group import Group
from oah.core.model.ids import SessionId
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


class RedisBroker(RedisReady, RedisEpochs, RedisSignals, RedisRegistry):
    """Everything the broker offers; safe to use from many threads."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._epochs = self
        RedisSignals.__init__(self, link)

    def figures(self) -> QueueFigures:
        """One round trip, whatever the backlog. What waits for a host is its lane's, too."""
        leased, due, held, *words = self._link.run(None, [Call("figures")])[0][1:]
        depths: dict[tuple[Lane, ReadyClass], LaneDepth] = {}
        oldest: timedelta | None = None
        for name, ready_class, count, capped, age, free in rows(words, 6):
            lane = self._lane(name)
            if lane is None:
                continue
            where = (Lane(lane.pool, lane.profile), ReadyClass(ready_class))
            seen = depths.get(where, LaneDepth(*where, 0))
            depths[where] = LaneDepth(
                *where, seen.sessions + int(count), seen.capped + int(capped), _older(seen.oldest, maybe_from_ms(free))
            )
            oldest = _older(oldest, maybe_from_ms(age))
        return QueueFigures(
            ready=tuple(depths[where] for where in sorted(depths)),
            oldest_ready=oldest,
            leased=int(leased),
            due=int(due),
            held=int(held),
        )

    def active(self, groups: Sequence[Group]) -> list[list[SessionId]]:
        """Members of the groups' caps."""
        found: list[list[SessionId]] = []
        for chunk in chunks(groups):
            for members in self._ask([["SMEMBERS", keys.ACTIVE.at(group_word(group))] for group in chunk]):
                found.append([SessionId(member.decode("utf-8", "surrogateescape")) for member in members])
        return found

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

    def _lane(self, name: str) -> Lane | None:
        try:
            return Lane.parse(name)
        except InvalidRequest:
            self._link.set_aside(keys.LANES.at(), name.encode("utf-8", "surrogateescape"))
            return None


def _older(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _seconds(time: list[bytes]) -> float:
    return int(time[0]) + int(time[1]) / 1_000_000
