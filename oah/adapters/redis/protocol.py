"""The scripts of the protocol as the ``Dispatch`` port: encode, one round trip, decode."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from redis import exceptions as foreign

from oah.adapters.redis import failures
from oah.adapters.redis.epochs import RedisEpochs
from oah.adapters.redis.link import Call, Link
from oah.adapters.redis.rim import (
    as_ms,
    chunks,
    freed,
    from_ms,
    group_word,
    maybe_from_ms,
    maybe_ms,
    placed,
    rows,
)
from oah.adapters.redis.scripts import Value
from oah.core.model.group import Group
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass
from oah.core.model.session import Place
from oah.errors import Backpressure, EpochMismatch, InvalidRequest, Rebuilding
from oah.ports.broker import (
    Bind,
    Bound,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Due,
    Ensure,
    Expired,
    Free,
    Freed,
    GroupCap,
    Hear,
    Held,
    Hold,
    LeaseView,
    Placed,
    Recover,
    Release,
    Renewal,
    RenewReply,
    Restore,
    TickReply,
    Turn,
    Unbind,
    WorkspaceLimit,
)

Items = Sequence[Sequence[Value]]


class RedisDispatch:
    """The ``Dispatch`` part of the broker."""

    def __init__(self, link: Link, epochs: RedisEpochs) -> None:
        self._link = link
        self._epochs = epochs

    def enqueue(self, epoch: EpochId, hears: Sequence[Hear], *, quick: bool = False) -> list[Placed]:
        items = [
            (h.session_id, h.run_id, str(h.lane), h.workspace_id, h.ready_class.value, maybe_ms(h.due_in), h.priority)
            for h in hears
        ]
        return placed(self._each(epoch, "enqueue", "hear", items, quick=quick))

    def ensure(self, epoch: EpochId, sessions: Sequence[Ensure]) -> list[Placed]:
        return placed(self._run(epoch, [_ensure(chunk) for chunk in chunks(sessions)]))

    def hold(self, epoch: EpochId, holds: Sequence[Hold]) -> list[Place]:
        items = [(h.session_id, ",".join(h.reasons), maybe_ms(h.until_in)) for h in holds]
        return [Place(state) for state in self._each(epoch, "hold", "hold", items)]

    def claim(self, epoch: EpochId, request: ClaimRequest) -> ClaimReply:
        answer = self._link.run(epoch, [_claim(request)], verify=self._epochs.verify)[0]
        return self._claimed(request, self._judge(answer))

    def turn(
        self, epoch: EpochId, frees: Sequence[Free], request: ClaimRequest, *, heads: Sequence[SessionId] = ()
    ) -> Turn:
        calls = [Call("popped", groups={"head": [(head,) for head in chunk]}) for chunk in chunks(heads)]
        first = len(calls)
        calls += [Call("free", groups={"session": _frees(chunk)}) for chunk in chunks(frees)]
        answers = self._link.attempt(epoch, [*calls, _claim(request)], verify=self._epochs.verify)
        done: list[Freed] = []
        for answer in answers[first:-1]:
            done += freed(self._judge(answer)[1:])
        try:
            return Turn(tuple(done), self._claimed(request, self._judge(answers[-1])))
        except (Rebuilding, Backpressure) as refused:
            return Turn(tuple(done), None, refused)

    def renew(
        self,
        epoch: EpochId,
        worker_id: WorkerId,
        table: Sequence[Held],
        *,
        lease: timedelta,
        counter: int,
        pending: Sequence[ClaimToken] = (),
        agentless: Sequence[SessionId] = (),
    ) -> RenewReply:
        groups: dict[str, Items] = {
            "pending": [(request,) for request in pending],
            "held": [(held.session_id, held.token) for held in table],
            "agentless": [(session,) for session in agentless],
        }
        # Also on a server that the epoch was not minted on: its tokens are unique for ever, and with SQL away nobody
        # mints.
        call = Call("renew", [worker_id, as_ms(lease), counter], groups)
        words = self._judge(self._link.run(epoch, [call])[0])[1:]
        listed = int(words[0])
        states, rest = words[1 : listed + 1], words[listed + 1 :]
        back = int(rest[0])
        if back:
            self._link.telemetry.count("oah_leases_returned_total", back)
        return RenewReply(
            states=tuple(Renewal(state) for state in states),
            returned=tuple(SessionId(session) for session in rest[1 : back + 1]),
            strangers=tuple(SessionId(session) for session in rest[back + 1 :]),
        )

    def restore(self, epoch: EpochId, sessions: Sequence[Restore]) -> list[bool]:
        items = [
            (
                *(s.session_id, s.worker_id, s.token, s.parked, str(s.lane), s.workspace_id, s.ready_class.value),
                *(as_ms(s.life), s.over),
            )
            for s in sessions
        ]
        return [word == "1" for word in self._each(epoch, "restore", "session", items)]

    def free(self, epoch: EpochId, sessions: Sequence[Free]) -> list[Freed]:
        return freed(self._each(epoch, "free", "session", _frees(sessions)))

    def release(self, epoch: EpochId, sessions: Sequence[Release]) -> list[Freed]:
        items = [(s.session_id, s.token, s.ready_class.value) for s in sessions]
        return freed(self._each(epoch, "release", "session", items))

    def bind(self, epoch: EpochId, sessions: Sequence[Bind]) -> list[Freed]:
        items = [(s.session_id, s.token, s.ready_class.value, s.host, as_ms(s.wait)) for s in sessions]
        return freed(self._each(epoch, "bind", "session", items))

    def unbind(self, epoch: EpochId, sessions: Sequence[Unbind]) -> list[Place]:
        items = [(s.session_id, maybe_ms(s.wait)) for s in sessions]
        return [Place(state) for state in self._each(epoch, "unbind", "session", items)]

    def expire(self, epoch: EpochId, *, limit: int, lease: timedelta = timedelta(0)) -> list[Expired]:
        words = self._run(epoch, [Call("expire", [limit, as_ms(lease)])])
        return [
            Expired(
                session_id=SessionId(session),
                worker_id=WorkerId(worker) if worker else None,
                token=ClaimToken(token) if token else None,
                parked=parked == "1",
                passed=from_ms(passed),
            )
            for session, worker, token, parked, passed in rows(words, 5)
        ]

    def recover(self, epoch: EpochId, sessions: Sequence[Recover]) -> list[Freed]:
        items = [
            (
                *(s.session_id, s.token, s.target.value, str(s.lane), s.workspace_id),
                *(_class(s.ready_class), maybe_ms(s.until_in), ",".join(s.reasons), s.priority),
            )
            for s in sessions
        ]
        return freed(self._each(epoch, "recover", "session", items))

    def cancel(self, epoch: EpochId, sessions: Sequence[SessionId]) -> list[Place]:
        return [Place(state) for state in self._each(epoch, "cancel", "session", [(s,) for s in sessions])]

    def undue(self, epoch: EpochId, runs: Sequence[RunId]) -> None:
        self._each(epoch, "undue", "due", [(run,) for run in runs])

    def tick(self, epoch: EpochId, *, limit: int) -> TickReply:
        next_due, oldest, count, waiting, *rest = self._run(epoch, [Call("tick", [limit])])
        end = 2 * int(count)
        then = end + 2 * int(waiting)
        return TickReply(
            due=tuple(Due(RunId(run), SessionId(session)) for run, session in rows(rest[:end], 2)),
            bound=tuple(_bound(session, lane) for session, lane in rows(rest[end:then], 2)),
            holds_ended=tuple(SessionId(session) for session in rest[then:]),
            next_due_in=maybe_from_ms(next_due),
            oldest_ready=maybe_from_ms(oldest),
        )

    def popped(self, epoch: EpochId, heads: Sequence[SessionId]) -> None:
        self._each(epoch, "popped", "head", [(head,) for head in heads])

    def leases(self, epoch: EpochId, sessions: Sequence[SessionId]) -> list[LeaseView]:
        words = self._each(epoch, "leases", "session", [(s,) for s in sessions])
        return [
            LeaseView(
                session_id=session,
                place=Place(state),
                worker_id=WorkerId(worker) if worker else None,
                token=ClaimToken(token) if token else None,
                life=maybe_from_ms(life) if life != "-1" else timedelta(milliseconds=-1),
                ready_class=ReadyClass(name) if name else None,
            )
            for session, (state, worker, token, life, name) in zip(sessions, rows(words, 5), strict=True)
        ]

    def limits(self, epoch: EpochId, workspaces: Sequence[WorkspaceLimit]) -> None:
        self._each(epoch, "limits", "limit", [(w.workspace_id, w.weight, w.max_active) for w in workspaces])

    def caps(self, epoch: EpochId, caps: Sequence[GroupCap]) -> None:
        self._run(epoch, [Call("caps", groups={"cap": [(group_word(c.group), c.most) for c in caps]})])

    def drop_active(self, epoch: EpochId, group: Group, sessions: Sequence[SessionId]) -> int:
        word = group_word(group)
        calls = [Call("inactive", [word], {"session": [(s,) for s in chunk]}) for chunk in chunks(sessions)]
        return sum(int(word) for word in self._run(epoch, calls))

    def _each(self, epoch: EpochId, script: str, group: str, items: Items, *, quick: bool = False) -> list[str]:
        return self._run(epoch, [Call(script, groups={group: chunk}) for chunk in chunks(items)], quick=quick)

    def _run(self, epoch: EpochId, calls: Sequence[Call], *, quick: bool = False) -> list[str]:
        """The words of all answers. Raises EpochMismatch, Unavailable, Backpressure."""
        words: list[str] = []
        for answer in self._link.run(epoch, calls, quick=quick, verify=self._epochs.verify):
            words += self._judge(answer)[1:]
        return words

    def _judge(self, answer: list[str] | foreign.ResponseError) -> list[str]:
        if isinstance(answer, foreign.ResponseError):
            raise failures.translate(answer, address=self._link.dial.address)
        if answer[0] == "EPOCH":
            raise EpochMismatch(f"Redis is at epoch '{answer[1] if len(answer) > 1 else ''}'")
        if answer[0] == "REBUILDING":
            raise Rebuilding("Redis is being rebuilt from SQL")
        return answer

    def _claimed(self, request: ClaimRequest, words: list[str]) -> ClaimReply:
        _, more, next_due, ticked, *rest = words
        return ClaimReply(
            sessions=tuple(
                Claimed(SessionId(session), ClaimToken(token), parked=parked == "1", ready_class=ReadyClass(name))
                for session, token, parked, name in rows(rest, 4)
            ),
            more_left=more == "1",
            next_due_in=maybe_from_ms(next_due),
            ticked_ago=maybe_from_ms(ticked),
        )


def _class(ready_class: ReadyClass | None) -> str | None:
    return None if ready_class is None else ready_class.value


def _bound(session: str, lane: str) -> Bound:
    """What has moved on, or cannot be read, waits for no host."""
    try:
        return Bound(SessionId(session), Lane.parse(lane))
    except InvalidRequest:
        return Bound(SessionId(session), Lane("", ""))


def _claim(request: ClaimRequest) -> Call:
    order = [(str(lane), ready_class.value) for lane, ready_class in request.order]
    fixed: list[Value] = [request.worker_id, request.request, as_ms(request.lease), request.counter, request.want]
    return Call("claim", [*fixed, request.suspect_place, request.resumes_only], {"pick": order})


def _frees(sessions: Sequence[Free]) -> Items:
    return [
        (
            *(s.session_id, s.token, s.target.value, _class(s.ready_class)),
            *(maybe_ms(s.until_in), ",".join(s.reasons), s.priority),
        )
        for s in sessions
    ]


def _ensure(chunk: Sequence[Ensure]) -> Call:
    """Runs are listed apart, each with the place of its session in the chunk."""
    sessions = [
        (
            *(s.session_id, str(s.lane), s.workspace_id, s.ready_class.value),
            *(None if s.score is None else repr(float(s.score)), s.runs is not None, s.priority),
        )
        for s in chunk
    ]
    runs: list[tuple[int, str, bool]] = []
    for n, s in enumerate(chunk, start=1):
        runs += [(n, run, True) for run in s.promoted]
        runs += [(n, run, False) for run in s.runs or ()]
    return Call("ensure", groups={"session": sessions, "run": runs})
