"""Homes in SQL: what a session wishes for, when what it left may go, and where it is bound."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.core.model.artifact import archives
from oah.core.model.home import HomeMode, SessionHome, Worktree
from oah.core.model.ids import SessionId
from oah.core.model.run import Outcome, RunStatus
from oah.core.model.session import HoldReason
from oah.core.policy.retention import Aged, Rules
from oah.ports.homes import Leftover
from oah.ports.retention import Over
from oah.ports.store import (
    AlreadyActive,
    IsElsewhere,
    IsHeld,
    NothingEligible,
    Settlement,
    StartReply,
    Store,
)
from oah.ports.telemetry import NullTelemetry
from oah.services.tidy import Tidy
from tests.contract.test_store_retention import age_all, prune
from tests.support.store_clerk import Clerk, fence_of, started

S1, S2, GONE = SessionId("s1"), SessionId("s2"), SessionId("gone")
DAY = timedelta(days=1)
LOCAL = SessionHome(mode=HomeMode.LOCAL, host="h1", place="p1", cwd="/w")
KEY = archives(S1) + "00000001-x.tar"
PACKED = SessionHome(mode=HomeMode.ARCHIVED, host="h1", place="p1", cwd="/w", archive=KEY, generation=1)


def ran(store: Store, clerk: Clerk, home: SessionHome, session: str = "s1") -> None:
    clerk.submit(session)
    store.settle([Settlement(fence_of(clerk.start(session)), Outcome(RunStatus.COMPLETED, home=home))])


def test_a_session_keeps_the_worktree_that_it_was_made_with(store: Store, clerk: Clerk) -> None:
    found = store.session(S1, None)
    assert found.worktree is None
    wish = Worktree(repo="/repos/one", ref="main")
    assert store.create_session(replace(found, id=S2, worktree=wish)).worktree == wish
    clerk.submit("s2")
    assert clerk.start("s2").session.worktree == wish


def test_a_closed_session_is_over_once_it_is_old_and_nobody_has_it(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, LOCAL)
    clerk.session("s2")
    wanted = [S1, S2, GONE]
    age_all(clerk, 2 * DAY)
    assert store.over(wanted, DAY) == Over(unknown=frozenset({GONE})), "open"
    store.close_session(S1, None)
    assert store.over(wanted, DAY).closed == frozenset(), "young"
    age_all(clerk, 2 * DAY)
    assert store.over(wanted, DAY).closed == {S1}
    store.hold_session(S1, None, HoldReason.UNKILLABLE, until_in=None)
    assert store.over(wanted, DAY).closed == frozenset(), "a process of it may live"
    assert store.over([], DAY) == Over()


def test_a_session_with_an_owner_is_not_over(store: Store, clerk: Clerk) -> None:
    clerk.submit()
    begun = clerk.start()
    store.settle([Settlement(fence_of(begun), Outcome(RunStatus.COMPLETED), keep_owner=True)])
    store.close_session(S1, None)
    age_all(clerk, 2 * DAY)
    assert store.over([S1], DAY) == Over(), "its agent is warm"


class Place:
    """Leftovers of three sessions."""

    def __init__(self, old: timedelta) -> None:
        self.old = old
        self.removed: list[SessionId] = []

    def clear(self) -> None:
        pass

    def window(self, limit: int) -> list[Leftover]:
        return [Leftover(S1, self.old), Leftover(S2, self.old), Leftover(GONE, self.old)][:limit]

    def remove(self, session_id: SessionId) -> bool:
        self.removed.append(session_id)
        return True


@pytest.mark.parametrize(("old", "gone"), [(timedelta(0), [S1]), (2 * DAY, [GONE, S1])])
def test_tidying_removes_what_is_over_and_of_the_unknown_only_what_is_old(
    store: Store, clerk: Clerk, old: timedelta, gone: list[SessionId]
) -> None:
    clerk.session("s2")
    store.close_session(S1, None)
    age_all(clerk, 2 * DAY)
    place = Place(old)
    assert Tidy(store, place, NullTelemetry(), DAY)() == len(gone)
    assert place.removed == gone
    assert Tidy(store, place, NullTelemetry(), None)() == 0, "for ever"


def test_archives_of_closed_sessions_go_before_their_rows(store: Store, clerk: Clerk, tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    for key in (KEY, archives(S1) + "00000000-older.tar", archives(S2) + "1.tar"):
        blobs.put(key, b"x")
    clerk.session("s2")
    ran(store, clerk, PACKED)
    age_all(clerk, 8 * DAY)
    assert Aged.HOMES not in prune(clerk, blobs), "open"
    store.close_session(S1, None)
    age_all(clerk, 8 * DAY)
    assert prune(clerk, blobs)[Aged.HOMES] == 1
    assert list(blobs.keys("homes/")) == [archives(S2) + "1.tar"]
    left = store.session(S1, None).home
    assert left is not None and (left.archive, left.place) == (None, ""), "nobody has it"
    assert Aged.HOMES not in prune(clerk, blobs)
    blobs.put(KEY, b"x")
    assert prune(clerk, blobs, Rules(homes=None, runs=None)) == {}


def here(clerk: Clerk, place: str | None, session: str = "s1") -> StartReply:
    return clerk.try_start(replace(clerk.claim(session), place=place))[0]


def test_a_session_is_started_where_its_home_is(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, LOCAL)
    assert here(clerk, "p2") == NothingEligible(S1), "there is no run"
    clerk.submit()
    lane = store.session(S1, None).lane
    assert here(clerk, "p2") == IsElsewhere(S1, lane.at("p1"))
    assert clerk.store.attempts(store.queue_of(S1, limit=1)[0].id) == [], "nothing was begun"
    clerk.settle(started(here(clerk, "p1")))
    clerk.submit()
    started(here(clerk, None))


def test_who_has_the_session_comes_before_where_its_home_is(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, LOCAL)
    clerk.submit()
    clerk.submit()
    started(here(clerk, "p1"))
    assert isinstance(here(clerk, "p2"), AlreadyActive)


def test_a_held_session_is_held_wherever_its_home_is(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, LOCAL)
    clerk.submit()
    store.hold_session(S1, None, HoldReason.PAUSED, until_in=None)
    assert isinstance(here(clerk, "p2"), IsHeld)


@pytest.mark.parametrize("home", [PACKED, replace(LOCAL, mode=HomeMode.SHARED), replace(LOCAL, bound=False)])
def test_what_goes_on_anywhere_or_is_lost_is_started_anywhere(store: Store, clerk: Clerk, home: SessionHome) -> None:
    ran(store, clerk, home)
    clerk.submit()
    assert started(here(clerk, "p2")).session.home == home


def test_an_archived_home_that_could_not_be_packed_is_bound_to_its_host(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, replace(PACKED, archive=None))
    clerk.submit()
    assert isinstance(here(clerk, "p2"), IsElsewhere)


def test_a_home_whose_place_is_gone_binds_no_more(store: Store, clerk: Clerk) -> None:
    ran(store, clerk, LOCAL)
    assert store.unbind_homes([(S1, "another"), (GONE, "p1")]) == 0
    clerk.submit()
    assert isinstance(here(clerk, "p2"), IsElsewhere)
    assert store.unbind_homes([(S1, "p1")]) == 1
    assert store.unbind_homes([(S1, "p1")]) == 0
    assert started(here(clerk, "p2")).session.home == replace(LOCAL, bound=False)
