"""Who is alive, by their own report, and who leads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.adapters.redis import keys
from oah.adapters.redis.link import Call, Link
from oah.adapters.redis.rim import as_ms, maybe_from_ms
from oah.adapters.redis.scripts import Value
from oah.core.model.cordon import Cordon
from oah.core.model.ids import WorkerId
from oah.core.model.lane import Lane
from oah.core.model.worker import WorkerReport, WorkerState


class RedisRegistry:
    """The ``Registry`` part of the broker."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def report(self, worker: WorkerReport, *, ttl: timedelta, serves: Sequence[Lane] = ()) -> None:
        """Write the report; it is stamped by Redis and expires after ``ttl``."""
        fixed: list[Value] = [worker.id, json.dumps(_encode(worker)), as_ms(ttl)]
        self._link.run(None, [Call("report", fixed, {"lane": [(str(lane),) for lane in serves]})])

    def served(self, lanes: Sequence[Lane]) -> list[timedelta | None]:
        """By the broker's clock."""
        answer = self._link.run(None, [Call("served", groups={"lane": [(str(lane),) for lane in lanes]})])[0]
        return [maybe_from_ms(word) for word in answer[1:]]

    def workers(self) -> list[WorkerReport]:
        """All that have not expired, in the order of their last report."""
        return [report for _, report in self._entries() if report is not None]

    def departed(self) -> list[WorkerId]:
        """Those that have."""
        return [worker for worker, report in self._entries() if report is None]

    def forget(self, worker_id: WorkerId) -> None:
        """Remove the lists of an incarnation that is gone, and its report once it leases nothing any more: while the
        report is listed, somebody comes back for the lists."""
        if self._link.run(None, [Call("bury", [worker_id])])[0][1] == "1":
            self._link.run(None, [Call("forget", [worker_id])])

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Take or keep the leader lease."""
        return self._link.run(None, [Call("lead", [holder, as_ms(lease)])])[0][1] == "1"

    def resign(self, holder: str) -> None:
        """Give it up, if it is one's own."""
        self._link.run(None, [Call("resign", [holder])])

    def leader(self) -> str | None:
        """Who has it."""
        answer = self._link.exchange([["GET", keys.LEADER.at()]])[0]
        return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else None

    def _entries(self) -> Iterator[tuple[WorkerId, WorkerReport | None]]:
        answer = self._link.run(None, [Call("workers")])[0]
        for worker, text, seen in zip(answer[1::3], answer[2::3], answer[3::3], strict=True):
            if not text:
                yield WorkerId(worker), None
                continue
            try:
                yield WorkerId(worker), _decode(json.loads(text), seen_ms=int(seen or 0))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self._link.set_aside(keys.WORKER.at(worker), text.encode("utf-8", "surrogateescape"))
                self._link.run(None, [Call("forget", [worker])])


def _encode(worker: WorkerReport) -> dict[str, Any]:
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "pool": worker.pool,
        "profiles": list(worker.profiles),
        "state": worker.state,
        "slots": worker.slots,
        "busy": worker.busy,
        "parked": worker.parked,
        "cordoned": worker.cordoned,
        "draining": worker.draining,
        "version": worker.version,
        "started_at": worker.started_at.isoformat(),
        "address": worker.address,
        "token": worker.token,
        "cpu_percent": worker.cpu_percent,
        "rss_bytes": worker.rss_bytes,
        "sessions": dict(worker.sessions),
        "withdrawn": dict(worker.withdrawn),
        "embedded": worker.embedded,
        "waits": {name: dict(buckets) for name, buckets in worker.waits.items()},
        "waits_now": {name: dict(buckets) for name, buckets in worker.waits_now.items()},
        "slots_max": worker.slots_max,
        "weight": worker.weight,
        "weights": dict(worker.weights),
        "pressure": list(worker.pressure),
        "memory_ratio": worker.memory_ratio,
        "load_ratio": worker.load_ratio,
        "disk_ratio": worker.disk_ratio,
        **({} if worker.cordon is None else {"cordon": _kept(worker.cordon)}),
    }


def _kept(cordon: Cordon) -> dict[str, str | None]:
    until = None if cordon.until is None else cordon.until.isoformat()
    return {"by": cordon.by, "at": cordon.at.isoformat(), "until": until}


def _decode(data: dict[str, Any], *, seen_ms: int) -> WorkerReport:
    return WorkerReport(
        id=WorkerId(str(data["id"])),
        name=str(data["name"]),
        host=str(data["host"]),
        pid=int(data["pid"]),
        pool=str(data["pool"]),
        profiles=tuple(str(profile) for profile in data["profiles"]),
        state=WorkerState(data["state"]),
        slots=int(data["slots"]),
        busy=int(data["busy"]),
        parked=int(data["parked"]),
        cordoned=bool(data["cordoned"]),
        draining=bool(data["draining"]),
        version=str(data["version"]),
        started_at=datetime.fromisoformat(data["started_at"]),
        address=data.get("address"),
        token=data.get("token"),
        cpu_percent=float(data.get("cpu_percent", 0.0)),
        rss_bytes=int(data.get("rss_bytes", 0)),
        sessions={str(key): str(value) for key, value in data.get("sessions", {}).items()},
        withdrawn={str(key): str(value) for key, value in data.get("withdrawn", {}).items()},
        waits=_waits(data.get("waits", {})),
        waits_now=_waits(data.get("waits_now", {})),
        embedded=data.get("embedded") is True,
        last_seen_at=datetime.fromtimestamp(seen_ms / 1000, UTC),
        slots_max=int(data.get("slots_max", 0)),
        weight=int(data.get("weight", 0)),
        weights={str(key): max(int(value), 1) for key, value in data.get("weights", {}).items()},
        pressure=tuple(str(each) for each in data.get("pressure", ())),
        memory_ratio=float(data.get("memory_ratio", 0.0)),
        load_ratio=float(data.get("load_ratio", 0.0)),
        disk_ratio=float(data.get("disk_ratio", 0.0)),
        cordon=_cordon(data),
    )


def _cordon(data: dict[str, Any]) -> Cordon | None:
    kept = data.get("cordon")
    if not kept:
        return None
    return Cordon(
        host=str(data["host"]),
        name=str(data["name"]),
        pool=str(data["pool"]),
        worker_id=WorkerId(str(data["id"])),
        by=str(kept["by"]),
        at=datetime.fromisoformat(kept["at"]),
        until=None if kept["until"] is None else datetime.fromisoformat(kept["until"]),
    )


def _waits(data: Any) -> dict[str, dict[int, int]]:
    return {str(name): {int(key): int(count) for key, count in buckets.items()} for name, buckets in data.items()}
