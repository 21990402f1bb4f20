"""Retries: bounded, growing, never against somebody's wish, and each terminal reason by a flag of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.retry import LONGEST, MOST_RETRIES, NEVER, NO_WISH, RetryWish, retry_wish
from oah.core.model.run import RunStatus
from oah.core.model.timeout import TimeoutReason
from oah.core.policy.retry import (
    IF_NAMED,
    LABELS,
    GiveUp,
    Reason,
    Retry,
    Rules,
    View,
    decide,
    label,
    merged,
    pause,
    retryable,
)
from oah.errors import InvalidRequest

SECOND = timedelta(seconds=1)
durations = st.timedeltas(timedelta(0), LONGEST)
codes = st.sampled_from(["exit_nonzero", "agent_exited", "own_code", *sorted(IF_NAMED), *sorted(NEVER)])
rules = st.builds(
    Rules,
    max_retries=st.integers(0, MOST_RETRIES),
    initial=durations,
    factor=st.floats(1, 1_000),
    maximum=durations,
    jitter=st.floats(0, 1),
    on=st.none() | st.frozensets(codes, max_size=4),
)
views = st.builds(
    View,
    status=st.sampled_from(RunStatus),
    error_code=st.none() | codes,
    failed_attempts=st.integers(0, 2 * MOST_RETRIES),
    stopped=st.booleans(),
    left=st.none() | durations,
)
chances = st.floats(0, 1)


@given(views, rules, chances)
def test_a_retry_is_bounded_and_wanted(view: View, of: Rules, chance: float) -> None:
    match decide(view, of, chance=chance):
        case Retry(delay=delay):
            assert timedelta(0) <= delay <= of.maximum
            assert view.status in (RunStatus.FAILED, RunStatus.TIMED_OUT)
            assert not view.stopped
            assert view.failed_attempts < of.max_retries
            assert view.left is None or delay < view.left, "no attempt beyond the deadline"
            assert view.error_code is not None and view.error_code not in NEVER
            assert of.on is None or view.error_code in of.on
        case GiveUp():
            pass


@given(rules, st.integers(0, 300), chances)
def test_pauses_grow_up_to_the_maximum(of: Rules, failures: int, chance: float) -> None:
    still = replace(of, jitter=0.0)
    assert pause(failures, still, chance=chance) <= pause(failures + 1, still, chance=chance) <= of.maximum
    assert pause(failures, of, chance=chance) <= pause(failures, still, chance=0.0)
    assert pause(failures, of, chance=1.0) <= pause(failures, of, chance=0.0)


@given(rules, chances)
def test_a_run_that_always_fails_is_started_once_and_max_retries_times_more(of: Rules, chance: float) -> None:
    of = replace(of, on=None)
    starts = 1
    view = View(status=RunStatus.FAILED, error_code="exit_nonzero")
    while isinstance(decide(view, of, chance=chance), Retry):
        view = replace(view, failed_attempts=view.failed_attempts + 1)
        starts += 1
    assert starts == 1 + of.max_retries


@given(views, rules, chances)
def test_cancelled_is_never_retried(view: View, of: Rules, chance: float) -> None:
    assert decide(replace(view, status=RunStatus.CANCELLED), of, chance=chance) == GiveUp(Reason.STOPPED)
    assert decide(replace(view, stopped=True), of, chance=chance) == GiveUp(Reason.STOPPED)


WILLING = Rules(max_retries=3, initial=2 * SECOND, factor=3, maximum=10 * SECOND, jitter=0.5)
FLAGS = {
    "exit_nonzero": (True, True),
    "agent_exited": (True, True),
    "agent_raised": (True, True),
    "agent_killed": (True, True),
    "agent_lost": (True, True),
    "agent_error": (True, True),
    "agent_not_ready": (True, True),
    "spawn_failed": (True, True),
    "a_profiles_own_code": (True, True),
    "run_timeout": (False, True),
    "idle_timeout": (False, True),
    "step_timeout": (False, True),
    "model_timeout": (False, True),
    "wait_timeout": (False, True),
    "input_rejected": (False, True),
    "input_too_large": (False, True),
    "spawn_too_large": (False, True),
    "start_timeout": (False, False),
    "deadline_exceeded": (False, False),
    "unknown_agent": (False, False),
    "agent_unkillable": (False, False),
    "worker_lost": (False, False),
    "host_lost": (False, False),
    "cancelled": (False, False),
}


@pytest.mark.parametrize("code", FLAGS)
def test_b36_each_terminal_reason_has_a_flag_of_its_own(code: str) -> None:
    by_default, when_named = FLAGS[code]
    assert retryable(code, WILLING) is by_default
    assert retryable(code, replace(WILLING, on=frozenset({code}))) is when_named
    assert not retryable(code, replace(WILLING, on=frozenset({"something_else"})))
    assert not retryable(code, replace(WILLING, on=frozenset()))


def test_every_time_out_has_a_flag() -> None:
    assert {reason.value for reason in TimeoutReason} <= FLAGS.keys()
    assert FLAGS.keys() >= NEVER | IF_NAMED


def test_the_pauses_by_numbers() -> None:
    assert [pause(n, WILLING, chance=0.0) for n in range(4)] == [2 * SECOND, 6 * SECOND, 10 * SECOND, 10 * SECOND]
    assert pause(0, WILLING, chance=1.0) == SECOND


def test_reasons_for_giving_up() -> None:
    failed = View(status=RunStatus.FAILED, error_code="exit_nonzero")
    assert decide(replace(failed, status=RunStatus.COMPLETED), WILLING, chance=0) == GiveUp(Reason.NOT_FAILED)
    assert decide(replace(failed, error_code=None), WILLING, chance=0) == GiveUp(Reason.NOT_RETRYABLE)
    assert decide(replace(failed, failed_attempts=3), WILLING, chance=0) == GiveUp(Reason.SPENT)
    assert decide(replace(failed, left=2 * SECOND), WILLING, chance=0) == GiveUp(Reason.DEADLINE)
    assert decide(replace(failed, left=2.1 * SECOND), WILLING, chance=0) == Retry(2 * SECOND)
    assert decide(failed, Rules(), chance=0) == GiveUp(Reason.SPENT), "without a wish nothing is retried"


def test_the_run_comes_before_the_profile_and_that_before_the_deployment() -> None:
    profile = retry_wish({"max_retries": 2, "factor": 5, "on": ["exit_nonzero"]})
    run = retry_wish({"max_retries": 0, "jitter": 0})
    assert merged(WILLING, profile) == replace(WILLING, max_retries=2, factor=5.0, on=frozenset({"exit_nonzero"}))
    both = merged(WILLING, profile, run)
    assert (both.max_retries, both.factor, both.jitter) == (0, 5.0, 0.0)
    assert merged(WILLING, NO_WISH, RetryWish()) == WILLING


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": MOST_RETRIES + 1}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"initial_seconds": -1}, "initial_seconds"),
        ({"max_seconds": float("inf")}, "max_seconds"),
        ({"max_seconds": 1e9}, "max_seconds"),
        ({"factor": 0.5}, "factor"),
        ({"factor": "2"}, "factor"),
        ({"jitter": 1.1}, "jitter"),
        ({"on": "exit_nonzero"}, "on"),
        ({"on": ["Not A Code"]}, "on"),
        ({"on": [3]}, "on"),
        ({"on": ["deadline_exceeded"]}, "never"),
        ({"on": ["x"] * 65}, "on"),
        ({"wait": 3}, "wait"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_by_name(words: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        retry_wish(words)
    assert said in refused.value.message


def test_the_words_of_a_wish() -> None:
    wish = retry_wish({"max_retries": 2, "initial_seconds": 0.5, "max_seconds": 60, "on": []})
    assert wish == RetryWish(max_retries=2, initial=SECOND / 2, maximum=60 * SECOND, on=frozenset())
    assert retry_wish({}) == NO_WISH


def test_labels_are_a_closed_set() -> None:
    assert label("exit_nonzero") == "exit_nonzero"
    assert label("whatever a profile says") == label(None) == "other"
    assert "other" in LABELS
