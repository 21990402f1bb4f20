"""The leader lease as a Kubernetes Lease.

Whether another's lease has ended is judged by our own observation: its record has not changed for its whole duration by
our CLOCK_BOOTTIME. Clocks of machines are never compared. A holder counts from before its call, an observer from after
its own, so the holder's time is always over first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from oah.adapters.kubernetes.cluster import Absent, Cluster, Conflicting, Document, Refused
from oah.errors import Unavailable
from oah.ports.clock import Clock


def micro_time(moment: datetime) -> str:
    """As the API server reads it: exactly six digits, in UTC. `isoformat` leaves out six zeros."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record of a lease, and when this process saw it first (CLOCK_BOOTTIME)."""

    version: str
    at: float


class LeaseElection:
    """An `Election`. One object for one holder; from one thread, but for `leader`."""

    def __init__(self, cluster: Cluster, *, name: str, clock: Clock) -> None:
        self._cluster = cluster
        self._name = name
        self._clock = clock
        self._seen: _Seen | None = None

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        """Take or keep it. Raises Unavailable, also when the server refuses: rights may be given while we wait."""
        try:
            return self._lead(holder, lease)
        except Refused as error:
            raise _refused(error) from error
        except Absent as error:  # where it is to be made: the namespace
            raise Unavailable(error.message, code="election_absent", hint="is there such a namespace?") from error

    def resign(self, holder: str) -> None:
        """Write that nobody holds it, so that another need not wait."""
        try:
            lease = self._read()
            if lease is not None and _holder(lease) == holder:
                self._write(lease, holder="", lease=timedelta(seconds=1), taken=False)
        except (Conflicting, Absent):
            return  # somebody has it already, or deleted it
        except Refused as error:
            raise _refused(error) from error

    def leader(self) -> str | None:
        """Who holds it, as far as this process can tell."""
        try:
            lease = self._read()
        except Refused as error:
            raise _refused(error) from error
        if lease is None or self._ended(lease):
            return None
        return _holder(lease) or None

    def close(self) -> None:
        """Let go of the connections."""
        self._cluster.close()

    def _lead(self, holder: str, lease: timedelta) -> bool:
        for _ in range(2):  # the second time for a record that somebody has labelled between our read and our write
            found = self._read()
            if found is None:
                return self._create(holder, lease)
            ours = _holder(found) == holder
            if not ours and _holder(found) and not self._ended(found):
                return False
            try:
                self._write(found, holder=holder, lease=lease, taken=not ours)
            except (Conflicting, Absent):
                if ours:
                    continue
                return False
            return True
        raise Unavailable(f"Lease {self._name} changes faster than it can be renewed", code="kubernetes_conflict")

    def _read(self) -> Document | None:
        try:
            found = self._cluster.lease(self._name)
        except Absent:
            return None
        version = str(found["metadata"].get("resourceVersion"))
        if self._seen is None or self._seen.version != version:
            self._seen = _Seen(version, self._clock.boottime())
        return found

    def _ended(self, lease: Document) -> bool:
        seen = self._seen
        duration = _spec(lease).get("leaseDurationSeconds")
        if seen is None or seen.version != str(lease["metadata"].get("resourceVersion")):
            return False
        return self._clock.boottime() - seen.at >= (duration if isinstance(duration, int) else 0)

    def _create(self, holder: str, lease: timedelta) -> bool:
        now = micro_time(self._clock.now())
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(lease.total_seconds()),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        try:
            self._cluster.create_lease({"metadata": {"name": self._name}, "spec": spec})
        except Conflicting:
            return False
        return True

    def _write(self, found: Document, *, holder: str, lease: timedelta, taken: bool) -> None:
        """The record as it was read, with its resourceVersion: who was faster makes this a conflict."""
        now = micro_time(self._clock.now())
        spec = dict(_spec(found))
        spec |= {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(lease.total_seconds()),
            "renewTime": now,
        }
        if taken:
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        self._cluster.replace_lease({**found, "spec": spec})


def _spec(lease: Document) -> dict[str, Any]:
    return lease.get("spec") or {}


def _holder(lease: Document) -> str:
    return str(_spec(lease).get("holderIdentity") or "")


def _refused(error: Refused) -> Unavailable:
    return Unavailable(error.message, code="election_refused", hint=error.hint, retry_after=timedelta(seconds=5))
