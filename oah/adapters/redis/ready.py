"""The ready sets as the ``ReadySets`` port."""

from __future__ import annotations

from collections.abc import Sequence

from oah.adapters.redis import keys
from oah.adapters.redis.link import Call, Word
from oah.adapters.redis.poison import RedisPoison
from oah.adapters.redis.protocol import RedisDispatch
from oah.adapters.redis.rim import CHUNK, chunks, rows
from oah.core.model.ids import EpochId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.errors import InvalidRequest
from oah.ports.ready import Fit, ReadyEntry, ReadySet


class RedisReady(RedisDispatch, RedisPoison):
    """Reading what a claim takes from, and taking out what does not belong there."""

    def ready_sets(self, workspaces: Sequence[WorkspaceId] = ()) -> list[ReadySet]:
        """Three round trips, as wide as there are lanes and workspaces."""
        lanes, capped = self._members([["SMEMBERS", keys.LANES.at()], ["SMEMBERS", keys.CAPPED.at()]])
        pairs = [(lane, ready_class) for text in lanes if (lane := _lane(text)) for ready_class in ReadyClass]
        rings = self._members([["ZRANGE", keys.RING.at(str(lane), cls.value), 0, -1] for lane, cls in pairs])
        also = {*workspaces, *capped}
        sets = [
            ReadySet(lane, ready_class, WorkspaceId(ws))
            for (lane, ready_class), ring in zip(pairs, rings, strict=True)
            for ws in ("", *sorted({*ring, *also} - {""}))
        ]
        sizes = self._ask([["ZCARD", _key(each)] for each in sets]) if sets else []
        return sorted(each for each, size in zip(sets, sizes, strict=True) if size)

    def ready_entries(self, epoch: EpochId, where: ReadySet, *, first: int, limit: int) -> list[ReadyEntry]:
        """A call per chunk."""
        calls = [
            Call("entries", [*_words(where), begin, min(CHUNK, first + limit - begin)])
            for begin in range(first, first + limit, CHUNK)
        ]
        return [ReadyEntry(where, SessionId(session), Fit(fit)) for session, fit in rows(self._run(epoch, calls), 2)]

    def weed(self, epoch: EpochId, entries: Sequence[ReadyEntry]) -> int:
        """Each chunk in a step of its own."""
        items = [(entry.session_id, *_words(entry.ready_set)) for entry in entries]
        calls = [Call("weed", groups={"entry": chunk}) for chunk in chunks(items)]
        return sum(int(word) for word in self._run(epoch, calls)) if calls else 0

    def _members(self, commands: list[list[Word]]) -> list[list[str]]:
        if not commands:
            return []
        return [[member.decode("utf-8", "surrogateescape") for member in found] for found in self._ask(commands)]


def _key(where: ReadySet) -> str:
    lane, ready_class = str(where.lane), where.ready_class.value
    if where.workspace_id:
        return keys.READY.at(lane, ready_class, where.workspace_id)
    return keys.SINCE.at(lane, ready_class)


def _words(where: ReadySet) -> tuple[str, str, str | None]:
    return str(where.lane), where.ready_class.value, where.workspace_id or None


def _lane(text: str) -> Lane | None:
    """None for what no figure shows either: it is set aside there."""
    try:
        return Lane.parse(text)
    except InvalidRequest:
        return None
