"""A short way to say what happens to sessions in the broker."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import PRIORITY, ReadyClass
from oah.core.model.session import HoldReason, Place
from oah.ports.broker import (
    Broker,
    ClaimReply,
    ClaimRequest,
    Ensure,
    Free,
    Freed,
    Hear,
    Held,
    Hold,
    LeaseView,
    Placed,
    Recover,
    Release,
    RenewReply,
    Restore,
    Target,
)
from tests.support.broker_audit import audit, shift_time

LANE = Lane("pool", "shell")
WS = WorkspaceId("ws")
W1, W2 = WorkerId("one.1"), WorkerId("two.1")
LEASE = timedelta(seconds=6)
ORDER = tuple((LANE, ready_class) for ready_class in PRIORITY)
INTERACTIVE, BACKGROUND = ReadyClass.INTERACTIVE, ReadyClass.BACKGROUND
S = SessionId("s")


class Desk:
    """One broker, its open epoch, and a plain client beside it."""

    def __init__(self, broker: Broker, epoch: EpochId, client: Any) -> None:
        self.broker, self.epoch, self.client = broker, epoch, client
        self._numbers = itertools.count(1)

    def request(self) -> ClaimToken:
        return ClaimToken(f"{next(self._numbers):032x}")

    def hear(
        self,
        session: str = S,
        run: str | None = None,
        *,
        cls: ReadyClass = INTERACTIVE,
        ws: str = WS,
        lane: Lane = LANE,
        due: timedelta | None = None,
        priority: int = 0,
    ) -> Placed:
        run = run or f"run-{next(self._numbers)}"
        hear = Hear(SessionId(session), RunId(run), lane, WorkspaceId(ws), cls, due, priority)
        return self.broker.enqueue(self.epoch, [hear])[0]

    def ensure(self, session: str = S, *, cls: ReadyClass = INTERACTIVE, ws: str = WS, **more: Any) -> Placed:
        return self.broker.ensure(self.epoch, [Ensure(SessionId(session), LANE, WorkspaceId(ws), cls, **more)])[0]

    def hold(self, session: str = S, *reasons: HoldReason, until: timedelta | None = None) -> Place:
        hold = Hold(SessionId(session), reasons or (HoldReason.PAUSED,), until)
        return self.broker.hold(self.epoch, [hold])[0]

    def claim(
        self,
        worker: WorkerId = W1,
        *,
        want: int = 1,
        request: ClaimToken | None = None,
        lease: timedelta = LEASE,
        counter: int = 1,
        order: Any = ORDER,
        suspect: bool = True,
        resumes_only: bool = False,
    ) -> ClaimReply:
        request = request or self.request()
        asked = ClaimRequest(worker, request, lease, counter, want, order, suspect, resumes_only)
        return self.broker.claim(self.epoch, asked)

    def take(self, session: str = S, worker: WorkerId = W1, *, ws: str = WS, lease: timedelta = LEASE) -> ClaimToken:
        """Make it ready, claim it; its token."""
        self.hear(session, ws=ws)
        reply = self.claim(worker, lease=lease)
        assert [claimed.session_id for claimed in reply.sessions] == [session]
        return reply.sessions[0].token

    def free(self, session: str, token: str, target: Target, **more: Any) -> Freed:
        return self.broker.free(self.epoch, [Free(SessionId(session), ClaimToken(token), target, **more)])[0]

    def release(self, session: str, token: str, cls: ReadyClass = INTERACTIVE) -> Freed:
        return self.broker.release(self.epoch, [Release(SessionId(session), ClaimToken(token), cls)])[0]

    def recover(self, session: str, token: str, target: Target, **more: Any) -> Freed:
        recover = Recover(SessionId(session), ClaimToken(token), target, LANE, WS, **more)
        return self.broker.recover(self.epoch, [recover])[0]

    def restore(
        self,
        session: str,
        worker: WorkerId,
        token: str,
        *,
        parked: bool = False,
        life: timedelta = LEASE,
        over: ClaimToken | None = None,
    ) -> bool:
        restore = Restore(
            SessionId(session), worker, ClaimToken(token), parked, LANE, WS, INTERACTIVE, life=life, over=over
        )
        return self.broker.restore(self.epoch, [restore])[0]

    def renew(self, worker: WorkerId = W1, *table: tuple[str, str], counter: int = 99, **more: Any) -> RenewReply:
        held = [Held(SessionId(session), ClaimToken(token)) for session, token in table]
        return self.broker.renew(self.epoch, worker, held, lease=LEASE, counter=counter, **more)

    def cancel(self, session: str = S) -> Place:
        return self.broker.cancel(self.epoch, [SessionId(session)])[0]

    def view(self, session: str = S) -> LeaseView:
        return self.broker.leases(self.epoch, [SessionId(session)])[0]

    def place(self, session: str = S) -> Place:
        return self.view(session).place

    def pass_time(self, seconds: float) -> None:
        shift_time(self.client, int(seconds * 1000))

    def audit(self) -> None:
        audit(self.client)


@pytest.fixture
def desk(redis_server: Any, broker: Broker, epoch: EpochId) -> Any:
    """On each kind of server; every test ends with the audit of all keys."""
    found = Desk(broker, epoch, redis_server.client())
    yield found
    found.audit()
