"""SQL against Redis: what SQL says must run or wait, and whether the broker knows it (invariant I11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from oah.cli.findings import Finding, bad, ok, warn
from oah.core.model.ids import EpochId, SessionId
from oah.core.policy.ready_faults import WORDS, Fault
from oah.services.ready_queue import Part, ReadyQueue, Report

if TYPE_CHECKING:
    from oah.ports.broker import Broker
    from oah.ports.store import Store

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Audit:
    """What was looked at, and the faults that were there twice."""

    epoch: EpochId | None
    queued: int = 0
    owners: int = 0
    entries: int = 0
    faults: dict[Fault, tuple[SessionId, ...]] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """As doctor tells it."""
        looked = f"{self.queued} session(s) with queued runs, {self.owners} owner(s), {self.entries} ready entries"
        yield ok("audit", f"{looked} looked at")
        for fault, sessions in self.faults.items():
            named = ", ".join(sessions[:_NAMED]) + (" …" if len(sessions) > _NAMED else "")
            yield bad(
                f"audit_{fault}",
                f"{len(sessions)} {WORDS[fault]}: {named}",
                "the leader repairs this within a minute; is there one? oah controller show",
            )


def audit(store: Store, broker: Broker, *, lease: timedelta, pause: Callable[[float], None]) -> Audit:
    """The whole walk. Raises Unavailable, EpochMismatch (a rebuild began meanwhile)."""
    epoch = store.current_epoch()
    if epoch is None:
        return Audit(None)
    report = Report()
    for look in ReadyQueue(store, broker, lease=lease, pause=pause).walk():
        report.add(look)
    faults = {fault: tuple(sorted(names)) for fault, names in report.faults.items()}
    looked = report.looked
    return Audit(epoch, looked[Part.SESSIONS], looked[Part.OWNERS], looked[Part.READY], faults)


def epoch_findings(store: Store, broker: Broker) -> Iterator[Finding]:
    """Whether both stores speak of the same epoch."""
    wanted, view = store.current_epoch(), broker.view()
    if wanted is None:
        yield warn(
            "epoch", "SQL has none yet: no leader has ever run", "start oah-controller, or oah-api without --api-only"
        )
    elif view.id is None:
        yield bad(
            "epoch", "the broker is empty; a leader rebuilds it from SQL", "is there a leader? oah controller show"
        )
    elif view.id != wanted:
        yield bad("epoch", f"SQL is at {wanted}, the broker at {view.id}", "is there a leader? oah controller show")
    else:
        yield ok("epoch", f"{wanted} {view.state}")
