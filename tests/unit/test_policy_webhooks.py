"""Which events webhooks may ask for, and what follows from how a try went."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.event import EventType
from oah.core.policy.webhooks import (
    DEFAULT,
    OFFERED,
    Again,
    Delivered,
    GivenUp,
    Rules,
    Verdict,
    judge,
    pause,
    subscription,
    told,
)
from oah.errors import InvalidRequest

RULES = Rules()


def verdict(status: int | None, tries: int = 1, *, testing: bool = False, **more: object) -> Verdict:
    chance = float(str(more.get("chance", 0.0)))
    after = more.get("retry_after")
    retry_after = after if isinstance(after, timedelta) else None
    return judge(status, tries=tries, testing=testing, retry_after=retry_after, chance=chance, rules=RULES)


def test_a_subscription_is_what_was_asked_for_each_once() -> None:
    assert subscription(None) == tuple(map(str, DEFAULT))
    assert "dead_letter.*" in subscription(None)
    assert subscription(["run.failed", "run.*", "run.failed"]) == ("run.failed", "run.*")
    assert all(event.ends_run == (str(event) in subscription(None)[:4]) for event in EventType)
    for wrong in ([], ["run.output"], ["run.started"], ["*"], ["nothing.*"], ["run.completed "]):
        with pytest.raises(InvalidRequest):
            subscription(wrong)


def test_of_their_own_dead_letters_webhooks_do_not_hear() -> None:
    assert all(told(kind, {"kind": "run"}) for kind in OFFERED)
    assert not told("dead_letter.added", {"kind": "outbox"})
    assert told("run.failed", {"kind": "outbox"})
    assert not told("run.output", {})
    assert not told("run.queued", {})


@given(st.integers(min_value=200, max_value=299), st.integers(min_value=1, max_value=100))
def test_a_success_is_delivered_however_late(status: int, tries: int) -> None:
    assert verdict(status, tries) == Delivered()


@pytest.mark.parametrize("status", [None, 100, 301, 307, 400, 401, 404, 429, 500, 503])
def test_everything_else_is_tried_again_until_there_were_enough(status: int | None) -> None:
    for tries in range(1, RULES.tries):
        assert isinstance(verdict(status, tries), Again)
    assert verdict(status, RULES.tries) == GivenUp("exhausted")


def test_gone_is_gone_and_a_test_is_tried_once() -> None:
    assert verdict(410) == GivenUp("gone", gone=True)
    assert verdict(500, testing=True) == GivenUp("test_failed")
    assert verdict(200, testing=True) == Delivered()


@given(st.integers(min_value=1, max_value=7), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_pauses_grow_and_chance_only_shortens_them(tries: int, chance: float) -> None:
    whole, shortened = verdict(500, tries), verdict(500, tries, chance=chance)
    assert isinstance(whole, Again)
    assert isinstance(shortened, Again)
    assert whole.after * (1 - RULES.jitter) - timedelta(seconds=1) <= shortened.after <= whole.after <= RULES.longest


def test_all_tries_together_take_about_an_hour() -> None:
    waits = [verdict(500, tries) for tries in range(1, RULES.tries)]
    total = sum((each.after for each in waits if isinstance(each, Again)), timedelta(0))
    assert timedelta(minutes=50) < total < timedelta(minutes=70)


def test_a_receiver_may_ask_for_more_time_within_reason() -> None:
    assert verdict(503, retry_after=timedelta(minutes=10)) == Again(timedelta(minutes=10))
    assert verdict(503, retry_after=timedelta(days=10)) == Again(RULES.longest_asked)
    assert verdict(503, retry_after=timedelta(0)) == verdict(503)


def test_a_webhook_that_fails_is_asked_about_once_a_minute_and_not_for_ever() -> None:
    pauses = [pause(rounds, RULES) for rounds in range(1, RULES.rounds + 1)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (RULES.pause, RULES.longest_pause)
    assert timedelta(hours=1) < sum(pauses, timedelta(0)) < timedelta(hours=2)
    assert pause(10**6, RULES) == RULES.longest_pause
