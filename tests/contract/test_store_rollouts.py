"""Rolling restarts: one open per pool, moved by who read it last, its commands with it or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.drain import AtDeadline, Drain, drain_from
from oah.core.model.ids import WorkerId
from oah.core.model.rollout import Member, Rollout, RolloutRules, RolloutState, Stage
from oah.core.policy.retention import Aged
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.commands import CommandKind
from oah.ports.rollouts import Order
from tests.support.store_clerk import Clerk

W1, W2 = WorkerId("w1.aaaa"), WorkerId("w2.bbbb")
RULES = RolloutRules(
    batch=2,
    drain=Drain(timedelta(seconds=90), AtDeadline.WAIT),
    settle=timedelta(seconds=1.5),
    health=timedelta(minutes=2),
    version="2.0.0",
)


def members() -> tuple[Member, ...]:
    return (
        Member(W2, "w2", "zoo", "1.0.0", ("shell", "exec"), cordoned=True),
        Member(W1, "w1", "ant", "1.0.0", (), stage=Stage.SKIPPED, reason="it is gone"),
    )


def begin(clerk: Clerk, number: int = 1, pool: str = "default") -> Rollout:
    return clerk.store.create_rollout(f"ro_{number}", pool, members(), RULES, by="ops", reason="new image")


def test_a_rollout_is_kept_as_it_was_asked_for(clerk: Clerk) -> None:
    made = begin(clerk)
    assert (made.pool, made.rules, made.members, made.reason) == ("default", RULES, members(), "new image")
    assert (made.state, made.revision, made.ended_at, made.created_by) == (RolloutState.RUNNING, 0, None, "ops")
    assert clerk.store.rollout("ro_1") == made == clerk.store.open_rollouts()[0]
    with pytest.raises(NotFound):
        clerk.store.rollout("ro_2")


def test_one_of_a_pool_at_a_time(clerk: Clerk) -> None:
    first = begin(clerk)
    with pytest.raises(Conflict) as caught:
        begin(clerk, 2)
    assert caught.value.code == "rollout_open"
    begin(clerk, 3, pool="gpu")
    assert [one.id for one in clerk.store.open_rollouts()] == ["ro_1", "ro_3"]
    assert clerk.store.save_rollout(replace(first, state=RolloutState.COMPLETED), [], by="leader")
    begin(clerk, 4)
    assert [one.id for one in clerk.store.open_rollouts()] == ["ro_3", "ro_4"]
    page = clerk.store.rollouts(pool="default", limit=1)
    assert [one.id for one in page.items] == ["ro_4"]
    assert [one.id for one in clerk.store.rollouts(pool="default", cursor=page.next_cursor).items] == ["ro_1"]
    assert len(clerk.store.rollouts().items) == 3
    with pytest.raises(InvalidRequest):
        clerk.store.rollouts(cursor="?")


def test_of_two_leaders_one_moves_it_and_only_its_commands_are_given(clerk: Clerk) -> None:
    read = begin(clerk)
    moment = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    going = replace(read.members[0], stage=Stage.DRAINING, since=moment, told_at=moment, successor=W1)
    moved = replace(read, members=(going, read.members[1]))
    orders = [Order(W2, CommandKind.DRAIN, RULES.drain), Order(W1, CommandKind.CORDON)]
    assert clerk.store.save_rollout(moved, orders, by="leader-1")
    assert not clerk.store.save_rollout(replace(read, members=()), [Order(W1, CommandKind.DRAIN)], by="leader-2")
    now = clerk.store.rollout("ro_1")
    assert (now.members, now.revision) == (moved.members, 1) and now.updated_at > read.updated_at
    [drain], [cordon] = clerk.store.take_commands(W2), clerk.store.take_commands(W1)
    assert (drain.kind, drain_from(drain.data), drain.by) == (CommandKind.DRAIN, RULES.drain, "leader-1")
    assert cordon.kind is CommandKind.CORDON


def test_only_one_that_has_ended_ages_out(clerk: Clerk) -> None:
    begin(clerk)
    assert clerk.store.prune(Aged.ROLLOUTS, timedelta(0), after=None, limit=10).count == 0
    clerk.store.save_rollout(replace(clerk.store.rollout("ro_1"), state=RolloutState.COMPLETED), [], by="leader")
    assert clerk.store.prune(Aged.ROLLOUTS, timedelta(days=1), after=None, limit=10).count == 0
    assert clerk.store.prune(Aged.ROLLOUTS, timedelta(0), after=None, limit=10).count == 1
    assert clerk.store.rollouts().items == ()


def test_its_end_is_final_and_written_down(clerk: Clerk) -> None:
    read = begin(clerk)
    failed = replace(read, state=RolloutState.FAILED, error="w2 on zoo: it does not end" + "." * 5000)
    assert clerk.store.save_rollout(failed, [], by="leader")
    ended = clerk.store.rollout("ro_1")
    assert ended.state is RolloutState.FAILED and ended.ended_at is not None
    assert ended.error is not None and ended.error.startswith("w2 on zoo")
    assert not clerk.store.save_rollout(replace(ended, state=RolloutState.RUNNING), [], by="late")
    rows = clerk.behind.query("SELECT actor, action, subject FROM audit ORDER BY id")
    assert rows == [("ops", "rollout.started", "default"), ("leader", "rollout.failed", "default")]
