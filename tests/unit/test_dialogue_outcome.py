"""What a finished turn means, and the rungs of a cancel."""

from datetime import timedelta

import pytest

from oah.core.dialogue.ladder import Rung, due
from oah.core.dialogue.outcome import Facts, Verdict, judge
from oah.core.model.timeout import TimeoutReason


@pytest.mark.parametrize(
    ("facts", "verdict", "code", "warm"),
    [
        (Facts(status=0), Verdict.COMPLETED, None, True),
        (Facts(status=3), Verdict.FAILED, "exit_nonzero", True),
        (Facts(exited=True, exit_code=0), Verdict.COMPLETED, None, False),
        (Facts(exited=True, exit_code=3), Verdict.FAILED, "exit_nonzero", False),
        (Facts(exited=True, exit_code=-9), Verdict.FAILED, "agent_killed", False),
        (Facts(exited=True), Verdict.FAILED, "agent_lost", False),
        (Facts(status=130, cancelled=True), Verdict.CANCELLED, None, True),
        (Facts(status=0, cancelled=True), Verdict.COMPLETED, None, True),
        (Facts(status=0, cancelled=True, signalled=True), Verdict.CANCELLED, None, True),
        (Facts(exited=True, exit_code=0, cancelled=True), Verdict.COMPLETED, None, False),
        (Facts(exited=True, exit_code=0, cancelled=True, signalled=True), Verdict.CANCELLED, None, False),
        (Facts(exited=True, exit_code=0, cancelled=True, killed=True), Verdict.CANCELLED, None, False),
        (Facts(exited=True, exit_code=130, cancelled=True), Verdict.CANCELLED, None, False),
        (Facts(cancelled=True, killed=True), Verdict.CANCELLED, None, False),
        (Facts(timed_out=TimeoutReason.RUN, killed=True), Verdict.TIMED_OUT, "run_timeout", False),
        (Facts(timed_out=TimeoutReason.RUN, killed=True, empty=False), Verdict.FAILED, "agent_unkillable", False),
        (Facts(timed_out=TimeoutReason.RUN, cancelled=True, killed=True), Verdict.TIMED_OUT, "run_timeout", False),
        (Facts(host_lost=True, exited=True, cancelled=True), Verdict.FAILED, "host_lost", False),
        (Facts(fault=("agent_not_reading", "deaf"), killed=True), Verdict.FAILED, "agent_not_reading", False),
    ],
)
def test_the_first_rule_that_applies_decides(facts: Facts, verdict: Verdict, code: str | None, warm: bool) -> None:
    outcome = judge(facts)
    assert (outcome.verdict, outcome.error_code, outcome.keep_warm) == (verdict, code, warm)


def test_the_profile_names_its_own_failure_and_the_program_its_message() -> None:
    outcome = judge(Facts(status=1, message="ZeroDivisionError: x"), failed_code="agent_raised")
    assert (outcome.error_code, outcome.error_message, outcome.exit_code) == ("agent_raised", "ZeroDivisionError: x", 1)


def test_each_rung_gets_its_grace() -> None:
    second = timedelta(seconds=1)

    def at(seconds: float) -> Rung:
        return due(timedelta(seconds=seconds), key=second, interrupt=second, terminate=second)

    assert [at(moment) for moment in (0, 0.9, 1, 2, 3, 9)] == [
        Rung.KEY,
        Rung.KEY,
        Rung.INTERRUPT,
        Rung.TERMINATE,
        Rung.KILL,
        Rung.KILL,
    ]
