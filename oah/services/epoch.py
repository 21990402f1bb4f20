"""Epochs: which incarnation of the broker's data this process believes in, and minting a new one.

Every process compares on each new connection and each pass; only a leader mints. SQL goes first: whoever wins the
compare-and-set there writes Redis over the id that it saw, so that a stalled leader cannot overwrite a newer epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from oah.core.model.epoch import EpochView
from oah.core.model.ids import EpochId
from oah.core.policy.epochs import Decision, Suspect, judge
from oah.errors import Rebuilding, Unavailable
from oah.ports.broker import Broker, Epochs
from oah.ports.clock import Ids
from oah.ports.store import RecoveryStore
from oah.ports.telemetry import Telemetry
from oah.services.decisions import Decisions


@dataclass(frozen=True, slots=True)
class Checked:
    """What was compared and what follows."""

    decision: Decision
    view: EpochView
    newest: EpochId | None


class EpochKeeper:
    """The epoch id of a process, cached; it satisfies ``EpochSource``."""

    def __init__(self, store: RecoveryStore, broker: Broker, ids: Ids, telemetry: Telemetry) -> None:
        self._store = store
        self._broker = broker
        self._ids = ids
        self._telemetry = telemetry
        self._current: EpochId | None = None

    def current(self) -> EpochId:
        """The id to name in broker calls. Raises Rebuilding while no leader has minted a first one, Unavailable."""
        return self._current or self.refresh()

    def refresh(self) -> EpochId:
        """Read the id from SQL, after an ``EpochMismatch``. Raises as ``current`` does."""
        newest = self._store.current_epoch()
        if newest is None:
            raise Rebuilding("no epoch has been minted yet", hint="a controller, or an API with workers, mints it")
        self._current = newest
        return newest

    def for_renewal(self, through: Epochs) -> EpochId:
        """The id from SQL; with SQL away the one found in Redis, which renewals, and only they, may use.

        ``through``: the witness's own connection, so that the look takes no longer than a renewal may.
        """
        try:
            return self.refresh()
        except Unavailable:
            found = through.view().id
            if found is None:
                raise
            return found

    def check(self) -> Checked:
        """Compare. SQL is read first: a mismatch is judged again if SQL has moved on meanwhile."""
        newest = self._store.current_epoch()
        while True:
            view = self._broker.view()
            known = view.id is not None and view.id != newest and self._store.knows_epoch(view.id)
            decision = judge(view, newest, known=known)
            again = self._store.current_epoch() if isinstance(decision, Suspect) else newest
            if again == newest:
                break
            newest = again
        self._current = newest
        return Checked(decision, view, newest)

    def mint(self, checked: Checked, decisions: Decisions) -> EpochId | None:
        """A new epoch in both stores, ``rebuilding``; None when somebody else was faster. Leaders only."""
        if not isinstance(checked.decision, Suspect):
            return None
        new = EpochId(self._ids.new("epoch"))
        if not self._store.mint_epoch(new, over=checked.newest):
            return None
        self._current = new
        if not self._broker.mint(new, seen=checked.view.id):
            return None
        why = checked.decision.why
        self._telemetry.count("oah_epochs_minted_total", reason=str(why))
        decisions.note("epoch", new, "minted", str(why))
        return new
