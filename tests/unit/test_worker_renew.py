"""How often an idle worker renews, and that nothing it gave up waits for that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from oah.core.model.ids import ClaimToken, SessionId
from oah.core.model.run import ReadyClass
from oah.errors import Unavailable
from oah.ports.broker import Claimed, RenewReply
from oah.ports.store import MarkReply
from oah.worker.table import Table
from oah.worker.witnesses import Mark, Renew, Vigil
from tests.support.clock import StillClock
from tests.support.worker_doubles import Scripted, context, started

S, T = SessionId("ses_1"), ClaimToken("a" * 32)


def renew(*answers: Any) -> tuple[Renew, Table, Scripted]:
    """A renewal over an empty table; each answer but the last is used once."""
    redis = Scripted(renew=[*answers, RenewReply((), ())])
    of = context(None, redis, clock=StillClock())
    table = Table(lease=of.rules.lease, margin=of.rules.margin)
    return Renew(of, table, Vigil(of), mark_now=lambda: None), table, redis


def test_with_nothing_to_renew_it_is_rare() -> None:
    loop, _, redis = renew()
    for _ in range(60):
        loop()
    assert redis.called("renew") == 4


def test_a_claim_that_was_given_up_is_looked_for_at_once_and_once() -> None:
    loop, table, redis = renew()
    table.request(T)
    table.forget_request(T)
    for _ in range(5):
        loop()
    assert redis.called("renew") == 1


def test_what_was_dropped_is_looked_for_until_redis_has_answered() -> None:
    loop, table, redis = renew(Unavailable("away"))
    table.request(T)
    table.answered(T, [Claimed(S, T, False, ReadyClass.INTERACTIVE)], sent_at=1.0)
    table.drop(S, T)
    for attempt in range(6):
        try:
            loop()
        except Unavailable:
            assert attempt == 0
    assert redis.called("renew") == 2


def test_a_row_that_somebody_keeps_locked_is_not_lost() -> None:
    """Nothing is known of it: its deadline decides, not an impatient mark."""
    told: list[Any] = []
    store = Scripted(mark=[MarkReply(frozenset(), (), frozenset({S})), MarkReply(frozenset())])
    of = context(store, None, clock=StillClock())
    table = Table(lease=of.rules.lease, margin=of.rules.margin)
    table.answered(T, [Claimed(S, T, False, ReadyClass.INTERACTIVE)], sent_at=1.0)
    table.started(started(S, T), T, begun_at=1.0)
    watch = Vigil(of)
    losses = SimpleNamespace(lost=told.append, cancel=told.append)
    loop = Mark(of, table, watch, Renew(of, table, watch, mark_now=lambda: None), losses)
    loop()
    assert told == []
    loop()
    assert len(told) == 1, "no row: it is lost"
