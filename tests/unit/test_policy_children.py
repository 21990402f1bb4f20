"""What an agent may start by itself, and what it is told when it may not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from oah.core.model.home import Worktree
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import OnBusy, RunClass
from oah.core.model.session import Session, SessionState
from oah.core.policy import children
from oah.core.policy.children import Bounds, Family, Reach
from oah.errors import Conflict, Forbidden, LimitReached

RUN = RunId("run_a")
OWN = Session(
    SessionId("ses_own"),
    WorkspaceId("ws"),
    Lane("default", "claude"),
    SessionState.OPEN,
    datetime(2026, 1, 1, tzinfo=UTC),
    env={"TOKEN": {"secret": "git"}, "PLAIN": "x"},
    worktree=Worktree(repo="/src/app"),
)


@pytest.mark.parametrize(
    ("family", "code", "kind"),
    [
        (Family(0, 0, 0), None, None),
        (Family(1, 1, 3), None, None),
        (Family(2, 0, 0), "tree_too_deep", Conflict),
        (Family(0, 2, 2), "too_many_live_children", LimitReached),
        (Family(0, 0, 4), "too_many_children", Conflict),
        (Family(0, 2, 4), "too_many_children", Conflict),
    ],
)
def test_trees_have_bounds(family: Family, code: str | None, kind: type | None) -> None:
    refused = children.refusal(family, Bounds(depth=2, live=2, in_all=4))
    assert (refused and refused.code, refused and type(refused)) == (code, kind)


def test_with_a_depth_of_none_nothing_is_started() -> None:
    refused = children.refusal(Family(0, 0, 0), Bounds(depth=0))
    assert refused is not None and refused.code == "tree_too_deep"


def test_the_parent_is_the_run_itself() -> None:
    assert children.parent_of(None, RUN) == RUN == children.parent_of("run_a", RUN)
    with pytest.raises(Forbidden) as caught:
        children.parent_of("run_b", RUN)
    assert caught.value.code == "not_its_child"


@pytest.mark.parametrize("run_class", [RunClass.INTERACTIVE, RunClass.BACKGROUND])
def test_children_come_after_people(run_class: RunClass) -> None:
    children.check_run(RunClass.SUBAGENT, OnBusy.INTERRUPT)
    with pytest.raises(Forbidden) as caught:
        children.check_run(run_class, OnBusy.ENQUEUE)
    assert caught.value.code == "child_class"
    with pytest.raises(Forbidden) as caught:
        children.check_run(RunClass.SUBAGENT, OnBusy.STEER)
    assert caught.value.code == "child_steer"


def test_its_own_session_would_wait_for_itself_and_others_are_not_there() -> None:
    with pytest.raises(Conflict) as caught:
        children.may_enter(OWN, OWN, RUN)
    assert caught.value.code == "own_session" and caught.value.hint
    other = replace(OWN, id=SessionId("ses_b"))
    assert not children.may_enter(other, OWN, RUN)
    assert not children.may_enter(replace(other, parent_run_id=RunId("run_b")), OWN, RUN)
    assert children.may_enter(replace(other, parent_run_id=RUN), OWN, RUN)


def test_agents_and_pools_are_its_own_unless_the_deployment_names_others() -> None:
    own, shell, far = OWN.lane, Lane("default", "shell"), Lane("far", "claude")
    Reach().check(own, own)
    for lane, code in ((shell, "child_agent"), (far, "child_pool")):
        with pytest.raises(Forbidden) as caught:
            Reach().check(lane, own)
        assert caught.value.code == code and "OAH_CHILDREN__" in str(caught.value.hint)
    named = Reach(frozenset({"shell"}), frozenset({"far"}))
    named.check(Lane("far", "shell"), own)
    with pytest.raises(Forbidden):
        named.check(Lane("far", "python"), own)
    Reach(frozenset({"*"}), frozenset({"*"})).check(Lane("anywhere", "anything"), own)


def test_secrets_and_repositories_are_its_own() -> None:
    children.check_surroundings({"A": "text", "B": {"secret": "git"}}, Worktree(repo="/src/app", ref="topic"), OWN)
    with pytest.raises(Forbidden) as caught:
        children.check_surroundings({"B": {"secret": "prod"}}, None, OWN)
    assert caught.value.code == "child_secret"
    for own in (OWN, replace(OWN, worktree=None)):
        with pytest.raises(Forbidden) as caught:
            children.check_surroundings({}, Worktree(repo="/src/other"), own)
        assert caught.value.code == "child_worktree"
