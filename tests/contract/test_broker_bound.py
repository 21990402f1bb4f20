"""Sessions whose home is on one host: claimed elsewhere once, then by that host alone, until it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.adapters.redis import keys
from oah.core.model.ids import SessionId, WorkerId
from oah.core.model.run import PRIORITY, ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.core.model.worker import WorkerReport, WorkerState
from oah.ports.broker import Bind, Bound, Target, Unbind
from oah.services.host_bound import HostBound
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, LEASE, ORDER, W1, W2, Desk, S

SECOND = timedelta(seconds=1)
WAIT = timedelta(seconds=30)
THERE = LANE.at("beef")
THERE_TOO = (*ORDER, *((THERE, ready_class) for ready_class in PRIORITY))


def bind(desk: Desk, token: str, cls: ReadyClass = INTERACTIVE) -> Place | None:
    [freed] = desk.broker.bind(desk.epoch, [Bind(S, token, cls, "beef", WAIT)])  # type: ignore[arg-type]
    return freed.place


def claimed(desk: Desk, worker: WorkerId, order: Any = ORDER) -> list[str]:
    return [each.session_id for each in desk.claim(worker, want=9, order=order).sessions]


def serve(desk: Desk, *, ago: float = 0.0) -> None:
    report = WorkerReport(
        id=W2, name="two", host="h", pid=1, pool="pool", profiles=("shell",), state=WorkerState.IDLE, slots=1, busy=0,
        parked=0, cordoned=False, draining=False, version="0", started_at=datetime.now(UTC),
    )  # fmt: skip
    desk.broker.report(report, ttl=timedelta(seconds=60), serves=[THERE])
    if ago:
        score = desk.client.zscore(keys.SERVED.at(), str(THERE))
        desk.client.zadd(keys.SERVED.at(), {str(THERE): score - ago * 1000})


def test_only_workers_of_its_host_find_a_bound_session(desk: Desk) -> None:
    token = desk.take()
    assert bind(desk, token) is Place.READY
    desk.audit()
    assert claimed(desk, W1) == []
    desk.hear("other")
    assert claimed(desk, W1) == ["other"]
    assert claimed(desk, W2, THERE_TOO) == [S]
    desk.audit()
    assert desk.broker.tick(desk.epoch, limit=9).bound == ()


def test_a_bound_session_keeps_its_place_and_wakes_its_host(desk: Desk) -> None:
    token = desk.take()
    score = desk.client.hget("oah:{0}:session:s", "score")
    assert bind(desk, token, BACKGROUND) is Place.READY
    assert desk.client.hget("oah:{0}:session:s", "score") == score
    assert desk.client.llen(keys.WAKE.at(str(THERE))) == 1
    desk.hear(cls=INTERACTIVE)
    assert desk.view().ready_class is INTERACTIVE, "a better run raises it where it is"
    desk.audit()


def test_binding_needs_the_token_and_can_be_repeated(desk: Desk) -> None:
    token = desk.take()
    assert bind(desk, "f" * 32) is None
    assert bind(desk, token) is Place.READY
    assert bind(desk, token) is Place.READY, "the first answer was lost"
    assert claimed(desk, W1) == []


@pytest.mark.parametrize("how", ["hold", "cancel", "free", "release", "recover"])
def test_whatever_moves_it_ends_the_binding(desk: Desk, how: str) -> None:
    bind(desk, desk.take())
    if how in ("free", "release", "recover"):
        [taken] = desk.claim(W2, order=THERE_TOO).sessions
    match how:
        case "hold":
            desk.hold(S, HoldReason.PAUSED)
        case "cancel":
            desk.cancel()
        case "free":
            desk.free(S, taken.token, Target.IDLE)
        case "release":
            desk.release(S, taken.token)
        case "recover":
            desk.recover(S, taken.token, Target.READY, ready_class=INTERACTIVE)
    desk.audit()
    if how in ("release", "recover"):
        assert claimed(desk, W1) == [S], "whoever takes it next finds out anew"


def test_the_tick_asks_once_its_time_has_come_and_heals_what_was_lost(desk: Desk) -> None:
    bind(desk, desk.take())
    assert desk.broker.tick(desk.epoch, limit=9).bound == ()
    desk.pass_time(31)
    assert desk.broker.tick(desk.epoch, limit=9).bound == (Bound(S, THERE),)
    assert desk.broker.unbind(desk.epoch, [Unbind(S, WAIT)]) == [Place.READY]
    assert desk.broker.tick(desk.epoch, limit=9).bound == ()
    desk.client.delete(keys.AFFINITY.at())
    assert desk.broker.tick(desk.epoch, limit=9).bound == (Bound(S, THERE),)
    assert desk.broker.unbind(desk.epoch, [Unbind(S)]) == [Place.READY]
    assert claimed(desk, W1) == [S]
    assert desk.broker.unbind(desk.epoch, [Unbind(S), Unbind(SessionId("nobody"))]) == [Place.LEASED, Place.IDLE]


def test_nothing_of_a_host_that_is_gone_stays(desk: Desk) -> None:
    for _ in range(3):
        bind(desk, desk.take())
        desk.broker.unbind(desk.epoch, [Unbind(S)])
        assert claimed(desk, W1) == [S]
        desk.free(S, desk.view().token or "", Target.IDLE)
    desk.broker.tick(desk.epoch, limit=9)
    assert [key for key in desk.client.keys("*") if b"beef" in key] == []
    assert [f for key in (b"oah:{0}:ws:ws", b"oah:{0}:rings") for f in desk.client.hkeys(key) if b"beef" in f] == []


# -- the service --


class Homes:
    """What SQL was told."""

    def __init__(self) -> None:
        self.unbound: list[tuple[SessionId, str]] = []

    def unbind_homes(self, sessions: Sequence[tuple[SessionId, str]]) -> int:
        self.unbound += sessions
        return len(sessions)


def service(desk: Desk) -> tuple[HostBound, Homes]:
    homes = Homes()
    return HostBound(homes, desk.broker, WAIT), homes  # type: ignore[arg-type]


def test_a_host_that_is_there_is_waited_for_however_long(desk: Desk) -> None:
    bound, homes = service(desk)
    desk.hear()
    bound.hand_over(desk.epoch, [(desk.claim().sessions[0], THERE)])
    for _ in range(3):
        desk.pass_time(31)
        serve(desk, ago=5)
        assert bound.look(desk.epoch, desk.broker.tick(desk.epoch, limit=9).bound) == 0
        desk.pass_time(24)
        assert desk.broker.tick(desk.epoch, limit=9).bound == (), "asked again when it may have been gone for long"
    assert (homes.unbound, claimed(desk, W1), claimed(desk, W2, THERE_TOO)) == ([], [], [S])


def test_a_host_that_is_gone_is_given_up(desk: Desk) -> None:
    bound, homes = service(desk)
    desk.hear()
    serve(desk, ago=5)
    bound.hand_over(desk.epoch, [(desk.claim().sessions[0], THERE)])
    desk.pass_time(31)
    serve(desk, ago=31)
    assert bound.look(desk.epoch, desk.broker.tick(desk.epoch, limit=9).bound) == 1
    assert (homes.unbound, claimed(desk, W1)) == ([(S, "beef")], [S])


def test_a_host_that_has_been_gone_for_long_is_not_waited_for_at_all(desk: Desk) -> None:
    bound, homes = service(desk)
    desk.hear()
    serve(desk, ago=31)
    bound.hand_over(desk.epoch, [(desk.claim().sessions[0], THERE)])
    assert (homes.unbound, claimed(desk, W1)) == ([(S, "beef")], [S])


def test_a_host_of_which_nothing_is_known_is_waited_for_once(desk: Desk) -> None:
    """Redis was emptied a moment ago, or the host has not been there for days."""
    bound, homes = service(desk)
    desk.hear()
    bound.hand_over(desk.epoch, [(desk.claim().sessions[0], THERE)])
    assert claimed(desk, W1) == []
    desk.pass_time(31)
    assert bound.look(desk.epoch, desk.broker.tick(desk.epoch, limit=9).bound) == 1
    assert claimed(desk, W1) == [S]
    assert LEASE < WAIT
