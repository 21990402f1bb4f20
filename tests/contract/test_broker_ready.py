"""Entries of the ready sets that no record confirms, found and removed, on every kind of server."""

from __future__ import annotations

import pytest

from oah.core.model.ids import WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.session import Place
from oah.ports.broker import WorkspaceLimit
from oah.ports.ready import Fit, ReadyEntry, ReadySet
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, WS, Desk

AGES = ReadySet(LANE, INTERACTIVE)
TAKEN_FROM = ReadySet(LANE, INTERACTIVE, WS)
SINCE = "oah:{0}:ready:since:pool/shell:interactive"
READY = "oah:{0}:ready:pool/shell:interactive:ws"


def entries(desk: Desk, where: ReadySet = AGES, *, first: int = 0, limit: int = 1000) -> dict[str, Fit]:
    found = desk.broker.ready_entries(desk.epoch, where, first=first, limit=limit)
    assert {each.ready_set for each in found} <= {where}
    return {each.session_id: each.fit for each in found}


def weed(desk: Desk, where: ReadySet, *sessions: str) -> int:
    listed = desk.broker.ready_entries(desk.epoch, where, first=0, limit=1000)
    return desk.broker.weed(desk.epoch, [each for each in listed if not sessions or each.session_id in sessions])


def test_the_sets_that_are_not_empty(desk: Desk) -> None:
    assert desk.broker.ready_sets() == []
    desk.hear("a")
    desk.hear("b", cls=BACKGROUND, ws="other")
    desk.broker.limits(desk.epoch, [WorkspaceLimit(WorkspaceId("full"), 1, 0)])
    desk.hear("c", ws="full")
    desk.claim()
    desk.hear("d")
    full, other = WorkspaceId("full"), WorkspaceId("other")
    assert desk.broker.ready_sets() == [
        ReadySet(LANE, BACKGROUND),
        ReadySet(LANE, BACKGROUND, other),
        AGES,
        ReadySet(LANE, INTERACTIVE, full),
        TAKEN_FROM,
    ]


def test_a_stretch_of_a_set_in_the_order_of_age(desk: Desk) -> None:
    for n in range(5):
        desk.hear(f"s{n}")
        desk.pass_time(1)
    assert list(entries(desk, first=1, limit=3)) == ["s1", "s2", "s3"]
    assert set(entries(desk).values()) == set(entries(desk, TAKEN_FROM).values()) == {Fit.WELL}


@pytest.mark.parametrize(("where", "key"), [(AGES, SINCE), (TAKEN_FROM, READY)])
def test_an_entry_that_nothing_confirms_is_removed(desk: Desk, where: ReadySet, key: str) -> None:
    token = desk.take("leased")
    desk.hear("a")
    desk.client.zadd(key, {"stray": 1, "leased": 2})
    assert entries(desk, where) == {"stray": Fit.STRAY, "leased": Fit.STRAY, "a": Fit.WELL}
    assert weed(desk, where) == 2
    assert entries(desk, where) == {"a": Fit.WELL}
    assert desk.place("leased") is Place.LEASED and token, "where it stands is not touched"
    assert weed(desk, where) == 0


def test_a_ring_does_not_keep_a_workspace_of_strays(desk: Desk) -> None:
    desk.hear("a", ws="gone")
    desk.client.delete("oah:{0}:session:a", "oah:{0}:session:a:queue")
    where = ReadySet(LANE, INTERACTIVE, WorkspaceId("gone"))
    assert entries(desk, where) == {"a": Fit.STRAY}
    assert weed(desk, where) == 1 and weed(desk, AGES) == 1
    assert desk.broker.ready_sets() == []
    assert desk.client.zcard("oah:{0}:ring:pool/shell:interactive") == 0


@pytest.mark.parametrize("lost", [SINCE, READY, "oah:{0}:ring:pool/shell:interactive"])
def test_a_session_that_an_index_lacks_is_torn_and_ensure_mends_it(desk: Desk, lost: str) -> None:
    desk.hear("a")
    desk.client.delete(lost)
    desk.client.sadd("oah:{0}:lanes", "pool/shell")
    found = {**entries(desk), **entries(desk, TAKEN_FROM)}
    assert found == {"a": Fit.TORN}
    assert weed(desk, AGES) == weed(desk, TAKEN_FROM) == 0, "its record stands"
    desk.ensure("a")
    assert entries(desk) == entries(desk, TAKEN_FROM) == {"a": Fit.WELL}


def test_what_is_no_stray_any_more_stays(desk: Desk) -> None:
    desk.client.zadd(SINCE, {"stray": 1})
    desk.client.sadd("oah:{0}:lanes", "pool/shell")
    (seen,) = desk.broker.ready_entries(desk.epoch, AGES, first=0, limit=10)
    desk.hear("stray")
    assert desk.broker.weed(desk.epoch, [seen]) == 0
    assert (
        desk.broker.weed(desk.epoch, [ReadyEntry(ReadySet(Lane("no", "lane"), INTERACTIVE), seen.session_id, seen.fit)])
        == 0
    )
    assert desk.broker.weed(desk.epoch, []) == 0


def test_a_lane_that_lost_its_index_and_was_dropped_is_seen_again(desk: Desk) -> None:
    desk.hear("a")
    desk.client.delete(SINCE)
    desk.broker.tick(desk.epoch, limit=1)
    assert desk.broker.ready_sets() == []
    desk.ensure("a")
    assert desk.broker.ready_sets() == [AGES, TAKEN_FROM]
    assert sum(depth.sessions for depth in desk.broker.figures().ready) == 1
