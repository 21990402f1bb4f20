"""Every cell of the table "state of a session by script", on every kind of server."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken
from oah.core.model.run import ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.ports.broker import Renewal, Target
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, W1, W2, Desk, S

SECOND = timedelta(seconds=1)


def put(desk: Desk, place: Place) -> str:
    """Session S in a place; its token ('' where it has none)."""
    match place:
        case Place.IDLE:
            return ""
        case Place.READY:
            desk.hear()
            return ""
        case Place.LEASED:
            return desk.take()
        case Place.PARKED:
            token = desk.take()
            assert desk.free(S, token, Target.PARKED).place is Place.PARKED
            return token
        case Place.HELD:
            assert desk.hold(S, HoldReason.BACKOFF) is Place.HELD
            return ""


# enqueue


def test_enqueue_idle(desk: Desk) -> None:
    assert desk.hear().place is Place.READY


def test_enqueue_ready_raises_the_class_and_keeps_the_place(desk: Desk) -> None:
    desk.hear("a", cls=BACKGROUND)
    desk.hear("b", cls=INTERACTIVE)
    score = desk.client.hget("oah:{0}:session:a", "score")
    assert desk.hear("a", cls=INTERACTIVE).place is Place.READY
    assert desk.client.hget("oah:{0}:session:a", "score") == score
    assert desk.hear("a", cls=BACKGROUND).place is Place.READY
    assert [c.session_id for c in desk.claim(want=2).sessions] == ["a", "b"]


def test_enqueue_does_not_make_younger_or_a_suspect(desk: Desk) -> None:
    desk.hear(cls=BACKGROUND)
    desk.pass_time(30)
    desk.hear(cls=INTERACTIVE)
    desk.hear(cls=ReadyClass.SUSPECT)
    assert desk.view().ready_class is INTERACTIVE
    age = desk.broker.tick(desk.epoch, limit=1).oldest_ready
    assert age is not None
    assert age >= 30 * SECOND


def test_enqueue_never_raises_a_suspect(desk: Desk) -> None:
    desk.ensure(cls=ReadyClass.SUSPECT)
    desk.hear(cls=INTERACTIVE)
    assert desk.view().ready_class is ReadyClass.SUSPECT


def test_enqueue_leased_is_heard_with_the_highest_class(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    assert desk.hear(cls=BACKGROUND).place is Place.LEASED
    assert desk.hear(cls=ReadyClass.SUBAGENT).place is Place.LEASED
    assert desk.hear(cls=BACKGROUND).place is Place.LEASED
    assert desk.free(S, token, Target.IDLE).place is Place.READY
    assert desk.view().ready_class is ReadyClass.SUBAGENT


def test_enqueue_parked_calls_its_owner(desk: Desk) -> None:
    token = put(desk, Place.PARKED)
    placed = desk.hear()
    assert (placed.place, placed.owner) == (Place.PARKED, W1)
    assert desk.claim(W2).sessions == ()
    claimed = desk.claim(W1).sessions[0]
    assert (claimed.session_id, claimed.token, claimed.parked) == (S, token, True)


def test_enqueue_held(desk: Desk) -> None:
    put(desk, Place.HELD)
    assert desk.hear().place is Place.HELD
    assert desk.claim().sessions == ()


# ensure


def test_ensure_idle(desk: Desk) -> None:
    assert desk.ensure().place is Place.READY


def test_ensure_ready_changes_nothing(desk: Desk) -> None:
    desk.hear(cls=BACKGROUND)
    assert desk.ensure(cls=INTERACTIVE).place is Place.READY
    assert desk.view().ready_class is BACKGROUND


def test_ensure_ready_mends_what_a_torn_write_left(desk: Desk) -> None:
    desk.hear()
    desk.client.delete("oah:{0}:ready:pool/shell:interactive:ws", "oah:{0}:ring:pool/shell:interactive")
    desk.client.delete("oah:{0}:ready:since:pool/shell:interactive")
    desk.ensure()
    assert desk.claim().sessions[0].session_id == S


def test_ensure_leased_is_heard(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    assert desk.ensure().place is Place.LEASED
    assert desk.free(S, token, Target.IDLE).place is Place.READY


def test_ensure_leased_gives_a_lost_deadline_an_end(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    desk.client.delete("oah:{0}:leases")
    desk.ensure()
    assert [e.token for e in desk.broker.expire(desk.epoch, limit=9)] == [token]


def test_ensure_parked_calls(desk: Desk) -> None:
    put(desk, Place.PARKED)
    placed = desk.ensure(cls=ReadyClass.RESUME)
    assert (placed.place, placed.owner) == (Place.PARKED, W1)
    assert desk.claim(W1).sessions[0].ready_class is ReadyClass.RESUME


def test_ensure_held(desk: Desk) -> None:
    put(desk, Place.HELD)
    assert desk.ensure().place is Place.READY
    assert desk.client.zcard("oah:{0}:held") == 0


# hold


@pytest.mark.parametrize("place", [Place.IDLE, Place.READY])
def test_hold_takes_out(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.hold() is Place.HELD
    assert desk.claim().sessions == ()


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_hold_leaves_an_owner_alone(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    assert desk.hold() is place
    assert desk.view().token == token


def test_hold_held_adds_reasons_and_takes_the_earlier_end(desk: Desk) -> None:
    desk.hold(S, HoldReason.BACKOFF, until=60 * SECOND)
    desk.hold(S, HoldReason.PAUSED)
    assert desk.client.hget("oah:{0}:session:s", "reasons") == b"backoff,paused"
    assert 0 < desk.client.zscore("oah:{0}:held", S) < float("inf")
    desk.hold(S, HoldReason.BACKOFF, until=10 * SECOND)
    assert desk.broker.tick(desk.epoch, limit=9).next_due_in <= 10 * SECOND  # type: ignore[operator]


def test_hold_after_its_end_replaces(desk: Desk) -> None:
    desk.hold(S, HoldReason.BACKOFF, until=SECOND)
    desk.pass_time(2)
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == (S,)
    desk.hold(S, HoldReason.PAUSED)
    assert desk.client.hget("oah:{0}:session:s", "reasons") == b"paused"
    assert desk.broker.tick(desk.epoch, limit=9).holds_ended == ()


# claim


@pytest.mark.parametrize("place", [Place.IDLE, Place.LEASED, Place.PARKED, Place.HELD])
def test_claim_takes_only_what_is_ready(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.claim(W2).sessions == ()
    assert desk.claim(W1).sessions == ()
    assert desk.place() is place


def test_claim_ready(desk: Desk) -> None:
    put(desk, Place.READY)
    request = desk.request()
    claimed = desk.claim(W1, request=request).sessions[0]
    assert (claimed.session_id, claimed.token, claimed.parked, claimed.ready_class) == (S, request, False, INTERACTIVE)
    view = desk.view()
    assert (view.place, view.worker_id, view.token) == (Place.LEASED, W1, request)
    assert view.life is not None
    assert 5 * SECOND < view.life <= 6 * SECOND


def test_claim_does_not_revive_a_parked_lease_that_has_passed(desk: Desk) -> None:
    put(desk, Place.PARKED)
    desk.hear()
    desk.pass_time(7)
    assert desk.claim(W1).sessions == ()
    assert desk.place() is Place.PARKED


# renew


@pytest.mark.parametrize("place", [Place.IDLE, Place.READY, Place.HELD])
def test_renew_what_nobody_holds(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.renew(W1, (S, "f" * 32)).states == (Renewal.LOST,)
    assert desk.place() is place


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_renew_extends(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    desk.pass_time(2)
    before = desk.view().life
    assert desk.renew(W1, (S, token)).states == (Renewal.EXTENDED,)
    life = desk.view().life
    assert before is not None
    assert life is not None
    assert life > before


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_renew_never_extends_what_has_expired(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    desk.pass_time(7)
    assert desk.renew(W1, (S, token)).states == (Renewal.EXPIRED,)
    assert [e.session_id for e in desk.broker.expire(desk.epoch, limit=9)] == [S]


def test_renew_with_another_token_or_worker_is_lost(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    assert desk.renew(W2, (S, token)).states == (Renewal.LOST,)
    assert desk.renew(W1, (S, "f" * 32)).states == (Renewal.LOST,)
    assert desk.view().token == token


def test_renew_gives_back_what_it_does_not_list(desk: Desk) -> None:
    put(desk, Place.LEASED)
    reply = desk.renew(W1, counter=2)
    assert (reply.states, reply.returned) == ((), (S,))
    assert desk.place() is Place.READY


def test_renew_with_an_older_table_touches_no_newer_claim(desk: Desk) -> None:
    put(desk, Place.LEASED)  # claimed under counter 1
    assert desk.renew(W1, counter=1).returned == ()
    assert desk.place() is Place.LEASED


def test_renew_leaves_pending_requests_alone(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    assert desk.renew(W1, pending=[ClaimToken(token)]).returned == ()
    assert desk.place() is Place.LEASED


def test_renew_gives_a_parked_stranger_back_only_without_an_agent(desk: Desk) -> None:
    put(desk, Place.PARKED)
    reply = desk.renew(W1)
    assert (reply.returned, reply.strangers) == ((), (S,))
    assert desk.place() is Place.PARKED
    reply = desk.renew(W1, agentless=[S])
    assert (reply.returned, reply.strangers) == ((S,), ())
    assert desk.place() is Place.READY


# restore


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("place", [Place.IDLE, Place.READY, Place.HELD])
def test_restore_puts_it_back(desk: Desk, place: Place, parked: bool) -> None:
    put(desk, place)
    assert desk.restore(S, W2, "a" * 32, parked=parked)
    view = desk.view()
    assert (view.place, view.worker_id) == (Place.PARKED if parked else Place.LEASED, W2)
    # A run waited: the owner's free must find it.
    after = desk.free(S, "a" * 32, Target.IDLE).place
    assert after is (Place.READY if place is Place.READY else Place.IDLE)


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_restore_with_the_same_token_extends(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    desk.pass_time(7)
    assert desk.restore(S, W1, token, life=3 * SECOND)
    view = desk.view()
    assert view.place is place
    assert view.life is not None
    assert 2 * SECOND < view.life <= 3 * SECOND
    assert desk.restore(S, W1, token, life=SECOND)
    assert desk.view().life > SECOND  # type: ignore[operator]  # never shorter


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_restore_refuses_a_foreign_token_but_for_the_one_named(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    assert not desk.restore(S, W2, "a" * 32)
    assert not desk.restore(S, W2, "a" * 32, over=ClaimToken("b" * 32))
    assert desk.view().token == token
    assert desk.restore(S, W2, "a" * 32, over=ClaimToken(token))
    assert (desk.view().worker_id, desk.view().token) == (W2, "a" * 32)


# free


@pytest.mark.parametrize("place", [Place.IDLE, Place.READY, Place.HELD])
def test_free_of_what_nobody_holds_answers_where_it_stands(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.free(S, "f" * 32, Target.READY, ready_class=INTERACTIVE).place is place


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
@pytest.mark.parametrize("target", list(Target))
def test_free_goes_where_it_is_told(desk: Desk, place: Place, target: Target) -> None:
    token = put(desk, place)
    more = {"ready_class": BACKGROUND} if target is Target.READY else {}
    if target is Target.HELD:
        more = {"reasons": (HoldReason.BACKOFF,), "until_in": SECOND}
    freed = desk.free(S, token, target, **more)
    assert freed.place is Place(target.value)
    assert freed.owner is None
    if target is not Target.PARKED:
        assert desk.free(S, token, Target.IDLE).place is Place(target.value)  # a repeat moves nothing


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_free_with_another_token_does_nothing(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    assert desk.free(S, "f" * 32, Target.IDLE).place is None
    assert (desk.place(), desk.view().token) == (place, token)


def test_free_to_parked_calls_when_something_was_heard_or_waits(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    desk.hear()
    freed = desk.free(S, token, Target.PARKED)
    assert (freed.place, freed.owner) == (Place.PARKED, W1)
    assert desk.claim(W1).sessions[0].token == token
    freed = desk.free(S, token, Target.PARKED, ready_class=BACKGROUND)
    assert (freed.place, freed.owner) == (Place.PARKED, W1)
    assert desk.claim(W1).sessions[0].ready_class is BACKGROUND


def test_free_to_ready_takes_the_higher_of_class_and_heard(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    desk.hear(cls=INTERACTIVE)
    desk.free(S, token, Target.READY, ready_class=BACKGROUND)
    assert desk.view().ready_class is INTERACTIVE


def test_free_to_suspect_stays_suspect(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    desk.hear(cls=INTERACTIVE)
    desk.free(S, token, Target.READY, ready_class=ReadyClass.SUSPECT)
    assert desk.view().ready_class is ReadyClass.SUSPECT


def test_free_to_idle_of_a_called_parked_session_is_ready(desk: Desk) -> None:
    token = put(desk, Place.PARKED)
    desk.hear(cls=BACKGROUND)
    assert desk.free(S, token, Target.IDLE).place is Place.READY
    assert desk.view().ready_class is BACKGROUND


# release


def test_release_keeps_the_old_score(desk: Desk) -> None:
    token = desk.take("a")
    desk.hear("b")
    assert desk.release("a", token).place is Place.READY
    assert [c.session_id for c in desk.claim(want=2).sessions] == ["a", "b"]


def test_release_into_a_class(desk: Desk) -> None:
    token = put(desk, Place.LEASED)
    desk.hear(cls=INTERACTIVE)
    desk.release(S, token, ReadyClass.SUSPECT)
    assert desk.view().ready_class is ReadyClass.SUSPECT


@pytest.mark.parametrize("place", [Place.IDLE, Place.READY, Place.HELD, Place.PARKED])
def test_release_elsewhere_changes_nothing(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    assert desk.release(S, token or "f" * 32).place is place
    assert desk.place() is place


def test_release_with_another_token(desk: Desk) -> None:
    put(desk, Place.LEASED)
    assert desk.release(S, "f" * 32).place is None
    assert desk.place() is Place.LEASED


# expire and recover


@pytest.mark.parametrize("place", [Place.LEASED, Place.PARKED])
def test_expire_lists_and_changes_nothing(desk: Desk, place: Place) -> None:
    token = put(desk, place)
    assert desk.broker.expire(desk.epoch, limit=9) == []
    desk.pass_time(8)
    for _ in range(2):
        (found,) = desk.broker.expire(desk.epoch, limit=9)
        assert (found.session_id, found.worker_id, found.token) == (S, W1, token)
        assert found.parked is (place is Place.PARKED)
        assert SECOND < found.passed < 60 * SECOND
    assert desk.place() is place


def test_expire_ends_a_lease_that_a_wrong_clock_has_written(desk: Desk) -> None:
    """The clock was an hour ahead when it was given, and right again: it ends within a lease, not the hour."""
    desk.take(S)
    key = "oah:{0}:leases"
    ahead = float(desk.client.zscore(key, S)) + 3_600_000
    desk.client.zadd(key, {S: ahead})
    assert desk.broker.expire(desk.epoch, limit=9) == []
    assert desk.client.zscore(key, S) == ahead
    assert desk.broker.expire(desk.epoch, limit=9, lease=6 * SECOND) == []
    desk.pass_time(8)
    assert [found.session_id for found in desk.broker.expire(desk.epoch, limit=9, lease=6 * SECOND)] == [S]


def test_expire_is_bounded(desk: Desk) -> None:
    for name in "abcde":
        desk.take(name)
    desk.pass_time(8)
    assert len(desk.broker.expire(desk.epoch, limit=3)) == 3


@pytest.mark.parametrize("place", [Place.IDLE, Place.LEASED, Place.PARKED])
@pytest.mark.parametrize("target", [Target.READY, Target.HELD, Target.IDLE])
def test_recover_as_asked(desk: Desk, place: Place, target: Target) -> None:
    token = put(desk, place)
    reasons = (HoldReason.BACKOFF,) if target is Target.HELD else ()
    ready_class = ReadyClass.SUSPECT if target is Target.READY else None
    freed = desk.recover(S, token or "f" * 32, target, ready_class=ready_class, reasons=reasons)
    assert freed.place is Place(target.value)
    assert desk.broker.expire(desk.epoch, limit=9) == []
    if target is Target.READY:
        assert desk.claim(W2).sessions[0].ready_class is ReadyClass.SUSPECT


@pytest.mark.parametrize("place", [Place.READY, Place.HELD])
def test_recover_elsewhere_changes_nothing(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.recover(S, "f" * 32, Target.IDLE).place is place


def test_recover_with_another_token(desk: Desk) -> None:
    put(desk, Place.LEASED)
    assert desk.recover(S, "f" * 32, Target.IDLE).place is None
    assert desk.place() is Place.LEASED


def test_recover_keeps_the_score_and_what_was_heard(desk: Desk) -> None:
    token = desk.take("a")
    desk.hear("b")
    desk.hear("a", cls=BACKGROUND)
    assert desk.recover("a", token, Target.IDLE).place is Place.READY
    assert desk.view("a").ready_class is BACKGROUND
    token = desk.claim(want=9, order=((LANE, BACKGROUND),)).sessions[0].token
    desk.recover("a", token, Target.READY, ready_class=INTERACTIVE)
    assert [c.session_id for c in desk.claim(want=2).sessions] == ["a", "b"]


# cancel


@pytest.mark.parametrize("place", [Place.IDLE, Place.LEASED, Place.HELD])
def test_cancel_changes_nothing(desk: Desk, place: Place) -> None:
    put(desk, place)
    assert desk.cancel() is place


def test_cancel_ready(desk: Desk) -> None:
    put(desk, Place.READY)
    assert desk.cancel() is Place.IDLE
    assert desk.claim().sessions == ()


def test_cancel_parked_is_no_longer_called(desk: Desk) -> None:
    token = put(desk, Place.PARKED)
    desk.hear()
    assert desk.cancel() is Place.PARKED
    assert desk.claim(W1).sessions == ()
    assert desk.free(S, token, Target.IDLE).place is Place.IDLE
