"""Orphans: judge owner rows by both witnesses, give leases back where the mark is fresh, recover where neither is.

The rows were read from SQL before this is called; the broker is asked second; the clocks are looked at last, before
anything is decided. Without an answer of both stores a pass decides nothing: Unavailable passes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from oah.core.model.epoch import EpochState
from oah.core.model.ids import ClaimToken, EpochId, SessionId
from oah.core.policy import orphan
from oah.core.policy.orphan import Orphan, Restore
from oah.ports.broker import Broker, LeaseView
from oah.ports.store import OwnerRow
from oah.services.clocks import WatchClocks
from oah.services.decisions import Decisions
from oah.services.place import Places
from oah.services.recover import Recovered, RecoverOwners


@dataclass(frozen=True, slots=True)
class Judged:
    """What one look did."""

    restored: int = 0
    recovered: tuple[Recovered, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeOwners:
    """Load: the caller (rows), we (leases). Decide: ``core/policy/orphan.py``. Commit: restore and recover."""

    broker: Broker
    places: Places
    recover: RecoverOwners
    clocks: WatchClocks
    rules: orphan.Rules
    decisions: Decisions
    holder: str

    def __call__(self, epoch: EpochId, rows: Sequence[OwnerRow]) -> Judged:
        """Judge these rows. Raises Unavailable and EpochMismatch, before or between two commits."""
        if not rows:
            return Judged()
        open_for = self._open_for(epoch)
        leases = self.broker.leases(epoch, [row.session_id for row in rows])
        on_hold = self.clocks.look()
        lives: dict[SessionId, timedelta] = {}
        over: dict[SessionId, ClaimToken] = {}
        fresh: list[OwnerRow] = []
        orphans: list[OwnerRow] = []
        for row, lease in zip(rows, leases, strict=True):
            decision = orphan.judge(self._view(row, lease, open_for, on_hold=on_hold), self.rules)
            match decision:
                case Orphan():
                    orphans.append(row)
                case Restore(life=life):
                    fresh.append(row)
                    lives[row.session_id] = life
                    if lease.token is not None and lease.token != row.token and _passed(lease):
                        over[row.session_id] = lease.token
                case _:
                    pass
        done = self.places.restore(epoch, fresh, lives, over)
        for row, restored in zip(fresh, done, strict=True):
            if restored:
                self.decisions.note(
                    "lease", row.session_id, "restored", "mark is fresh", run_id=row.run_id, worker_id=row.worker_id
                )
        recovered = self.recover(orphans, cause="worker_lost", by=self.holder)
        return Judged(sum(done), tuple(recovered))

    def _open_for(self, epoch: EpochId) -> timedelta | None:
        view = self.broker.view()
        return view.open_for if view.id == epoch and view.state is EpochState.OPEN else None

    @staticmethod
    def _view(row: OwnerRow, lease: LeaseView, open_for: timedelta | None, *, on_hold: bool) -> orphan.View:
        return orphan.View(
            mark_age=row.age,
            place=lease.place,
            same_token=lease.token == row.token,
            life=lease.life,
            open_for=open_for,
            on_hold=on_hold,
        )


def _passed(lease: LeaseView) -> bool:
    """A foreign lease that has passed may be replaced; one that has not is a claim in flight."""
    return lease.life is not None and lease.life <= timedelta(0)
