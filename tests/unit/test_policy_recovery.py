"""What recovery decides about a run whose owner is gone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.core.lifecycle import RUN
from oah.core.model.run import RunStatus
from oah.core.policy.recovery import (
    Cancel,
    DropOwner,
    Fail,
    Override,
    Quarantine,
    Requeue,
    Rules,
    Source,
    Strategy,
    View,
    decide,
    override,
    resolve,
)

views = st.builds(View, st.none() | st.sampled_from(RunStatus), st.integers(0, 9), st.booleans())
rules = st.builds(Rules, st.sampled_from(Strategy), st.integers(0, 5))

RUNNING, WAITING = RunStatus.RUNNING, RunStatus.WAITING_TOOL


@pytest.mark.parametrize(
    ("view", "rule", "expected"),
    [
        (View(RUNNING), Rules(Strategy.FAIL), Fail("fail_closed")),
        (View(RUNNING), Rules(Strategy.REQUEUE_RUNNING), Requeue("automatic_requeue")),
        (View(RUNNING), Rules(Strategy.REQUEUE_ALL), Requeue("automatic_requeue")),
        (View(WAITING), Rules(Strategy.REQUEUE_RUNNING), Quarantine("waiting_tool_manual_resume_required")),
        (View(WAITING), Rules(Strategy.REQUEUE_ALL), Requeue("automatic_requeue")),
        (View(RUNNING, 2), Rules(Strategy.REQUEUE_RUNNING, 3), Requeue("automatic_requeue")),
        (View(RUNNING, 3), Rules(Strategy.REQUEUE_RUNNING, 3), Quarantine("max_attempts_exhausted")),
        (View(RUNNING), Rules(Strategy.REQUEUE_RUNNING, 0), Quarantine("max_attempts_exhausted")),
        (View(RUNNING, 9), Rules(Strategy.FAIL, 3), Fail("fail_closed")),
        (View(RUNNING, 9, cancel_requested=True), Rules(Strategy.REQUEUE_ALL), Cancel("cancel_requested")),
        (View(None), Rules(Strategy.FAIL), DropOwner("no_active_run")),
        (View(RunStatus.COMPLETED, 9, cancel_requested=True), Rules(Strategy.FAIL), DropOwner("no_active_run")),
    ],
)
def test_decisions(view: View, rule: Rules, expected: object) -> None:
    assert decide(view, rule) == expected


@given(views, rules)
def test_a_cancel_that_was_asked_for_wins(view: View, rule: Rules) -> None:
    asked = replace(view, cancel_requested=True)
    active = asked.status is not None and asked.status.active
    assert isinstance(decide(asked, rule), Cancel if active else DropOwner)


@given(views, rules)
def test_only_an_active_run_is_decided_about(view: View, rule: Rules) -> None:
    active = view.status is not None and view.status.active
    assert isinstance(decide(view, rule), DropOwner) != active


@given(rules, st.sampled_from([RUNNING, WAITING]))
def test_a_run_is_queued_again_at_most_max_attempts_times(rule: Rules, status: RunStatus) -> None:
    requeues = 0
    while isinstance(decide(View(status, requeues), rule), Requeue):
        requeues += 1
    assert requeues in (0, rule.max_attempts)


@given(views, rules)
def test_every_decision_is_an_arrow_of_the_life_of_a_run(view: View, rule: Rules) -> None:
    targets = {
        Requeue: RunStatus.QUEUED,
        Fail: RunStatus.FAILED,
        Quarantine: RunStatus.FAILED,
        Cancel: RunStatus.CANCELLED,
    }
    decision = decide(view, rule)
    if view.status is not None and not isinstance(decision, DropOwner):
        assert RUN.allows(view.status, targets[type(decision)], by="recover")


# --- whose word counts ----------------------------------------------------------------------------------------------

overrides = st.builds(Override, st.none() | st.sampled_from(Strategy), st.none() | st.integers(0, 5))


@given(rules, overrides, overrides, overrides)
def test_the_most_specific_word_counts_for_each_member_by_itself(
    deployment: Rules, run: Override, profile: Override, workspace: Override
) -> None:
    found = resolve(deployment, run=run, profile=profile, workspace=workspace)
    said = [(Source.RUN, run), (Source.PROFILE, profile), (Source.WORKSPACE, workspace)]
    said.append((Source.DEPLOYMENT, Override(deployment.strategy, deployment.max_attempts)))
    strategies = [(each.strategy, source) for source, each in said if each.strategy is not None]
    attempts = [(each.max_attempts, source) for source, each in said if each.max_attempts is not None]
    assert (found.rules.strategy, found.strategy_from) == strategies[0]
    assert (found.rules.max_attempts, found.max_attempts_from) == attempts[0]
    assert found.policy_from == {"strategy": found.strategy_from, "max_attempts": found.max_attempts_from}


def test_who_says_nothing_changes_nothing() -> None:
    deployment = Rules(Strategy.REQUEUE_RUNNING, 3)
    assert resolve(deployment).rules == deployment
    assert override(None, None) == override("of_a_later_release", None) == Override()
    assert override("requeue_all", 0) == Override(Strategy.REQUEUE_ALL, 0)
