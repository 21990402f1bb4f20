"""The worker's own table: what renewals and marks name, and where deadlines come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from oah.core.model.ids import ClaimToken, RunId, SessionId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, Run, RunClass, RunStatus, StartReason
from oah.core.model.session import Session, SessionState
from oah.ports.broker import Claimed, Held
from oah.ports.store import Started
from oah.worker.table import Phase, Table

LEASE, MARGIN = timedelta(seconds=30), timedelta(seconds=5)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
S, T, U = SessionId("ses_1"), ClaimToken("a" * 32), ClaimToken("b" * 32)


def started(session_id: SessionId = S, *, recovery_attempts: int = 0) -> Started:
    """A started run of that session."""
    session = Session(session_id, WorkspaceId("default"), Lane("default", "shell"), SessionState.OPEN, NOW)
    run = Run(
        RunId(f"run_{session_id}"),
        session_id,
        WorkspaceId("default"),
        1,
        RunClass.INTERACTIVE,
        RunStatus.RUNNING,
        "true",
        NOW,
        NOW,
        attempt=1,
        recovery_attempts=recovery_attempts,
    )
    return Started(session, run, StartReason.FIRST, 2)


def table_with_a_claim(sent_at: float = 100.0) -> Table:
    """One session, claimed."""
    table = Table(lease=LEASE, margin=MARGIN)
    table.request(T)
    table.answered(T, [Claimed(S, T, False, ReadyClass.INTERACTIVE)], sent_at=sent_at)
    return table


def test_a_request_is_pending_until_it_is_answered_and_the_counter_grows() -> None:
    table = Table(lease=LEASE, margin=MARGIN)
    assert table.request(T) == 1
    assert table.request(U) == 2
    held, counter, pending = table.renew_view()
    assert (held, counter, set(pending)) == ([], 2, {T, U})
    table.answered(T, [Claimed(S, T, False, ReadyClass.INTERACTIVE)], sent_at=1.0)
    table.forget_request(U)
    assert table.renew_view() == ([Held(S, T)], 3, []), "what U may have taken is older than the next renewal"


def test_what_was_dropped_is_older_than_the_next_renewal() -> None:
    """Redis may not have heard that it was given back: without a later claim it would wait for the lease's end."""
    table = table_with_a_claim()
    table.drop(S, T)
    assert table.renew_view() == ([], 2, [])
    table.drop(S, T)
    assert table.renew_view() == ([], 2, []), "once"


def test_a_claimed_session_has_no_owner_row_and_is_not_marked() -> None:
    table = table_with_a_claim()
    assert table.mark_view() == []
    table.started(started(), T, begun_at=101.0)
    assert table.mark_view() == [(S, T)]


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_deadline_counts_from_the_later_confirmation(redis_at: float, sql_at: float) -> None:
    table = table_with_a_claim(sent_at=redis_at)
    table.started(started(), T, begun_at=sql_at)
    assert table.deadline(S, T) == max(redis_at, sql_at) + 25.0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_confirmation_never_moves_a_deadline_back(moments: list[float]) -> None:
    table = table_with_a_claim(sent_at=0.0)
    table.started(started(), T, begun_at=0.0)
    for moment in moments:
        before = table.deadline(S, T)
        table.renewed([Held(S, T)], sent_at=moment)
        after = table.deadline(S, T)
        assert before is not None and after is not None and after >= before


def test_another_token_confirms_nothing() -> None:
    table = table_with_a_claim(sent_at=100.0)
    table.renewed([Held(S, U)], sent_at=500.0)
    assert table.deadline(S, T) == 125.0
    assert table.deadline(S, U) is None
    assert table.drop(S, U) is None
    assert table.drop(S, T) is not None


def test_lost_before_the_start_is_gone_lost_after_it_is_decided_by_the_mark() -> None:
    table = table_with_a_claim()
    table.doubt([Held(S, T)])
    assert table.get(S, T) is None

    table = table_with_a_claim()
    table.started(started(), T, begun_at=101.0)
    table.doubt([Held(S, T)])
    assert table.doubtful()
    back, lost = table.marked([(S, T)], frozenset({S}), begun_at=102.0)
    assert [entry.session_id for entry in back] == [S] and lost == []
    back, lost = table.marked([(S, T)], frozenset(), begun_at=103.0)
    assert back == [] and [entry.session_id for entry in lost] == [S]


def test_a_mark_begun_before_the_start_says_nothing_about_it() -> None:
    table = table_with_a_claim()
    table.started(started(), T, begun_at=101.0)
    assert table.marked([(S, T)], frozenset(), begun_at=100.5) == ([], [])


def test_an_ending_session_is_marked_but_never_reported_lost() -> None:
    table = table_with_a_claim()
    table.started(started(), T, begun_at=101.0)
    assert table.ending(S, T)
    assert table.mark_view() == [(S, T)]
    assert table.marked([(S, T)], frozenset(), begun_at=110.0) == ([], [])


def test_a_suspect_is_counted_until_its_run_is_settled() -> None:
    table = table_with_a_claim()
    table.started(started(recovery_attempts=1), T, begun_at=101.0)
    assert table.suspects == 1
    table.parked(S, T)
    entry = table.get(S, T)
    assert table.suspects == 0 and entry is not None and entry.phase is Phase.PARKED


def test_deadlines_name_only_sessions_with_an_agent() -> None:
    table = table_with_a_claim(sent_at=100.0)
    table.started(started(), T, begun_at=101.0)
    assert table.deadlines() == {}
    table.agent(S, T, "agent-1")
    assert table.deadlines() == {"agent-1": 126.0}


def test_a_start_that_the_table_had_given_up_is_ours_again() -> None:
    table = table_with_a_claim()
    table.doubt([Held(S, T)])
    table.started(started(), T, begun_at=101.0)
    assert table.mark_view() == [(S, T)]
