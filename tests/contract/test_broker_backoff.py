"""A parked session that is held: it stays its owner's, and its owner is called when the hold has ended, not before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.ports.broker import Target
from tests.support.broker_desk import BACKGROUND, W1, W2, Desk, S

SECOND = timedelta(seconds=1)
BACKOFF = (HoldReason.BACKOFF,)
SESSION = "oah:{0}:session:s"


def park_held(desk: Desk, *, until: timedelta | None = 30 * SECOND, cls: ReadyClass | None = BACKGROUND) -> ClaimToken:
    """What the settle of a failed attempt with a warm agent asks for; its token."""
    token = desk.take()
    freed = desk.free(S, token, Target.PARKED, ready_class=cls, until_in=until, reasons=BACKOFF)
    assert (freed.place, freed.owner) == (Place.PARKED, None)
    return token


def test_it_is_the_owners_and_nobody_is_called(desk: Desk) -> None:
    token = park_held(desk)
    view = desk.view()
    assert (view.place, view.worker_id, view.token) == (Place.PARKED, W1, token)
    assert desk.claim(W1).sessions == () and desk.claim(W2).sessions == ()


def test_what_is_heard_meanwhile_does_not_call(desk: Desk) -> None:
    park_held(desk)
    placed = desk.hear()
    assert (placed.place, placed.owner) == (Place.PARKED, None)
    assert desk.claim(W1).sessions == ()


def test_what_was_heard_during_the_attempt_does_not_call(desk: Desk) -> None:
    token = desk.take()
    desk.hear()
    assert desk.free(S, token, Target.PARKED, until_in=SECOND, reasons=BACKOFF).owner is None
    assert desk.claim(W1).sessions == ()


def test_the_end_of_the_hold_is_listed_and_then_the_owner_is_called(desk: Desk) -> None:
    token = park_held(desk)
    reply = desk.broker.tick(desk.epoch, limit=9)
    assert reply.holds_ended == ()
    assert reply.next_due_in is not None and 25 * SECOND < reply.next_due_in <= 30 * SECOND
    assert desk.claim(W2).next_due_in is not None, "an ear knows when to wake"
    desk.renew(W1, (S, token))
    desk.pass_time(31)
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == (S,)
    desk.restore(S, W1, token, parked=True)  # the time that passed above took the lease with it
    placed = desk.ensure(cls=BACKGROUND)
    assert (placed.place, placed.owner) == (Place.PARKED, W1)
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == ()
    (claimed,) = desk.claim(W1).sessions
    assert (claimed.token, claimed.parked, claimed.ready_class) == (token, True, BACKGROUND)


def test_an_early_end_calls_at_once(desk: Desk) -> None:
    """A cancel of the run that is waited for."""
    park_held(desk)
    assert desk.ensure().owner == W1
    assert len(desk.claim(W1).sessions) == 1
    assert desk.client.zcard("oah:{0}:held") == 0


def test_a_claim_that_sql_calls_held_is_parked_again_with_the_end(desk: Desk) -> None:
    token = desk.take()
    desk.free(S, token, Target.PARKED, ready_class=BACKGROUND)
    (claimed,) = desk.claim(W1).sessions
    assert claimed.parked
    assert desk.free(S, token, Target.PARKED, until_in=9 * SECOND, reasons=BACKOFF).place is Place.PARKED
    assert desk.claim(W1).sessions == ()
    next_due = desk.broker.tick(desk.epoch, limit=9).next_due_in
    assert next_due is not None and next_due <= 9 * SECOND


def test_hold_of_a_parked_session_holds_it_where_it_stands(desk: Desk) -> None:
    token = desk.take()
    desk.free(S, token, Target.PARKED, ready_class=BACKGROUND)
    assert desk.hold(S, HoldReason.BACKOFF, until=9 * SECOND) is Place.PARKED
    assert desk.claim(W1).sessions == (), "what it was called for waits for the end of the hold"
    assert desk.hold(S, HoldReason.PAUSED) is Place.PARKED
    assert desk.client.hget(SESSION, "reasons") == b"backoff,paused"
    desk.pass_time(10)
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == (S,)
    assert desk.hold(S, HoldReason.PAUSED) is Place.PARKED
    assert desk.client.hget(SESSION, "reasons") == b"paused"


def test_free_without_a_hold_ends_it(desk: Desk) -> None:
    token = park_held(desk)
    assert desk.free(S, token, Target.PARKED, ready_class=BACKGROUND).owner == W1
    assert desk.client.zcard("oah:{0}:held") == 0


@pytest.mark.parametrize("parked", [False, True])
def test_restore_of_a_held_session_keeps_the_end_while_it_is_parked(desk: Desk, parked: bool) -> None:
    """Redis had lost the owner: it was held for everybody when the owner came back."""
    desk.hold(S, HoldReason.BACKOFF, until=9 * SECOND)
    assert desk.restore(S, W1, "a" * 32, parked=parked)
    assert desk.client.zcard("oah:{0}:held") == parked
    assert desk.claim(W1).sessions == ()


def test_a_renewal_keeps_the_hold(desk: Desk) -> None:
    token = park_held(desk)
    assert desk.renew(W1, (S, token)).states[0].value == "extended"
    assert desk.client.zcard("oah:{0}:held") == 1


@pytest.mark.parametrize("target", [Target.HELD, Target.IDLE, Target.READY])
def test_the_owner_lets_go(desk: Desk, target: Target) -> None:
    """The warm agent was ended: the hold goes on without an owner, or there is none any more."""
    token = park_held(desk)
    held = target is Target.HELD
    freed = desk.free(S, token, target, until_in=9 * SECOND if held else None, reasons=BACKOFF if held else ())
    assert freed.place == target.value
    assert desk.client.zcard("oah:{0}:held") == held


def test_the_owner_dies(desk: Desk) -> None:
    token = park_held(desk)
    recovered = desk.recover(S, token, Target.HELD, until_in=9 * SECOND, reasons=BACKOFF)
    assert recovered.place is Place.HELD
    desk.pass_time(10)
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == (S,)
