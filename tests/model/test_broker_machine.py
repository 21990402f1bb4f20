"""Random lives of sessions in the broker against the state table in Python, with everything lost that can be lost.

After every step: the audit of all keys (at most one place, every index agrees), the model and Redis say the same, a
token that was given up changes nothing, the oldest of a class and workspace goes first, caps hold.
"""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oah.adapters.redis.rim import group_word
from oah.core.model.group import ALL, Group, GroupKind, of_pool, of_profile
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.run import PRIORITY, ReadyClass
from oah.core.model.session import HoldReason
from oah.errors import EpochMismatch, Rebuilding
from oah.ports.broker import (
    ClaimRequest,
    Ensure,
    Free,
    GroupCap,
    Hear,
    Held,
    Hold,
    Recover,
    Release,
    Restore,
    Target,
    WorkspaceLimit,
)
from tests.model.broker_model import Model
from tests.support.broker_audit import audit, sessions, shift_time
from tests.support.servers_redis import FakeServer, RealServer

LANES = [Lane("pool", "shell"), Lane("pool", "python")]
NAMES = [f"s{n}" for n in range(6)]
WORKERS = [WorkerId("one.1"), WorkerId("two.1")]
LEASE = timedelta(seconds=60)
CAP = 2

names = st.sampled_from(NAMES)
workers = st.sampled_from(WORKERS)
run_classes = st.sampled_from(["interactive", "subagent", "background"])
classes = st.sampled_from([cls.value for cls in PRIORITY])
maybe_classes = st.none() | classes
targets = st.sampled_from([target.value for target in Target])
priorities = st.sampled_from([0, 0, 7, -7])
GROUPS = (ALL, of_profile("shell"), of_profile("python"), of_pool("pool"))


def lane(name: str) -> Lane:
    return LANES[int(name[1:]) % 2]


def workspace(name: str) -> WorkspaceId:
    return WorkspaceId("capped" if name in NAMES[:3] else "free")


