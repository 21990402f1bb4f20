"""The priority of a run on its way to the broker, on every database."""

from __future__ import annotations

from oah.core.model.ids import RunId, SessionId
from oah.services.relay import hear
from tests.support.store_clerk import EPOCH, Clerk, accepted

S1 = SessionId("s1")


def test_the_broker_hears_of_the_first_runs_priority(clerk: Clerk) -> None:
    [answer] = clerk.send(clerk.new(priority=7))
    assert hear(accepted(answer)).priority == 7
    clerk.submit(priority=-100)
    assert clerk.run(accepted(answer).run.id).priority == 7
    [session] = clerk.store.queued_sessions_of([S1], EPOCH)
    assert session.priority == 7, "the order within a session is that of acceptance"
    after = clerk.settle(clerk.start())
    assert after.priority == -100
    assert clerk.settle(clerk.start()).priority == 0, "nothing waits"


def test_a_run_keeps_its_priority_over_retries_and_recoveries(clerk: Clerk) -> None:
    run = clerk.submit(priority=3).id
    clerk.start()
    assert clerk.recover(clerk.owner()).priority == 3
    assert clerk.run(RunId(run)).priority == 3
