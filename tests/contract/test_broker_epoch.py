"""The epoch: a call under another id writes nothing; while rebuilding nothing is claimed and SQL's owner wins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oah.core.model.epoch import SCHEMA, EpochState
from oah.core.model.group import of_workspace
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId
from oah.core.model.session import HoldReason, Place
from oah.errors import EpochMismatch, Rebuilding
from oah.ports.broker import Broker, ClaimRequest, Free, Target, WorkspaceLimit
from tests.support.broker_desk import LEASE, ORDER, W1, W2, WS, Desk

CALLS = {
    "enqueue": lambda desk: desk.hear(),
    "enqueue delayed": lambda desk: desk.hear(due=timedelta(seconds=1)),
    "ensure": lambda desk: desk.ensure(),
    "hold": lambda desk: desk.hold("new", HoldReason.PAUSED),
    "claim": lambda desk: desk.claim(),
    "turn": lambda desk: desk.broker.turn(
        desk.epoch,
        [Free(SessionId("leased"), ClaimToken("1".rjust(32, "0")), Target.IDLE)],
        ClaimRequest(W1, desk.request(), LEASE, 2, 9, ORDER),
        heads=[SessionId("leased")],
    ),
    "renew": lambda desk: desk.renew(W1),
    "restore": lambda desk: desk.restore("new", W1, "a" * 32),
    "free": lambda desk: desk.free("leased", desk.token, Target.IDLE),
    "release": lambda desk: desk.release("leased", desk.token),
    "expire": lambda desk: desk.broker.expire(desk.epoch, limit=9),
    "recover": lambda desk: desk.recover("leased", desk.token, Target.IDLE),
    "cancel": lambda desk: desk.cancel("ready"),
    "undue": lambda desk: desk.broker.undue(desk.epoch, [RunId("late")]),
    "tick": lambda desk: desk.broker.tick(desk.epoch, limit=9),
    "popped": lambda desk: desk.broker.popped(desk.epoch, [SessionId("ready")]),
    "leases": lambda desk: desk.view(),
    "limits": lambda desk: desk.broker.limits(desk.epoch, [WorkspaceLimit(WS, 2, 3)]),
    "drop_active": lambda desk: desk.broker.drop_active(desk.epoch, of_workspace(WS), [SessionId("ready")]),
}


def content(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("oah:{0}:*")}


@pytest.mark.parametrize("call", CALLS)
def test_under_another_epoch_nothing_is_written(desk: Desk, call: str) -> None:
    desk.token = desk.take("leased")  # type: ignore[attr-defined]
    desk.hear("ready")
    desk.hear("delayed", "late", due=timedelta(seconds=60))
    before = content(desk.client)
    desk.epoch = EpochId("another")
    with pytest.raises(EpochMismatch):
        CALLS[call](desk)
    assert content(desk.client) == before


@pytest.mark.parametrize("call", CALLS)
def test_after_a_flush_nothing_is_written(desk: Desk, call: str) -> None:
    desk.token = desk.take("leased")  # type: ignore[attr-defined]
    desk.client.flushall()
    with pytest.raises(EpochMismatch):
        CALLS[call](desk)
    assert desk.client.keys("*") == []


def test_mint_compares_with_what_was_seen(broker: Broker) -> None:
    assert broker.view().id is None
    assert not broker.mint(EpochId("a"), seen=EpochId("ghost"))
    assert broker.mint(EpochId("a"), seen=None)
    assert broker.mint(EpochId("a"), seen=None)  # the answer was lost
    view = broker.view()
    assert (view.id, view.state, view.schema, view.open_for) == ("a", EpochState.REBUILDING, SCHEMA, None)
    assert not broker.mint(EpochId("b"), seen=None)
    assert broker.mint(EpochId("b"), seen=EpochId("a"))
    assert not broker.open(EpochId("a"))
    assert broker.open(EpochId("b"))
    assert broker.open(EpochId("b"))
    view = broker.view()
    assert view.state is EpochState.OPEN
    assert view.open_for is not None
    assert view.open_for < timedelta(seconds=5)


def test_the_server_is_known_by_its_run_id(redis_server: Any, broker: Broker, epoch: EpochId) -> None:
    view = broker.view()
    if redis_server.in_process:
        assert (view.run_id, view.server_run_id) == (None, None)
    else:
        assert view.run_id == view.server_run_id == redis_server.client().info("server")["run_id"]


def test_while_rebuilding(desk: Desk) -> None:
    desk.take("mine")
    desk.hear("ready")
    old, desk.epoch = desk.epoch, EpochId("new")
    assert desk.broker.mint(desk.epoch, seen=old)
    with pytest.raises(Rebuilding):
        desk.claim()
    # Everything else works: owners and holds are put back, and SQL's owner always wins.
    assert desk.hear("more").place is Place.READY
    assert desk.restore("mine", W2, "b" * 32, parked=True)
    view = desk.view("mine")
    assert (view.place, view.worker_id, view.token) == (Place.PARKED, W2, "b" * 32)
    assert desk.restore("mine", W2, "b" * 32)
    assert desk.view("mine").place is Place.LEASED
    assert desk.restore("ready", W2, "c" * 32)
    turn = desk.broker.turn(
        desk.epoch,
        [Free(SessionId("ready"), ClaimToken("c" * 32), Target.IDLE)],
        ClaimRequest(W1, desk.request(), LEASE, 2, 9, ORDER),
    )
    assert [freed.place for freed in turn.freed] == [Place.READY]
    assert turn.claim is None
    assert isinstance(turn.refused, Rebuilding)
    assert desk.broker.open(desk.epoch)
    assert {c.session_id for c in desk.claim(want=9).sessions} == {"more", "ready"}


def test_what_a_flush_took_comes_back_from_sql(desk: Desk) -> None:
    token = desk.take("running")
    desk.hear("queued")
    desk.client.flushall()
    desk.epoch = EpochId("after")
    assert desk.broker.mint(desk.epoch, seen=None)
    assert desk.restore("running", W1, token)
    desk.hold("paused", HoldReason.PAUSED)
    assert desk.broker.open(desk.epoch)
    desk.ensure("queued", score=1.0)
    desk.ensure("running")
    assert desk.renew(W1, ("running", token)).returned == ()
    assert [c.session_id for c in desk.claim(W2, want=9).sessions] == ["queued"]
    assert desk.free("running", token, Target.IDLE).place is Place.READY


def test_an_old_snapshot_is_corrected_not_wiped(desk: Desk) -> None:
    """A was claimed and B enqueued after the snapshot that came back."""
    desk.hear("a")
    old = content(desk.client)
    token = desk.claim().sessions[0].token
    desk.hear("b")
    for key in desk.client.keys("*"):
        desk.client.delete(key)
    for key, value in old.items():
        desk.client.restore(key, 0, value)
    seen, desk.epoch = desk.epoch, EpochId("after")
    assert desk.broker.mint(desk.epoch, seen=seen)
    assert desk.restore("a", W1, token)
    assert desk.broker.open(desk.epoch)
    desk.ensure("b")
    assert [c.session_id for c in desk.claim(W2, want=9).sessions] == ["b"]
    assert desk.renew(W1, ("a", token), counter=99).returned == ()


@pytest.mark.parametrize("call", ["ensure", "hold", "renew", "restore", "free", "release", "recover", "cancel", "tick"])
def test_a_repeated_call_changes_nothing(desk: Desk, call: str) -> None:
    desk.token = desk.take("leased")  # type: ignore[attr-defined]
    desk.hear("ready")
    CALLS[call](desk)
    once = _meaning(desk.client)
    CALLS[call](desk)
    assert _meaning(desk.client) == once


def _meaning(client: Any) -> dict[str, Any]:
    """Who stands where; moments and counters apart."""
    from tests.support.broker_audit import sessions

    return {
        name: {field: fields[field] for field in ("state", "worker", "token", "class", "heard") if field in fields}
        for name, fields in sessions(client).items()
    }
