"""Decisions of scaling as rows: one open one for a pool, changed by compare-and-set, listed newest first, pruned."""

from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.drain import Drain
from oah.core.model.ids import WorkerId
from oah.core.model.scaling import Going
from oah.core.policy.retention import Aged
from oah.errors import Conflict, InvalidRequest
from oah.ports.audit import AuditFilter
from oah.ports.commands import CommandKind
from oah.ports.rollouts import Order
from oah.ports.scaling import DecisionFilter, NewDecision, Outcome, ScaleDecision
from tests.support.store_clerk import Clerk

SINCE = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
GOING = {"w-1": Going(SINCE, WorkerId("w-1.a")), "w-2": Going(SINCE, None, ours=False, removing=True)}

ORDERS = (
    Order(WorkerId("w-1.a"), CommandKind.DRAIN, Drain(timedelta(seconds=5), stay=True)),
    Order(WorkerId("w-3.a"), CommandKind.UNCORDON),
)


def new(number: int, outcome: Outcome = Outcome.BEGUN, *, pool: str = "default", **more: object) -> NewDecision:
    return NewDecision(
        id=f"dec_{number}",
        pool=pool,
        target="fake",
        holder="h",
        current=10,
        desired=4,
        reason="scale_down",
        outcome=outcome,
        **more,  # type: ignore[arg-type]
    )


def ids(clerk: Clerk, **where: object) -> list[str]:
    return [each.id for each in clerk.store.scale_decisions(DecisionFilter(**where)).items]  # type: ignore[arg-type]


def test_a_decision_is_read_as_it_was_written(clerk: Clerk) -> None:
    store = clerk.store
    assert store.open_decision("default") is None
    written = store.add_decision(new(1, going=GOING, inputs={"ready": 3}, detail={"size": 4}))
    assert store.open_decision("default") == written
    assert store.open_decision("other") is None
    assert (written.going, written.inputs, written.detail) == (GOING, {"ready": 3}, {"size": 4})
    changed = store.change_decision(written, outcome=Outcome.DRAINING, detail={}, going={"w-1": GOING["w-1"]}, by="h")
    assert store.open_decision("default") == changed
    assert (changed.at, changed.inputs, list(changed.going)) == (written.at, {"ready": 3}, ["w-1"])
    done = store.change_decision(changed, outcome=Outcome.SCALED, detail={"removed": ["w-1"]}, going={}, by="h")
    assert store.open_decision("default") is None
    assert store.scale_decisions(DecisionFilter()).items == (done,)


def test_commands_are_given_with_the_row_that_they_follow_from(clerk: Clerk) -> None:
    store = clerk.store
    row = store.add_decision(new(1, going=GOING), orders=ORDERS)
    [first, second] = [store.take_commands(order.worker_id) for order in ORDERS]
    assert [(each.kind, each.by, each.data) for each in (*first, *second)] == [
        (CommandKind.DRAIN, "controller:h", {"deadline_ms": 5000, "stay": True}),
        (CommandKind.UNCORDON, "controller:h", {}),
    ]
    store.change_decision(row, outcome=Outcome.DRAINING, detail={}, going={}, by="other", orders=ORDERS[:1])
    assert [each.by for each in store.take_commands(ORDERS[0].worker_id)] == ["controller:other"]
    assert {each.action for each in store.audit_rows(AuditFilter()).items} == {"worker.drain", "worker.uncordon"}


def test_of_two_leaders_one_writes(clerk: Clerk) -> None:
    store = clerk.store
    read = store.add_decision(new(1, going=GOING))
    with pytest.raises(Conflict) as caught:
        store.add_decision(new(2), orders=ORDERS)
    assert caught.value.code == "scaling_taken"
    store.add_decision(new(3, pool="other"))
    store.add_decision(new(4, Outcome.FAILED))
    store.change_decision(read, outcome=Outcome.DRAINING, detail={}, going=GOING, by="h")
    for late in (
        lambda: store.change_decision(read, outcome=Outcome.SCALED, detail={}, going={}, by="h", orders=ORDERS),
        lambda: store.add_decision(new(5), over=read, orders=ORDERS),
    ):
        with pytest.raises(Conflict):
            late()
    assert store.take_commands(WorkerId("w-1.a")) == [], "nothing of what lost"
    current = store.open_decision("default")
    assert current is not None and current.outcome is Outcome.DRAINING
    after = store.add_decision(new(6, going=GOING), over=current)
    assert store.open_decision("default") == after
    assert {each.id: each.outcome for each in store.scale_decisions(DecisionFilter(pool="default")).items} == {
        "dec_6": Outcome.BEGUN,
        "dec_4": Outcome.FAILED,
        "dec_1": Outcome.OVERTAKEN,
    }


def test_they_are_listed_by_pages_and_pools(clerk: Clerk) -> None:
    for number in range(5):
        clerk.store.add_decision(new(number, Outcome.SCALED, pool="a" if number % 2 else "b"))
    assert ids(clerk) == ["dec_4", "dec_3", "dec_2", "dec_1", "dec_0"]
    assert ids(clerk, pool="a") == ["dec_3", "dec_1"]
    first = clerk.store.scale_decisions(DecisionFilter(limit=3))
    assert len(first.items) == 3
    assert ids(clerk, limit=3, cursor=first.next_cursor) == ["dec_1", "dec_0"]
    for wrong in (DecisionFilter(limit=0), DecisionFilter(cursor="x")):
        with pytest.raises(InvalidRequest):
            clerk.store.scale_decisions(wrong)


def test_what_is_done_ages_out(clerk: Clerk) -> None:
    store = clerk.store
    store.add_decision(new(1, Outcome.SCALED))
    kept: ScaleDecision = store.add_decision(new(2, going=GOING))
    assert store.prune(Aged.SCALE_DECISIONS, timedelta(days=1), after=None, limit=10).count == 0
    gone = store.prune(Aged.SCALE_DECISIONS, timedelta(0), after=None, limit=10)
    assert (gone.count, ids(clerk)) == (1, [kept.id])
