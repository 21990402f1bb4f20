"""Pauses and caps as rows, and what they say to runs that wait, on every database."""

from __future__ import annotations

import pytest

from oah.core.model.group import ALL, Group, GroupKind, of_pool, of_profile, of_workspace
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.run import RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.waiting import Cap as CapView
from oah.errors import InvalidRequest, NotFound
from oah.ports.audit import AuditFilter
from oah.ports.pauses import IsPaused
from oah.ports.store import AlreadyActive, NothingEligible
from tests.support.store_clerk import Clerk

OURS = of_workspace(DEFAULT_WORKSPACE)


def _deeds(clerk: Clerk) -> list[tuple[str, str, str]]:
    return [(row.actor, row.action, row.subject) for row in clerk.store.audit_rows(AuditFilter()).items][::-1]


def test_a_pause_is_one_row_and_the_first_counts(clerk: Clerk) -> None:
    first = clerk.store.pause_group(OURS, by="key:1", reason="night")
    assert clerk.store.pause_group(OURS, by="key:2") == first
    assert (first.group, first.by, first.reason) == (OURS, "key:1", "night")
    clerk.store.pause_group(ALL, by="key:1")
    assert [each.group for each in clerk.store.pauses()] == [ALL, OURS]
    assert clerk.store.resume_group(OURS, by="key:3")
    assert not clerk.store.resume_group(OURS, by="key:3")
    assert [each.group for each in clerk.store.pauses()] == [ALL]
    assert _deeds(clerk) == [
        ("key:1", "workspace.paused", "default"),
        ("key:1", "all.paused", ""),
        ("key:3", "workspace.resumed", "default"),
    ]


def test_no_workspace_no_pause(clerk: Clerk) -> None:
    with pytest.raises(NotFound):
        clerk.store.pause_group(of_workspace(WorkspaceId("none")), by="key:1")
    with pytest.raises(InvalidRequest):
        clerk.store.pause_group(of_pool("gpu"), by="key:1", reason="a\0b")


def test_caps_of_profiles_and_of_all(clerk: Clerk) -> None:
    for most in (3, 3, 5):
        assert clerk.store.set_cap(of_profile("shell"), most, by="key:1").max_active_runs == most
    clerk.store.set_cap(ALL, 9, by="key:1")
    assert [(cap.group, cap.max_active_runs) for cap in clerk.store.caps()] == [(ALL, 9), (of_profile("shell"), 5)]
    assert clerk.store.drop_cap(ALL, by="key:2") and not clerk.store.drop_cap(ALL, by="key:2")
    assert [action for _, action, _ in _deeds(clerk)] == [
        "profile.cap_set",
        "profile.cap_set",
        "all.cap_set",
        "all.cap_dropped",
    ]
    with pytest.raises(InvalidRequest):
        clerk.store.set_cap(OURS, 3, by="key:1")


def test_what_waits_is_told_of_them(clerk: Clerk) -> None:
    clerk.session("s2")
    for name in ("s1", "s2"):
        clerk.submit(name, f"{name}-run")
    clerk.start("s1")
    waiting = RunId("s2-run")
    assert (clerk.store.waits([waiting])[waiting].caps, clerk.store.waits([waiting])[waiting].pause) == ((), None)
    clerk.store.set_cap(ALL, 7, by="key:1")
    clerk.store.set_cap(of_profile("shell"), 1, by="key:1")
    clerk.store.set_cap(of_profile("other"), 1, by="key:1")
    assert clerk.store.waits([waiting])[waiting].caps == (
        CapView(1, 1, GroupKind.PROFILE),
        CapView(1, 7, GroupKind.ALL),
    )
    for group in (of_pool("gpu"), of_profile("other"), of_pool("default")):
        clerk.store.pause_group(group, by="key:1")
    pause = clerk.store.waits([waiting])[waiting].pause
    assert pause is not None and pause.group == Group(GroupKind.POOL, "default")


@pytest.mark.parametrize("group", [ALL, OURS, of_pool("default"), of_profile("shell")])
def test_sql_starts_nothing_that_is_paused(clerk: Clerk, group: Group) -> None:
    """Whatever the broker believes. Others are not concerned, nor is an owner who comes back to its run."""
    clerk.submit("s1", "a")
    clerk.store.pause_group(group, by="key:1")
    assert clerk.try_start(clerk.claim("s1")) == [IsPaused(SessionId("s1"))]
    assert clerk.run("a").status is RunStatus.QUEUED and clerk.run("a").attempt == 0
    clerk.store.resume_group(group, by="key:1")
    started = clerk.start("s1")
    clerk.store.pause_group(group, by="key:1")
    assert isinstance(clerk.try_start(clerk.claim("s1"))[0], AlreadyActive)
    assert clerk.settle(started).applied, "what runs goes on"
    assert clerk.try_start(clerk.claim("s1")) == [NothingEligible(SessionId("s1"))]
    clerk.audit()


def test_a_pause_of_others_starts_ours(clerk: Clerk) -> None:
    clerk.store.pause_group(of_pool("gpu"), by="key:1")
    clerk.store.pause_group(of_profile("python"), by="key:1")
    clerk.submit("s1", "a")
    clerk.start("s1")
