"""Waking, looking, hints, the registry, the leader lease, figures, and values that cannot be read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oah.core.model.cordon import Cordon
from oah.core.model.group import of_workspace
from oah.core.model.ids import EpochId, SessionId, WorkerId, WorkspaceId
from oah.core.model.lane import Lane
from oah.core.model.session import HoldReason, Place
from oah.core.model.worker import WorkerReport, WorkerState
from oah.errors import Unavailable
from oah.ports.broker import Broker, Target, WakeKind
from tests.support.broker_desk import BACKGROUND, INTERACTIVE, LANE, W1, W2, Desk, S
from tests.support.servers_redis import open_epoch
from tests.support.waiting import eventually

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=20)
BEGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def report(worker: WorkerId = W1, **more: Any) -> WorkerReport:
    values: dict[str, Any] = {
        "id": worker,
        "name": "one",
        "host": "host",
        "pid": 7,
        "pool": "pool",
        "profiles": ("shell", "python"),
        "state": WorkerState.BUSY,
        "slots": 8,
        "busy": 2,
        "parked": 1,
        "cordoned": False,
        "draining": True,
        "version": "0.1.0",
        "started_at": BEGIN,
        "address": "127.0.0.1:8789",
        "cpu_percent": 12.5,
        "rss_bytes": 1024,
        "sessions": {"s1": "r1"},
        "slots_max": 12,
        "weight": 5,
        "weights": {"python": 4},
        "pressure": ("memory",),
        "memory_ratio": 0.93,
        "load_ratio": 1.5,
        "disk_ratio": 0.4,
        "cordon": Cordon(
            host="host", name="one", pool="pool", worker_id=worker, by="op", at=BEGIN, until=BEGIN + timedelta(hours=1)
        ),
    }
    return WorkerReport(**(values | more))


def waits(server: Any) -> None:
    """Somebody blocks in BLPOP now."""
    if not server.in_process:
        client = server.client()
        eventually(lambda: client.info("clients")["blocked_clients"] > 0, what="a blocked client")


def test_wait_ends_without_anything(broker: Broker, epoch: EpochId) -> None:
    began = time.monotonic()
    assert broker.wait(W1, [LANE], timeout=timedelta(seconds=0.3)) is None
    assert 0.25 < time.monotonic() - began < 20


def test_work_wakes_one_of_two(redis_server: Any, desk: Desk, pool: ThreadPoolExecutor) -> None:
    waiting = [pool.submit(desk.broker.wait, worker, [LANE], timeout=LONG) for worker in (W1, W2)]
    if not redis_server.in_process:
        client = redis_server.client()
        eventually(lambda: client.info("clients")["blocked_clients"] == 2, what="two blocked clients")
    desk.hear("a")
    eventually(lambda: sum(future.done() for future in waiting) == 1, what="one woke")
    desk.hear("b")
    assert [future.result(timeout=60) for future in waiting] == [WakeKind.WORK] * 2


def test_control_is_heard_also_without_lanes_and_goes_first(
    redis_server: Any, desk: Desk, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(desk.broker.wait, W1, [], timeout=LONG)
    waits(redis_server)
    desk.hear()
    desk.broker.look([W2])
    desk.broker.look([W1])
    assert waiting.result(timeout=60) is WakeKind.LOOK
    desk.broker.look([W1])
    desk.broker.look([W1])  # one unread hint is enough
    assert desk.broker.wait(W1, [LANE], timeout=SECOND) is WakeKind.LOOK
    assert desk.broker.wait(W1, [LANE], timeout=SECOND) is WakeKind.WORK
    assert desk.broker.wait(W1, [LANE], timeout=SECOND / 20) is None


def test_closing_ends_a_wait(redis_server: Any, epoch: EpochId, pool: ThreadPoolExecutor) -> None:
    if redis_server.in_process:
        return  # a fake connection has no socket to close; the process that holds it ends
    other = redis_server.broker()
    waiting = pool.submit(other.wait, W1, [LANE], timeout=LONG)
    waits(redis_server)
    other.close()
    with pytest.raises(Unavailable):
        waiting.result(timeout=60)


def test_hints_reach_every_tailer(redis_server: Any, broker: Broker, epoch: EpochId, pool: ThreadPoolExecutor) -> None:
    other = redis_server.broker()
    assert broker.hints(timeout=SECOND / 20) == []  # subscribed from now on
    assert other.hints(timeout=SECOND / 20) == []
    waiting = [pool.submit(one.hints, timeout=LONG) for one in (broker, other)]
    broker.publish([(SessionId("a b"), 3), (SessionId("c"), 9)])
    broker.publish([])
    for future in waiting:
        assert sorted(future.result(timeout=60)) == [("a b", 3), ("c", 9)]
    other.close()


def test_registry(redis_server: Any, broker: Broker) -> None:
    broker.report(report(), ttl=LONG)
    broker.report(report(W2, name="two", address=None, sessions={}), ttl=LONG)
    broker.report(report(busy=3), ttl=LONG)
    one, two = sorted(broker.workers(), key=lambda worker: worker.id)
    assert one.last_seen_at is not None
    assert abs(one.last_seen_at.timestamp() - broker.now()) < 5
    assert one == report(busy=3, last_seen_at=one.last_seen_at)
    assert (two.id, two.name, two.address) == (W2, "two", None)
    assert broker.departed() == []
    redis_server.client().delete(f"oah:{{g}}:worker:{W2}")
    assert broker.departed() == [W2]
    broker.forget(W2)
    assert (broker.departed(), len(broker.workers())) == ([], 1)


def test_reports_expire(broker: Broker) -> None:
    broker.report(report(), ttl=timedelta(milliseconds=30))
    eventually(lambda: broker.departed() == [W1])
    assert broker.workers() == []


def test_forgetting_an_incarnation_leaves_its_leases_for_recovery(desk: Desk) -> None:
    token = desk.take()
    desk.broker.look([W1])
    desk.broker.report(report(), ttl=timedelta(milliseconds=30))
    desk.free(S, token, Target.PARKED, ready_class=INTERACTIVE)
    desk.broker.forget(W1)
    assert desk.view().token == token
    desk.audit()  # it is still called
    eventually(lambda: desk.broker.departed() == [W1], what="it stays listed, so that somebody comes back for the rest")
    desk.free(S, token, Target.IDLE)
    desk.broker.forget(W1)
    assert [key for key in desk.client.keys("*") if W1.encode() in key] == []


def test_leader_lease(broker: Broker) -> None:
    assert broker.leader() is None
    assert broker.lead("a", lease=LONG)
    assert broker.lead("a", lease=LONG)
    assert not broker.lead("b", lease=LONG)
    broker.resign("b")
    assert broker.leader() == "a"
    broker.resign("a")
    assert broker.lead("b", lease=timedelta(milliseconds=40))
    eventually(lambda: broker.lead("a", lease=LONG), within=5)


def test_one_leader_among_many(redis_server: Any, broker: Broker, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(8)

    def compete(n: int) -> bool:
        start.wait()
        return broker.lead(f"holder-{n}", lease=LONG)

    assert sum(pool.map(compete, range(8))) == 1


def test_figures(desk: Desk) -> None:
    for n in range(5):
        desk.hear(f"s{n}")
    desk.hear("low", cls=BACKGROUND)
    desk.hear("late", due=LONG)
    desk.hold("held", HoldReason.PAUSED)
    desk.pass_time(3)
    desk.claim()
    figures = desk.broker.figures()
    depths = {(depth.lane, depth.ready_class): depth.sessions for depth in figures.ready if depth.sessions}
    assert depths == {(LANE, INTERACTIVE): 4, (LANE, BACKGROUND): 1}
    assert (figures.leased, figures.due, figures.held) == (1, 1, 1)
    assert figures.oldest_ready is not None
    assert 3 * SECOND <= figures.oldest_ready < 10 * SECOND


def test_facts_and_clock(redis_server: Any, broker: Broker) -> None:
    facts = broker.facts()
    assert facts["mode"] == ("in-process" if redis_server.in_process else "server")
    if not redis_server.in_process:
        assert facts["maxmemory_policy"] == "noeviction"
        assert facts["redis_version"]
    assert abs(broker.now() - time.time()) < 60


GARBAGE = (
    "session:s",
    "session:s:queue",
    "ready:pool/shell:interactive:ws",
    "ready:since:pool/shell:interactive",
    "ring:pool/shell:interactive",
    "rings",
    "ws:ws",
    "capped",
    "lanes",
    "wake:pool/shell",
    "seq",
    "leases",
    f"owned:{W1}",
    f"claim:{W1}",
    f"ready:worker:{W1}",
    "active:ws:ws",
    "due",
    "due:session",
    "held",
)


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("kind", ["string", "stream"])
def test_garbage_under_any_key_is_set_aside_and_work_goes_on(desk: Desk, name: str, kind: str) -> None:
    key = f"oah:{{0}}:{name}"
    if kind == "string":
        desk.client.set(key, b"\xff\x00 not what it should be")
    else:
        desk.client.xadd(key, {"a": b"\xff"})
    desk.hear()
    desk.hear("late", due=LONG)
    (claimed,) = desk.claim().sessions
    assert claimed.session_id == S
    desk.renew(W1, (S, claimed.token))
    desk.free(S, claimed.token, Target.PARKED)
    desk.hear()
    assert desk.claim().sessions[0].token == claimed.token
    desk.free(S, claimed.token, Target.HELD, reasons=(HoldReason.PAUSED,))
    desk.broker.tick(desk.epoch, limit=9)
    assert desk.ensure().place is Place.READY
    assert desk.cancel() is Place.IDLE
    if name == f"claim:{W1}" and kind == "string":
        return  # a request id like any other, only an unknown one
    found = dict(desk.broker.poison())
    assert key in found
    if kind == "string":
        assert found[key] == b"\xff\x00 not what it should be"


READ_PLAINLY = ("lanes", "leases", "due", "held", "ready:since:pool/shell:interactive", "active:ws:ws", "poison")


@pytest.mark.parametrize("name", READ_PLAINLY)
def test_reads_of_the_leader_and_of_people_survive_garbage(desk: Desk, name: str) -> None:
    """Whoever reads first: the scripts need not have met it."""
    key = f"oah:{{0}}:{name}"
    desk.hear()
    desk.client.delete(key)
    desk.client.set(key, "garbage")
    for _ in range(2):
        desk.broker.figures()
        assert desk.broker.active([of_workspace(WorkspaceId("ws"))])[0] == []
        desk.broker.poison()
    assert key in dict(desk.broker.poison())
    desk.ensure()
    assert desk.claim().sessions[0].session_id == S
    desk.client.flushall()  # what the garbage replaced is put back by reconcile, which is not here
    open_epoch(desk.broker)


def test_a_hash_that_makes_no_sense_is_set_aside(desk: Desk) -> None:
    desk.client.hset("oah:{0}:session:s", mapping={"state": "leased", "lane": "pool/shell", "ws": "ws"})
    desk.client.hset("oah:{0}:session:t", mapping={"state": "somewhere"})
    assert desk.hear("s").place is Place.READY
    assert desk.hear("t").place is Place.READY
    assert {key for key, _ in desk.broker.poison()} == {"oah:{0}:session:s", "oah:{0}:session:t"}


def test_undecodable_reports_lanes_and_hints(redis_server: Any, broker: Broker) -> None:
    client = redis_server.client()
    broker.report(report(W2), ttl=LONG)
    broker.report(report(), ttl=LONG)
    client.hset(f"oah:{{g}}:worker:{W1}", "report", b'{"id": \xff')
    assert [worker.id for worker in broker.workers()] == [W2]
    assert broker.workers() and broker.departed() == []
    client.sadd("oah:{0}:lanes", b"\xffno lane")
    assert broker.figures().ready == ()
    broker.hints(timeout=SECOND / 20)
    client.publish("oah:{g}:events", b"\xff\xfe")
    broker.publish([(SessionId("s"), 1)])
    assert broker.hints(timeout=5 * SECOND) == [("s", 1)]
    assert {value for _, value in broker.poison()} == {b'{"id": \xff', b"\xffno lane", b"\xff\xfe"}


def test_poison_is_bounded(redis_server: Any, desk: Desk) -> None:
    for n in range(130):
        desk.client.set(f"oah:{{0}}:session:s{n}", "garbage")
        desk.hear(f"s{n}")
    assert len(desk.broker.poison(limit=1000)) == 100
    assert len(desk.broker.poison(limit=7)) == 7


def test_an_undecodable_session_id_is_only_a_name(desk: Desk) -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    desk.hear(name)
    (claimed,) = desk.claim().sessions
    assert claimed.session_id == name
    assert desk.free(name, claimed.token, Target.IDLE).place is Place.IDLE


def test_lanes_of_other_pools_sleep_on(redis_server: Any, desk: Desk) -> None:
    desk.hear()
    assert desk.broker.wait(W1, [Lane("pool", "python")], timeout=SECOND / 20) is None


def test_a_leader_lease_that_a_wrong_clock_has_written_ends_in_time(redis_server: Any, broker: Broker) -> None:
    """Given while the clock was an hour ahead to one that has died: another leads after a lease, not after an hour."""
    assert broker.lead("a", lease=LONG)
    client = redis_server.client()
    client.pexpire("oah:{g}:leader", 3_600_000)
    assert not broker.lead("b", lease=timedelta(milliseconds=200))
    assert client.pttl("oah:{g}:leader") <= 200
    eventually(lambda: broker.lead("b", lease=LONG), within=5)
