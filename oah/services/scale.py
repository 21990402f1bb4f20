"""Scale: let a pool have the size that its load asks for, and interrupt nobody on the way down.

One pass: look (target, signals), decide (core/policy/scaling.py), write the decision down, do it. Who goes is cordoned
and drained, and removed by name once it is empty (core/policy/shrinking.py); when load returns first, it stays. All
that another leader needs to go on stands in SQL (the open decision, commands to workers) and in the registry; a leader
remembers only since when somebody is silent. Two leaders at once do no harm: a pool has one open decision, changed by
compare-and-set, and a target refuses what was judged by an older state.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId
from oah.core.model.scaling import Going
from oah.core.policy import scaling, shrinking
from oah.core.policy.scaling import Decision, History
from oah.core.policy.shrinking import Member
from oah.errors import Conflict, Unavailable
from oah.ports.broker import Broker
from oah.ports.clock import Clock, Ids
from oah.ports.commands import CommandKind
from oah.ports.rollouts import Order
from oah.ports.scaling import NONE, DecisionFilter, Outcome, ScaleDecision, ScaleTarget
from oah.ports.store import Store
from oah.ports.telemetry import Telemetry
from oah.services.commands import hint
from oah.services.scale_book import ScaleBook
from oah.services.scale_look import AGAIN, LACKS, Look, Lookout, TargetFailed, asking
from oah.services.scale_story import inputs, remembered, why
from oah.services.signals import PoolSignals

log = logging.getLogger(__name__)

SETTLES = timedelta(seconds=2)
"""So long a worker must be empty before it goes: a claim that was under way when it was cordoned has come by then."""

LOOKING_ON = timedelta(seconds=1)
"""How often somebody who goes is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRules:
    """Of one pool. `drain`: how long those that go may finish, and what then; without, as long as they need."""

    pool: str = "default"
    every: timedelta = timedelta(seconds=5)
    """How often the size is judged: what a sample of the policy's windows is."""
    scaling: scaling.Rules = field(default_factory=scaling.Rules)
    shrinking: shrinking.Rules = field(default_factory=shrinking.Rules)
    drain: Drain = field(default_factory=Drain)


