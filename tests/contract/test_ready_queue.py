"""The ready queue against SQL: what is wrong is found on two looks and put right, on every database and server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.core.model.ids import SessionId
from oah.core.model.session import HoldReason, Place
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.ready_faults import Fault
from oah.errors import InvalidRequest, NotFound
from oah.ports.broker import Target
from oah.services.decisions import Decisions
from oah.services.ready_queue import Look, ReadyQueue
from oah.services.tend_ready import TendReady
from tests.support.broker_desk import LANE, Desk
from tests.support.clock import StillClock
from tests.support.store_clerk import Clerk

LEASE = timedelta(seconds=6)
SINCE = "oah:{0}:ready:since:pool/shell:interactive"


class Scene:
    """Both stores in one epoch."""

    def __init__(self, clerk: Clerk, desk: Desk) -> None:
        self.clerk, self.desk = clerk, desk
        self.meanwhile: Callable[[], object] = lambda: None
        self.pauses = 0
        self.queue = ReadyQueue(clerk.store, desk.broker, lease=LEASE, pause=self._pause)
        assert clerk.store.mint_epoch(desk.epoch, over=None)

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        self.meanwhile()

    def session(self, name: str, *, runs: int = 1, heard: bool = True) -> SessionId:
        self.clerk.session(name, lane=LANE)
        for _ in range(runs):
            self.clerk.submit(name)
        if heard:
            self.hear(name)
        return SessionId(name)

    def hear(self, name: str) -> None:
        self.desk.hear(name, ws=DEFAULT_WORKSPACE)

    def looks(self, **more: int) -> list[Look]:
        return list(self.queue.walk(**more))

    def faults(self, **more: int) -> dict[Fault, list[str]]:
        found: dict[Fault, list[str]] = {}
        for look in self.looks(**more):
            for fault, names in look.faults.items():
                found[fault] = sorted({*found.get(fault, []), *names})
        return found

    def mend(self) -> list[str]:
        return sorted({name for look in self.looks() for name in self.queue.mend(look)})


@pytest.fixture
def scene(clerk: Clerk, desk: Desk) -> Scene:
    return Scene(clerk, desk)


def test_nothing_is_wrong_page_by_page(scene: Scene) -> None:
    for n in range(7):
        scene.session(f"n{n}", runs=2)
    (claimed,) = scene.desk.claim().sessions
    scene.clerk.start(claimed.session_id, claimed.token)
    (parked,) = scene.desk.claim().sessions
    scene.clerk.settle(scene.clerk.start(parked.session_id, parked.token), keep=True)
    scene.desk.free(parked.session_id, parked.token, Target.PARKED)
    looks = scene.looks(limit=2)
    assert scene.pauses == 0
    assert [look.faults for look in looks] == [{}] * len(looks)
    looked = {part: sum(look.looked for look in looks if look.part == part) for part in ("sessions", "owners", "ready")}
    assert looked == {"sessions": 7, "owners": 2, "ready": 10}, "each ready session by age and in its workspace's set"
    assert scene.mend() == []


def test_what_was_forgotten_gets_its_place_and_what_is_held_loses_it(scene: Scene) -> None:
    scene.session("lost", heard=False)
    held = scene.session("held")
    scene.clerk.store.hold_session(held, None, HoldReason.PAUSED, until_in=None)
    assert scene.faults() == {Fault.NO_PLACE: ["lost"], Fault.READY_WHILE_HELD: ["held"]}
    assert scene.mend() == ["held", "lost"]
    assert (scene.desk.place("lost"), scene.desk.place("held")) == (Place.READY, Place.HELD)
    assert scene.faults() == {}


def test_what_has_nothing_to_start_or_is_nobodys_goes(scene: Scene) -> None:
    scene.session("good")
    scene.session("empty", runs=0)
    scene.hear("nobodys")
    assert scene.faults() == {Fault.STALE: ["empty"], Fault.FOREIGN: ["nobodys"]}
    assert scene.mend() == ["empty", "nobodys"]
    assert {name: scene.desk.place(name) for name in ("good", "empty", "nobodys")} == {
        "good": Place.READY,
        "empty": Place.IDLE,
        "nobodys": Place.IDLE,
    }
    assert scene.faults() == {}


def test_entries_that_no_record_confirms_go_and_torn_ones_are_whole_again(scene: Scene) -> None:
    scene.session("torn")
    key = scene.desk.client.keys("oah:{0}:ready:pool/shell:interactive:*")[0]
    scene.desk.client.delete(key)
    scene.desk.client.zadd(SINCE, {"stray": 1})
    assert scene.faults() == {Fault.TORN: ["torn"], Fault.STRAY: ["stray"]}
    assert scene.mend() == ["stray", "torn"]
    assert scene.faults() == {}
    assert [claimed.session_id for claimed in scene.desk.claim(want=5).sessions] == ["torn"]
    scene.desk.client.flushall()


def test_what_is_over_at_the_second_look_was_no_fault(scene: Scene) -> None:
    scene.session("late", heard=False)
    scene.session("empty", runs=0)
    happens = [lambda: scene.clerk.submit("empty"), lambda: scene.hear("late")]
    scene.meanwhile = lambda: happens.pop()()
    assert scene.faults() == {}
    assert scene.pauses == 2


def test_a_run_that_comes_while_its_session_is_taken_out_is_not_lost(scene: Scene) -> None:
    empty = scene.session("empty", runs=0)
    looks = scene.looks()
    scene.clerk.submit("empty")
    for look in looks:
        scene.queue.mend(look)
    assert scene.desk.place(empty) is Place.READY


def test_owners_are_the_leaders(scene: Scene) -> None:
    scene.session("owned")
    (claimed,) = scene.desk.claim().sessions
    scene.clerk.start("owned", claimed.token)
    scene.desk.free("owned", claimed.token, Target.IDLE)
    scene.session("leased")
    scene.desk.claim()
    assert scene.faults() == {Fault.OWNER_WITHOUT_LEASE: ["owned"], Fault.LEASE_WITHOUT_OWNER: ["leased"]}
    assert scene.mend() == []
    scene.clerk.behind.age_owner("owned", timedelta(minutes=1))
    assert scene.faults()[Fault.STALE_OWNER] == ["owned"]


def test_the_broker_is_told_of_everything_once_more(scene: Scene) -> None:
    for n in range(5):
        scene.session(f"n{n}", heard=False)
    cursor, told = None, 0
    while True:
        told += scene.queue.reconcile(cursor, limit=2)
        cursor = scene.queue.look(cursor, limit=2).next_cursor
        if cursor is None:
            break
    assert told == 5
    assert scene.faults() == {}


def test_the_leader_tends_the_sets_page_by_page(scene: Scene) -> None:
    clock, telemetry = StillClock(), PrometheusTelemetry(process="test", version="1")
    tend = TendReady(scene.clerk.store, scene.desk.broker, clock, telemetry, Decisions(clock), LEASE, page=2)
    scene.session("good")
    scene.session("lost", heard=False)
    scene.session("empty", runs=0)
    scene.hear("nobodys")
    scene.desk.client.zadd(SINCE, {"stray": 1})
    mended = 0
    for _ in range(12):
        tend.look()
        assert tend.look_again() == 0, "two seconds have not passed"
        clock.seconds += 2
        mended += tend.look_again()
    assert mended == 3
    assert scene.faults() == {Fault.NO_PLACE: ["lost"]}, "that one is reconcile's"
    assert telemetry.value("oah_queue_repairs_total", by="leader") == 3


def test_a_cursor_that_is_none(scene: Scene) -> None:
    for cursor in ("", "nowhere", "ready,x", "ready,pool/shell,interactive,zz,0", "ready,a,b,c,d,e"):
        with pytest.raises(InvalidRequest):
            scene.queue.look(cursor)


def test_before_the_first_epoch(clerk: Clerk, desk: Desk) -> None:
    with pytest.raises(NotFound):
        ReadyQueue(clerk.store, desk.broker, lease=LEASE, pause=lambda _: None).look()