class BrokerMachine(RuleBasedStateMachine):
    """One broker, two workers, six sessions, two lanes, two workspaces (one capped)."""

    server: ClassVar[Any]

    @initialize()
    def begin(self) -> None:
        self.server.reset()
        self.broker = self.server.broker()
        self.client = self.server.client()
        self.model = Model()
        self.numbers = itertools.count(1)
        self.epoch: EpochId | None = None
        self.rebuilding = False
        self.counters = dict.fromkeys(WORKERS, 0)
        self.lost: dict[WorkerId, ClaimRequest] = {}
        self.tokens: list[tuple[str, str]] = []
        self.snapshot: tuple[dict[bytes, bytes], Model] | None = None
        self.mint()
        self.open()

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
            self.client.close()

    # what happens to sessions

    @rule(name=names, cls=run_classes, priority=priorities)
    def enqueue(self, name: str, cls: str, priority: int) -> None:
        run = RunId(f"r{next(self.numbers)}")
        hear = Hear(SessionId(name), run, lane(name), workspace(name), ReadyClass(cls), priority=priority)
        (placed,) = self.broker.enqueue(self.epoch, [hear])
        assert placed.place == self.model.enqueue(name, cls)
        s = self.model[name]
        assert placed.owner == (s.worker if s.place == "parked" and s.heard else None), "not while it is held"

    @rule(name=names, cls=classes, priority=priorities)
    def ensure(self, name: str, cls: str, priority: int) -> None:
        (placed,) = self.broker.ensure(
            self.epoch, [Ensure(SessionId(name), lane(name), workspace(name), ReadyClass(cls), priority=priority)]
        )
        assert placed.place == self.model.ensure(name, cls)

    @rule(name=names, reason=st.sampled_from(list(HoldReason)))
    def hold(self, name: str, reason: HoldReason) -> None:
        (place,) = self.broker.hold(self.epoch, [Hold(SessionId(name), (reason,))])
        assert place == self.model.hold(name, reason.value)

    @precondition(lambda self: not self.rebuilding)
    @rule(
        worker=workers,
        want=st.integers(1, 4),
        lanes=st.permutations(LANES),
        suspect=st.booleans(),
        lost=st.booleans(),
    )
    def claim(self, worker: WorkerId, want: int, lanes: list[Lane], suspect: bool, lost: bool) -> None:
        self.counters[worker] += 1
        request = ClaimRequest(
            worker,
            ClaimToken(f"{next(self.numbers):032x}"),
            LEASE,
            self.counters[worker],
            want,
            tuple((one, cls) for one in lanes for cls in PRIORITY),
            suspect_place=suspect,
        )
        before = sessions(self.client)
        open_to = self.open_to(worker, suspect=suspect)
        reply = self.broker.claim(self.epoch, request)
        taken = [claimed.session_id for claimed in reply.sessions]
        assert len(set(taken)) == len(taken) <= want
        assert set(taken) <= open_to.keys()
        suspects = [name for name in taken if open_to[name] == "suspect"]
        assert len(suspects) <= suspect
        self.within_caps(taken, open_to, before)
        if len(taken) < want:
            self.nothing_left(taken, open_to, suspects)
        self.oldest_first(taken, before)
        for claimed in reply.sessions:
            standing = self.model.claimed(claimed.session_id, worker, request.request, request.counter)
            assert (claimed.token, claimed.ready_class) == (standing.token, standing.cls)
            assert claimed.parked is (claimed.token != request.request)
        if lost:
            self.lost[worker] = request
        else:
            self.lost.pop(worker, None)
            self.tokens += [(claimed.session_id, claimed.token) for claimed in reply.sessions]

    @precondition(lambda self: self.lost and not self.rebuilding)
    @rule(worker=workers)
    def repeat_claim(self, worker: WorkerId) -> None:
        request = self.lost.get(worker)
        if request is None:
            return
        mine = {
            name: s.token
            for name, s in self.model.sessions.items()
            if s.place == "leased" and s.worker == worker and s.request == request.request
        }
        known = self.client.get(f"oah:{{0}}:claim:{worker}") == request.request.encode()
        if not known:
            return  # it took nothing, or Redis has been emptied: as good as a new one
        reply = self.broker.claim(self.epoch, request)
        assert {claimed.session_id: claimed.token for claimed in reply.sessions} == mine
        del self.lost[worker]
        self.tokens += list(mine.items())

    @rule(worker=workers, data=st.data())
    def renew(self, worker: WorkerId, data: st.DataObject) -> None:
        """With a table that may lack sessions it owns and list some that it does not."""
        owned = {name: s.token for name, s in self.model.sessions.items() if s.owned and s.worker == worker}
        listed = {name: token for name, token in owned.items() if data.draw(st.integers(0, 4)) > 0}
        for name, token in self.tokens[-3:]:
            listed.setdefault(name, token)
        pending = [self.lost[worker].request] if worker in self.lost and data.draw(st.booleans()) else []
        agentless = [name for name in owned if name not in listed and data.draw(st.booleans())]
        counter = self.counters[worker] + data.draw(st.integers(0, 1))
        states, returned, strangers = self.model.renew(worker, listed, pending, counter, agentless)
        reply = self.broker.renew(
            self.epoch,
            worker,
            [Held(SessionId(name), ClaimToken(token)) for name, token in listed.items()],
            lease=LEASE,
            counter=counter,
            pending=pending,
            agentless=[SessionId(name) for name in agentless],
        )
        assert [state.value for state in reply.states] == states
        assert (set(reply.returned), set(reply.strangers)) == (returned, strangers)

    @rule(name=names, goal=targets, cls=maybe_classes, backoff=st.booleans(), stale=st.integers(0, 3), data=st.data())
    def free(self, name: str, goal: str, cls: str | None, backoff: bool, stale: int, data: st.DataObject) -> None:
        token = self.token(name, stale, data)
        held = goal == "held" or (goal == "parked" and backoff)
        reasons = (HoldReason.BACKOFF,) if held else ()
        free = Free(SessionId(name), ClaimToken(token), Target(goal), cls and ReadyClass(cls), None, reasons)
        expected = self.model.free(name, token, goal, cls, held=held)
        for _ in range(1 + (stale == 0)):  # the answer was lost, or not
            (freed,) = self.broker.free(self.epoch, [free])
            assert (freed.place or "other") == expected
            assert (freed.owner is not None) is (expected == "parked" and self.model[name].heard is not None)
            expected = self.model.free(name, token, goal, cls, held=held)

    @rule(name=names, cls=classes, stale=st.integers(0, 3), data=st.data())
    def release(self, name: str, cls: str, stale: int, data: st.DataObject) -> None:
        token = self.token(name, stale, data)
        score = sessions(self.client).get(name, {}).get("score")
        (freed,) = self.broker.release(self.epoch, [Release(SessionId(name), ClaimToken(token), ReadyClass(cls))])
        was = self.model[name].place
        assert (freed.place or "other") == self.model.release(name, token, cls)
        if was == "leased" and freed.place == "ready" and score:
            assert sessions(self.client)[name]["score"] == score

    @rule(
        name=names,
        goal=st.sampled_from(["ready", "held", "idle"]),
        cls=maybe_classes,
        stale=st.integers(0, 3),
        data=st.data(),
    )
    def recover(self, name: str, goal: str, cls: str | None, stale: int, data: st.DataObject) -> None:
        token = self.token(name, stale, data)
        reasons = (HoldReason.BACKOFF,) if goal == "held" else ()
        recover = Recover(
            *(SessionId(name), ClaimToken(token), Target(goal), lane(name), workspace(name)),
            *(cls and ReadyClass(cls), None, reasons),
        )
        for _ in range(2):  # two recoverers
            (freed,) = self.broker.recover(self.epoch, [recover])
            assert (freed.place or "other") == self.model.recover(name, token, goal, cls)

    @rule(name=names, worker=workers, parked=st.booleans(), over=st.booleans(), known=st.booleans())
    def restore(self, name: str, worker: WorkerId, parked: bool, over: bool, known: bool) -> None:
        s = self.model[name]
        if known and s.owned:
            worker, token = WorkerId(s.worker or ""), s.token or ""
        else:
            token = f"{next(self.numbers):032x}"
        named = ClaimToken(s.token) if over and s.token else None
        (done,) = self.broker.restore(
            self.epoch,
            [
                Restore(
                    *(SessionId(name), worker, ClaimToken(token), parked, lane(name), workspace(name)),
                    *(ReadyClass.INTERACTIVE, LEASE, named),
                )
            ],
        )
        assert done is self.model.restore(name, worker, token, named, parked=parked, rebuilding=self.rebuilding)
        self.tokens.append((name, token))

    @rule(name=names)
    def cancel(self, name: str) -> None:
        (place,) = self.broker.cancel(self.epoch, [SessionId(name)])
        assert place == self.model.cancel(name)

    @rule()
    def tick(self) -> None:
        self.broker.tick(self.epoch, limit=10)

    @rule(cap=st.sampled_from([1, CAP, None]))
    def change_cap(self, cap: int | None) -> None:
        self.broker.limits(self.epoch, [WorkspaceLimit(WorkspaceId("capped"), 2, cap)])
        self.cap = cap

    @rule(caps=st.dictionaries(st.sampled_from(GROUPS), st.sampled_from([0, 1, 3]), max_size=2))
    def change_caps(self, caps: dict[Group, int]) -> None:
        """0: paused. A pool has no other."""
        given = {group: 0 if group.kind is GroupKind.POOL else most for group, most in caps.items()}
        self.broker.caps(self.epoch, [GroupCap(group, most) for group, most in given.items()])

    # what is lost

    @rule()
    def leases_pass(self) -> None:
        shift_time(self.client, 61_000)
        for name in self.model.having("leased", "parked"):
            s = self.model[name]
            self.model[name] = type(s)(**{**s.__dict__, "expired": True})
        found = {expired.session_id for expired in self.broker.expire(self.epoch, limit=99)}
        assert found == set(self.model.having("leased", "parked"))

    @rule()
    def scripts_vanish(self) -> None:
        self.client.script_flush()

    @rule()
    def flush(self) -> None:
        """Everything is gone; SQL's owners come back while rebuilding, the rest by ensure."""
        truth, self.model = self.model, Model()
        self.client.flushall()
        self.refused()
        self.after_loss(truth)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = ({key: self.client.dump(key) for key in self.client.keys("*")}, self.model.copy())

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def old_snapshot_comes_back(self) -> None:
        truth = self.model
        content, model = self.snapshot or ({}, Model())
        self.client.flushall()
        for key, value in content.items():
            self.client.restore(key, 0, value)
        self.model = model.copy()
        self.cap = self.stored_cap()
        # Leases of the snapshot may have passed meanwhile: make that certain, both ways.
        shift_time(self.client, 61_000)
        for name in self.model.having("leased", "parked"):
            s = self.model[name]
            self.model[name] = type(s)(**{**s.__dict__, "expired": True})
        self.after_loss(truth)

    @rule()
    def another_leader_mints(self) -> None:
        self.mint()

    @precondition(lambda self: self.rebuilding)
    @rule()
    def open(self) -> None:
        assert self.broker.open(self.epoch)
        self.rebuilding = False

    # always

    @invariant()
    def redis_is_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        found = audit(self.client)
        for name in NAMES:
            s, fields = self.model[name], found.get(name, {})
            assert fields.get("state", "idle") == s.place, name
            assert fields.get("heard") == s.heard, name
            assert (fields.get("worker"), fields.get("token")) == (s.worker, s.token), name
            if s.place in ("ready", "leased"):
                assert fields.get("class") == s.cls, name
            assert set(fields.get("reasons", "").split(",")) - {""} == s.reasons, name

    # pieces

    cap: int | None = None

    def mint(self) -> None:
        new = EpochId(f"epoch-{next(self.numbers)}")
        assert self.broker.mint(new, seen=self.broker.view().id)
        self.epoch, self.rebuilding = new, True
        with pytest.raises(Rebuilding):
            self.broker.claim(new, ClaimRequest(WORKERS[0], ClaimToken("x"), LEASE, 1, 1, ()))

    def refused(self) -> None:
        with pytest.raises(EpochMismatch):
            self.broker.tick(self.epoch, limit=1)
        assert self.client.keys("*") == []

    def after_loss(self, truth: Model) -> None:
        self.cap = self.stored_cap()
        self.mint()
        for name in truth.having("leased", "parked"):
            s = truth[name]
            restore = Restore(
                *(SessionId(name), WorkerId(s.worker or ""), ClaimToken(s.token or ""), s.place == "parked"),
                *(lane(name), workspace(name), ReadyClass.INTERACTIVE, LEASE),
            )
            assert self.broker.restore(self.epoch, [restore]) == [True]
            parked = s.place == "parked"
            assert self.model.restore(name, s.worker or "", s.token or "", None, parked=parked, rebuilding=True)
        self.open()

    def stored_cap(self) -> int | None:
        value = self.client.hget("oah:{0}:ws:capped", "cap")
        return int(value) if value else None

    def caps(self) -> dict[Group, int]:
        """As the broker has them: a snapshot may have brought others back."""
        stored = self.client.hgetall("oah:{0}:caps")
        return {group: int(stored[word]) for group in GROUPS if (word := group_word(group).encode()) in stored}

    def within_caps(self, taken: list[str], open_to: dict[str, str | None], before: dict[str, dict[str, str]]) -> None:
        """Only what waited and goes on may exceed one."""
        active = [name for name, fields in before.items() if fields["state"] == "leased"]
        for group, most in self.caps().items():
            there = sum(group.has(lane(name), workspace(name)) for name in active)
            new = [name for name in taken if group.has(lane(name), workspace(name)) and open_to[name] != "resume"]
            assert len(new) <= max(0, most - there), f"{new} beyond the cap of {group}"

    def token(self, name: str, stale: int, data: st.DataObject) -> str:
        """The right one, or one that was right once, for this or another session."""
        if stale == 0 and self.tokens:
            return data.draw(st.sampled_from(self.tokens))[1]
        return self.model[name].token or "0" * 32

    def open_to(self, worker: WorkerId, *, suspect: bool) -> dict[str, str | None]:
        """Sessions that a claim of this worker may take, with their class."""
        found = {}
        for name, s in self.model.sessions.items():
            called = s.place == "parked" and s.worker == worker and s.heard and not s.expired
            cls = s.heard if called else s.cls
            if (s.place == "ready" or called) and (suspect or cls != "suspect"):
                found[name] = cls
        return found

    def nothing_left(self, taken: list[str], open_to: dict[str, str | None], suspects: list[str]) -> None:
        """A claim that came short left only further suspects, and what a cap refused."""
        leased = self.model.having("leased")
        active = Counter(workspace(name) for name in leased)
        closed = [
            group
            for group, most in self.caps().items()
            if sum(group.has(lane(name), workspace(name)) for name in [*leased, *taken]) >= most
        ]
        for name, cls in open_to.items():
            if name in taken or (cls == "suspect" and suspects):
                continue
            if cls != "resume" and any(group.has(lane(name), workspace(name)) for group in closed):
                continue
            full = self.cap is not None and active[workspace(name)] + len(taken) >= self.cap
            assert workspace(name) == "capped" and full, f"{name} was left behind"

    def oldest_first(self, taken: list[str], before: dict[str, dict[str, str]]) -> None:
        groups: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
        for name, fields in before.items():
            if fields["state"] == "ready":
                key = (fields["lane"], fields["class"], fields["ws"])
                rank = float(fields["score"]) - int(fields.get("priority", 0)) * 1e12
                groups.setdefault(key, []).append((rank, name))
        for group in groups.values():
            order = [name for _, name in sorted(group)]
            got = [name for name in order if name in taken]
            assert order[: len(got)] == got, f"{got} out of {order}"


def run(server: FakeServer | RealServer, *, examples: int, steps: int) -> None:
    machine = type("Machine", (BrokerMachine,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[Phase.generate],  # shrinking forty steps takes minutes: run it by hand
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_on_fakeredis(fake_server: FakeServer) -> None:
    run(fake_server, examples=30, steps=40)


def test_on_valkey(valkey_server: RealServer) -> None:
    run(valkey_server, examples=40, steps=40)


def test_on_redis_7(redis7_server: RealServer) -> None:
    run(redis7_server, examples=20, steps=40)