class ScaleFleet:
    """One pool and its target; for one thread."""

    def __init__(
        self,
        *,
        store: Store,
        broker: Broker,
        signals: PoolSignals,
        target: ScaleTarget | None,
        rules: ScaleRules,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        holder: str,
    ) -> None:
        self._store = store
        self._broker = broker
        self._target = target
        self._target_name = NONE if target is None else target.name
        self._rules = rules
        self._pool = rules.pool
        self._clock = clock
        self._holder = holder
        self._book = ScaleBook(store, ids, telemetry, pool=rules.pool, target=self._target_name, holder=holder)
        self._lookout = Lookout(store, signals, target, clock, rules.pool)
        self._begins = False
        self._forget()

    @property
    def pool(self) -> str:
        """Whose size it is."""
        return self._pool

    @property
    def every(self) -> timedelta:
        """How often it wants to be called."""
        return self._rules.every

    def begin(self) -> None:
        """A new leadership: nothing is remembered of the last one. From any thread."""
        self._begins = True

    def clear(self) -> None:
        """No longer leader: the figures are another's now."""
        self._book.clear()

    def _forget(self) -> None:
        self._begins = False
        self._history: History | None = None
        self._lookout.forget()
        self._book.forget()
        self._busy = False
        self._judge_at = -math.inf

    def __call__(self) -> timedelta | None:
        """One pass; how long until the next, None: as usual. Raises Unavailable when a store or the target is away:
        nothing was changed that the next pass does not find."""
        try:
            self._pass()
        except Conflict as error:
            if error.code != "scaling_taken":
                raise
            log.info("scaling: %s", error.message)
            self._history = None
        except TargetFailed as failed:
            self._book.failed(failed.cause)
            if isinstance(failed.cause, Unavailable):
                raise failed.cause from None
        else:
            self._book.failure = None
        return LOOKING_ON if self._busy else None

    def _pass(self) -> None:
        if self._begins:
            self._forget()
        look = self._lookout.look()
        if look.foreign_for is not None and look.open is not None:
            if look.foreign_for >= LACKS:  # till then whoever began it may only have lost the lead for a moment
                self._release(look, look.open)
            return
        now = self._clock.monotonic()
        if look.open is not None and now < self._judge_at:
            self._busy = bool(look.going)
            self._go_on(look, look.open)
            return
        history = self._history if self._history is not None else self._remembered(now)
        signals = replace(look.view.signals, starting=look.starting(self._rules.shrinking.missing))
        rules = self._rules.scaling
        decision = scaling.decide(signals, rules, current=look.staying, history=history, now=now)
        story = inputs(look.view, signals, decision, rules, staying=look.staying)
        self._book.show(look, decision)
        if self._target is None:
            self._book.note(look, decision, story)
        else:
            self._act(look, decision, story)
        self._history = decision.history
        self._judge_at = now + (self._rules.every - LOOKING_ON / 2).total_seconds()

    # --- look ---

    def _remembered(self, now: float) -> History:
        rows = self._store.scale_decisions(DecisionFilter(pool=self._pool, limit=20)).items
        return remembered(rows, today=self._store.now(), now=now) if rows else History()

    # --- act ---

    def _act(self, look: Look, decision: Decision, story: Mapping[str, Any]) -> None:
        less = look.staying - decision.desired
        chosen = self._chosen(look, less)
        size = look.state.size
        if less > 0:
            size = max(decision.desired + len(chosen), size - min(less, look.unborn))
        elif less < 0:
            size = max(decision.desired + len(chosen), size)
        self._busy = bool(chosen)
        if chosen != set(look.going) or size != look.state.size:
            self._change(look, decision, story, chosen, size)
        elif look.open is not None:
            self._go_on(look, look.open)
        elif size != self._book.told_size:
            self._book.tell_size(size)

    def _chosen(self, look: Look, less: int) -> set[str]:
        """Who goes now: of those who are going some may stay, or others go instead."""
        going = look.going
        if less == 0 and not (look.sure and look.whole):
            return set(going)
        count = len(going) + less
        always = {name for name, each in going.items() if each.removing}
        if count <= len(always):
            return always
        among = [each for each in look.members if less >= 0 or each.going is not None]
        return always | set(self._choose(look, shrinking.order(among, self._rules.shrinking), count))

    def _change(self, look: Look, decision: Decision, story: Mapping[str, Any], chosen: set[str], size: int) -> None:
        going = look.going
        back = [each.worker_id for name, each in going.items() if name not in chosen and each.ours]
        leaving = {name: going[name] if name in going else self._goes(look.of(name)) for name in sorted(chosen)}
        resized = size == look.state.size
        if not resized and self._book.failure is not None and chosen == set(going):
            self._resize(look, size)  # it failed a moment ago, which is written down
            resized = True
        detail: dict[str, Any] = {} if size == look.state.size else {"size": size}
        told = [each.worker_id for name, each in leaving.items() if name not in going and each.ours]
        orders = [Order(each, CommandKind.UNCORDON) for each in back if each is not None]
        orders += [Order(each, CommandKind.DRAIN, self._drain) for each in told if each is not None]
        reason = decision.reason if decision.desired != look.staying else "instead"
        new = self._book.row(look.state.size, decision.desired, reason, Outcome.BEGUN)
        new = replace(new, inputs=story, detail=detail, going=leaving)
        row = self._store.add_decision(new, over=look.open, orders=orders)
        log.info("pool %s: %d units, %d wanted: %s", self._pool, look.state.size, decision.desired, decision.reason)
        self._hint(orders)
        if not resized:
            try:
                self._resize(look, size)
            except TargetFailed as failed:
                self._book.failure = failed.cause.message
                self._book.end(row, Outcome.DRAINING if leaving else Outcome.FAILED, detail | why(failed.cause))
                raise
        self._book.end(row, Outcome.DRAINING if leaving else Outcome.SCALED, detail)

    def _release(self, look: Look, row: ScaleDecision) -> None:
        """Begun with a target that is no longer ours: nobody would ever let them go, so they serve again."""
        told = [each.worker_id for each in row.going.values() if each.ours]
        orders = [Order(each, CommandKind.UNCORDON) for each in told if each is not None]
        new = self._book.row(look.state.size, look.state.size, "target", Outcome.HELD)
        why_not = {"why": f"the target was '{row.target}' and is '{self._target_name}' now"}
        self._store.add_decision(replace(new, detail=why_not), over=row, orders=orders)
        log.warning("pool %s: %s; %d workers serve again", self._pool, why_not["why"], len(orders))
        self._hint(orders)

    def _goes(self, member: Member) -> Going:
        return Going(
            self._lookout.today(), None if member.report is None else member.report.id, ours=not member.stays_out
        )

    def _go_on(self, look: Look, row: ScaleDecision) -> None:
        """With what is written down, by this leader or by another."""
        if not look.going:
            self._book.end(row, Outcome.SCALED if look.state.size == row.desired else Outcome.FAILED, row.detail)
            return
        row = self._tell_again(look, row)
        if look.sure and not look.unborn:
            self._remove(look, row, self._empty_ones(look))

    def _empty_ones(self, look: Look) -> set[str]:
        """Of those who are going who is empty, and has been for a moment."""
        leaving = {each.name: each for each in look.members if each.going is not None}
        known = {name: _incarnation(each) for name, each in leaving.items()}
        owners = self._store.owners_by_worker(sorted({each for each in known.values() if each is not None}))
        owns = {owner.worker_id for owner in owners}
        works = {owner.worker_id for owner in owners if owner.run_id is not None}
        silent = [name for name, each in leaving.items() if each.report is None]
        # Who reports no more may be an incarnation that this leader has never heard of: all of its name count.
        named = self._store.owning_names(silent, host=look.state.host) if silent else set()
        found = set()
        for name, each in leaving.items():
            owning = known[name] in owns or name in named
            empty = shrinking.may_go(each, self._rules.shrinking, owns=owning, works=known[name] in works)
            if self._lookout.since("empty", name, holds=empty) >= SETTLES.total_seconds():
                found.add(name)
        return found

    def _remove(self, look: Look, row: ScaleDecision, empty: set[str]) -> None:
        names = self._removable(look, empty)
        if not names:
            return
        removing = {name for name, each in look.going.items() if each.removing} | set(names)
        marked = {name: replace(row.going[name], removing=name in removing) for name in look.going}
        if marked != row.going:
            row = self._store.change_decision(
                row, outcome=Outcome.DRAINING, detail=row.detail, going=marked, by=self._holder
            )
        size = look.state.size - len(names)
        self._resize(look, size, victims=names)
        log.info("pool %s: %d units, gone: %s", self._pool, size, ", ".join(names))
        left = {name: each for name, each in marked.items() if name not in names}
        row = replace(row, going=left)
        self._busy = bool(left)
        detail = {**row.detail, "removed": [*row.detail.get("removed", ()), *names]}
        self._book.end(row, Outcome.DRAINING if left else Outcome.SCALED, detail)

    def _removable(self, look: Look, empty: set[str]) -> Sequence[str]:
        """As many of them as the target would really take if it shrank by so many."""
        best = [name for name in shrinking.order(look.members, self._rules.shrinking) if name in empty]
        for count in range(len(best), 0, -1):
            names = self._choose(look, best, count)
            if names and set(names) <= empty:
                return names
        return ()

    # --- the target ---

    def _choose(self, look: Look, best: Sequence[str], count: int) -> Sequence[str]:
        assert self._target is not None
        with asking():
            return self._target.choose(look.state, best, count)

    def _resize(self, look: Look, size: int, *, victims: Sequence[str] = ()) -> None:
        assert self._target is not None
        with asking():
            self._target.resize(look.state, size, victims=victims)

    # --- workers ---

    @property
    def _drain(self) -> Drain:
        return replace(self._rules.drain, stay=True)

    def _tell_again(self, look: Look, row: ScaleDecision) -> ScaleDecision:
        """Those that are going and still take runs: an incarnation that was never told, or one that does not do it."""
        orders, going = [], dict(row.going)
        for each in look.members:
            report, leaves = each.report, each.going
            if report is None or leaves is None or each.stays_out:
                continue
            known = leaves.worker_id == report.id
            if known and self._lookout.since("told", each.name, holds=True) < AGAIN.total_seconds():
                continue
            self._lookout.since("told", each.name, holds=False)
            orders.append(Order(report.id, CommandKind.DRAIN, self._drain))
            going[each.name] = replace(leaves, worker_id=report.id, ours=True)
        if orders:
            row = self._store.change_decision(
                row, outcome=row.outcome, detail=row.detail, going=going, by=self._holder, orders=orders
            )
            self._hint(orders)
        return row

    def _hint(self, orders: Sequence[Order]) -> None:
        if orders:
            hint(self._broker, [each.worker_id for each in orders])


def _incarnation(member: Member) -> WorkerId | None:
    """Which is alive, or was when it was chosen."""
    if member.report is not None:
        return member.report.id
    return None if member.going is None else member.going.worker_id
