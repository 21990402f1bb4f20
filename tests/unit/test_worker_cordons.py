"""Which cordons end with a life, and which stand."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.core.model.cordon import Cordon
from oah.core.model.ids import WorkerId
from oah.errors import Unavailable
from oah.ports.commands import KEPT, CommandKind, WorkerCommand
from oah.worker.cordons import AGAIN, Cordons
from tests.support.clock import StillClock
from tests.support.waiting import eventually
from tests.support.worker_doubles import Scripted, context

OP = Cordon(
    host="ant", name="w", pool="default", worker_id=WorkerId("w.1"), by="op", at=datetime(2030, 1, 1, tzinfo=UTC)
)
FOR = replace(OP, until=datetime(2030, 1, 1, 0, 0, 20, tzinfo=UTC), left=timedelta(seconds=20))


def command(*, kept: bool) -> WorkerCommand:
    return WorkerCommand(1, WorkerId("w.1"), CommandKind.CORDON, "op", data={KEPT: True} if kept else {})


class Rig:
    def __init__(self, *rows: Any) -> None:
        self.clock = StillClock()
        self.store = Scripted(cordon_of=list(rows))
        self.taking, self.turns = True, 0
        self.cordons = Cordons(context(self.store, Scripted(), clock=self.clock), turned=self.turned)

    def turned(self, *, cordoned: bool) -> None:
        self.taking = not cordoned
        self.turns += 1

    def after(self, seconds: float) -> bool:
        self.clock.seconds += seconds
        self.cordons()
        return self.taking


def test_a_successor_is_cordoned_before_it_claims_and_until_the_time_is_over() -> None:
    rig = Rig(FOR, replace(FOR, left=timedelta(seconds=15)), None)
    assert not rig.after(0), "before the first claim"
    assert not rig.after(5), "once more, with the first heartbeat: now it is in the registry"
    assert not rig.after(14) and rig.store.called("cordon_of") == 2
    assert rig.after(1) and rig.cordons.kept is None


def test_one_that_came_before_the_successor_was_in_the_registry_is_seen_with_its_first_heartbeat() -> None:
    rig = Rig(None, OP)
    assert rig.after(0)
    assert not rig.after(1) and rig.cordons.kept == OP


def test_when_nothing_is_said_it_looks_now_and_then() -> None:
    rig = Rig(None, None, OP)
    rig.after(0)
    rig.after(1)
    assert rig.after(AGAIN - 1) and rig.store.called("cordon_of") == 2
    assert rig.turns == 0, "nobody is told of what has not changed"
    assert not rig.after(1)


def test_what_an_operator_wants_kept_is_taken_back_with_its_row_alone() -> None:
    """Who scales uncordons whom it has drained; the operator's cordon stands."""
    rig = Rig(OP, OP, OP, None)
    rig.after(0)
    rig.cordons.of_this_life()
    rig.cordons.end()
    assert not rig.taking
    rig.cordons.end()
    assert not rig.taking
    rig.cordons.end()
    assert rig.taking


def test_the_end_of_a_kept_one_leaves_what_this_life_was_told() -> None:
    rig = Rig(None)
    rig.cordons.of_this_life()
    assert not rig.after(0) and not rig.after(AGAIN)
    rig.cordons.end()
    assert rig.taking


def test_what_was_read_before_a_command_takes_nothing_back() -> None:
    """The heartbeat reads, then the ear hears of a cordon, then the heartbeat goes on with what it has read."""
    rig = Rig(None)
    heard = threading.Thread(target=lambda: rig.cordons.begin(command(kept=True)))

    def meanwhile(host: str, name: str) -> None:
        rig.store.answers["cordon_of"] = [OP]
        heard.start()
        eventually(lambda: not rig.taking, within=10, what="the ear has heard")

    rig.store.answers["cordon_of"] = [meanwhile]
    rig.cordons()
    assert not rig.taking
    heard.join(10)
    assert (rig.taking, rig.cordons.kept) == (False, OP)


@pytest.mark.parametrize("kept", [False, True])
def test_a_command_counts_although_the_row_cannot_be_read(*, kept: bool) -> None:
    rig = Rig(None, None, Unavailable("away"), Unavailable("away"), OP if kept else None)
    rig.after(0)
    rig.after(0)
    if kept:
        with pytest.raises(Unavailable):
            rig.cordons.begin(command(kept=True))
        assert not rig.taking
        with pytest.raises(Unavailable):
            rig.after(5)
    else:
        rig.cordons.begin(command(kept=False))
        with pytest.raises(Unavailable):
            rig.cordons.end()
        assert rig.taking, "none was kept when it was last seen"
        with pytest.raises(Unavailable):
            rig.after(5)
    assert rig.after(5) is not kept
    assert (rig.cordons.kept is None) is not kept
