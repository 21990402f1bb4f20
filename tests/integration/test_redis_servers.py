"""What only real servers show: over maxmemory, lost scripts, restarts, demotion, silence, the cost of a claim."""

from __future__ import annotations

import itertools
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from oah.adapters.redis.connect import open_broker
from oah.core.model.ids import ClaimToken, EpochId, RunId, SessionId
from oah.core.model.session import HoldReason, Place
from oah.errors import Backpressure, EpochMismatch, Unavailable
from oah.ports.broker import (
    BrokerOptions,
    ClaimRequest,
    Ensure,
    Free,
    Hear,
    Held,
    Release,
    Renewal,
    Target,
    WakeKind,
)
from tests.support.broker_desk import INTERACTIVE, LANE, LEASE, ORDER, W1, W2, WS, Desk, S
from tests.support.servers_redis import REDIS_7, RealServer, open_epoch, valkey_binary
from tests.support.waiting import eventually

SHORT = BrokerOptions(
    connect_timeout=timedelta(seconds=0.5),
    answer_timeout=timedelta(seconds=0.5),
    submit_timeout=timedelta(seconds=0.05),
)


@pytest.fixture
def real_desk(real_server: RealServer) -> Iterator[Desk]:
    broker = real_server.broker()
    desk = Desk(broker, open_epoch(broker), real_server.client())
    yield desk
    desk.client.config_set("maxmemory", 0)
    desk.audit()
    broker.close()


@pytest.fixture(params=["valkey", "redis7"])
def own_server(request: pytest.FixtureRequest) -> Iterator[RealServer]:
    """One that a test may stop and start."""
    server = RealServer(f"own-{request.param}", valkey_binary() if request.param == "valkey" else REDIS_7)
    server.start()
    yield server
    server.remove()


# over maxmemory


def test_over_maxmemory_what_ends_work_goes_on(real_desk: Desk) -> None:
    desk = real_desk
    tokens = {name: desk.take(name) for name in ("a", "b", "c", "d", "e", "f", "parked")}
    desk.free("parked", tokens["parked"], Target.PARKED)
    desk.hear("waiting")
    desk.hear("late", "run-late", due=timedelta(seconds=1))
    desk.client.config_set("maxmemory", 1)
    with pytest.raises(Backpressure):
        desk.hear("new")
    with pytest.raises(Backpressure):
        desk.broker.enqueue(desk.epoch, [], quick=True) or desk.hear("new")
    with pytest.raises(Backpressure):
        desk.claim()
    assert desk.place("new") is Place.IDLE
    assert desk.place("waiting") is Place.READY
    turn = desk.broker.turn(
        desk.epoch,
        [Free(SessionId("a"), tokens["a"], Target.READY, INTERACTIVE)],
        ClaimRequest(W1, desk.request(), LEASE, 2, 9, ORDER),
        heads=[SessionId("a")],
    )
    assert [freed.place for freed in turn.freed] == [Place.READY]
    assert isinstance(turn.refused, Backpressure)
    # All that is flagged:
    assert desk.renew(W1, ("b", tokens["b"])).states == (Renewal.EXTENDED,)
    assert desk.place("c") is Place.READY  # unlisted
    assert desk.restore("c", W1, "c" * 32)
    assert desk.free("c", "c" * 32, Target.IDLE).place is Place.READY  # it had been waiting
    assert desk.ensure("new").place is Place.READY
    assert desk.hold("new", HoldReason.PAUSED) is Place.HELD
    assert desk.ensure("new").place is Place.READY
    assert desk.cancel("new") is Place.IDLE
    assert desk.release("b", tokens["b"]).place is Place.READY
    desk.client.config_set("maxmemory", 0)
    desk.pass_time(7)
    desk.client.config_set("maxmemory", 1)
    assert [e.session_id for e in desk.broker.expire(desk.epoch, limit=9)] == ["parked"]
    assert desk.recover("parked", tokens["parked"], Target.READY).place is Place.READY
    assert [due.run_id for due in desk.broker.tick(desk.epoch, limit=9).due] == ["run-late"]
    desk.broker.undue(desk.epoch, ["run-late"])  # type: ignore[list-item]
    desk.broker.look([W1])
    desk.broker.wake([LANE])
    assert desk.broker.lead("a", lease=LEASE)
    desk.broker.resign("a")
    seen = desk.broker.view().id
    assert desk.broker.mint(EpochId("next"), seen=seen)
    assert desk.broker.open(EpochId("next"))
    assert desk.broker.facts()["maxmemory"] == "1"
    desk.client.config_set("maxmemory", 0)
    desk.epoch = EpochId("next")
    assert desk.claim(want=9).sessions


# scripts


def test_lost_scripts_are_loaded_again_and_only_what_failed_is_repeated(real_desk: Desk) -> None:
    desk = real_desk
    for n in range(6):
        desk.hear(f"s{n}")
    first = desk.claim(want=3)
    desk.broker.renew(desk.epoch, W1, [Held(c.session_id, c.token) for c in first.sessions], lease=LEASE, counter=1)
    desk.client.script_flush()
    # In one pipeline: free is unknown, claim is known again. The claim must not be executed twice.
    desk.claim(W2, want=1)
    desk.client.config_resetstat()
    frees = [Free(c.session_id, c.token, Target.IDLE) for c in first.sessions]
    turn = desk.broker.turn(desk.epoch, frees, ClaimRequest(W1, desk.request(), LEASE, 2, 1, ORDER))
    assert [freed.place for freed in turn.freed] == [Place.IDLE] * 3
    assert turn.claim is not None
    assert len(turn.claim.sessions) == 1
    stats = desk.client.info("commandstats")
    assert stats["cmdstat_zpopmin"]["calls"] == 1
    assert (stats["cmdstat_evalsha"]["calls"], stats["cmdstat_eval"]["calls"]) == (2, 1)  # free refused, claim; free
    assert desk.broker.figures().leased == 2


def test_many_calls_survive_a_flush_of_scripts_in_the_middle(real_desk: Desk) -> None:
    desk = real_desk
    stop = threading.Event()

    def forget() -> None:
        while not stop.is_set():
            desk.client.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        for n in range(200):
            desk.take(f"s{n}")
    finally:
        stop.set()
        thread.join()
    assert desk.broker.figures().leased == 200


# cost

FILL = """
for n = 1, ARGV[1] do
  local score, sid = redis.call('INCR', KEYS[1] .. 'seq'), nil
  sid = 's' .. score
  redis.call('ZADD', KEYS[1] .. 'ready:pool/shell:interactive:ws', score, sid)
  redis.call('ZADD', KEYS[1] .. 'ready:since:pool/shell:interactive', score, sid)
  redis.call('HSET', KEYS[1] .. 'session:' .. sid, 'state', 'ready', 'lane', 'pool/shell', 'ws', 'ws',
    'class', 'interactive', 'score', score)
end
"""


def test_a_claim_costs_the_same_at_200_and_at_200_000_ready_sessions(real_desk: Desk) -> None:
    """Counted in commands and in elements they touch, not in time."""
    desk = real_desk

    def fill(count: int) -> None:
        """As ensure would write them, but inside the server, in a second."""
        desk.ensure("first")
        for _ in range(-(-count // 2_000)):
            desk.client.eval(FILL, 1, "oah:{0}:", min(count, 2_000))

    def cost() -> dict[str, int]:
        desk.client.config_resetstat()
        reply = desk.claim(want=16)
        assert len(reply.sessions) == 16
        counted = {
            name: stat["calls"] for name, stat in desk.client.info("commandstats").items() if "config" not in name
        }
        frees = [Free(c.session_id, c.token, Target.READY, INTERACTIVE) for c in reply.sessions]
        desk.broker.free(desk.epoch, frees)
        return counted

    fill(200)
    cost()  # scripts are loaded, connections made
    small = cost()
    fill(200_000 - 200)
    assert sum(depth.sessions for depth in desk.broker.figures().ready) > 199_000
    large = cost()
    assert large == small
    per_session = sum(calls for name, calls in large.items() if name != "cmdstat_info") / 16
    assert per_session < 16
    desk.client.flushall()  # the audit of 200,000 sessions shows nothing more
    open_epoch(desk.broker)


def test_idle_waiting_costs_less_than_one_command_a_second(real_desk: Desk) -> None:
    desk = real_desk
    desk.broker.wait(W1, [LANE], timeout=timedelta(milliseconds=10))
    desk.client.config_resetstat()
    desk.broker.wait(W1, [LANE], timeout=timedelta(seconds=1.5))
    stats = desk.client.info("commandstats")
    assert {
        name: stat["calls"] for name, stat in stats.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    } == {"cmdstat_blpop": 1}


# the server goes and comes


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    broker = open_broker(f"unix://{tmp_path}/nobody", options=SHORT)
    for call in (broker.view, broker.now, broker.workers, lambda: broker.wait(W1, [], timeout=LEASE)):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.code == "redis_unreachable"
    broker.publish([(S, 1)])  # best effort
    broker.close()


def test_back_after_a_restart_with_nothing(own_server: RealServer) -> None:
    broker = own_server.broker(SHORT)
    epoch = open_epoch(broker)
    desk = Desk(broker, epoch, own_server.client())
    token = desk.take()
    assert broker.wait(W1, [LANE], timeout=LEASE) is WakeKind.WORK
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(_caught(lambda: broker.wait(W1, [LANE], timeout=LEASE))))
    thread.start()
    eventually(lambda: own_server.client().info("clients")["blocked_clients"] == 1)
    own_server.stop()
    thread.join(60)
    assert isinstance(waiting[0], Unavailable)
    with pytest.raises(Unavailable):
        desk.renew(W1, (S, token))
    own_server.start()
    with pytest.raises(EpochMismatch):
        desk.renew(W1, (S, token))
    view = broker.view()
    assert view.id is None
    assert broker.mint(EpochId("e2"), seen=None)
    desk.epoch = EpochId("e2")
    assert desk.restore(S, W1, token)
    assert broker.open(desk.epoch)
    assert desk.renew(W1, (S, token)).states == (Renewal.EXTENDED,)
    broker.close()


def test_an_old_snapshot_under_the_same_epoch_id_is_noticed(own_server: RealServer) -> None:
    """The data came back with its epoch id, but the server's run_id is another: nothing is claimed from it."""
    broker, other = own_server.broker(SHORT), own_server.broker(SHORT)
    epoch = open_epoch(broker)
    desk = Desk(broker, epoch, own_server.client())
    desk.hear("a")
    own_server.client().save()
    token = desk.claim().sessions[0].token
    own_server.stop()
    own_server.start()
    assert own_server.client().hget("oah:{0}:epoch", "id") == epoch.encode()
    for each in (broker, other):
        with pytest.raises(EpochMismatch):
            each.claim(epoch, ClaimRequest(W2, ClaimToken("f" * 32), LEASE, 1, 1, ORDER))
        with pytest.raises(EpochMismatch):
            each.release(epoch, [Release(SessionId("a"), token, INTERACTIVE)])
    view = broker.view()
    assert view.id == epoch
    assert view.run_id != view.server_run_id
    # Renewals alone go on: with SQL away nobody could mint.
    assert broker.renew(epoch, W1, [], lease=LEASE, counter=9).states == ()
    assert broker.mint(EpochId("e2"), seen=epoch)
    desk.epoch = EpochId("e2")
    assert desk.restore("a", W1, token)
    assert broker.open(desk.epoch)
    assert other.claim(desk.epoch, ClaimRequest(W2, ClaimToken("f" * 32), LEASE, 1, 1, ORDER)).sessions == ()
    for each in (broker, other):
        each.close()


def test_a_demoted_server_refuses_and_is_left(own_server: RealServer) -> None:
    broker = own_server.broker(SHORT)
    desk = Desk(broker, open_epoch(broker), own_server.client())
    token = desk.take()
    before = own_server.client().info("clients")["connected_clients"]
    own_server.client().replicaof("127.0.0.1", "1")
    with pytest.raises(Unavailable):
        desk.renew(W1, (S, token))
    eventually(lambda: own_server.client().info("clients")["connected_clients"] < before, what="the connection is left")
    own_server.client().replicaof("no", "one")
    assert desk.renew(W1, (S, token)).states == (Renewal.EXTENDED,)
    broker.close()


def test_a_stopped_server_is_not_waited_for_longer_than_said(own_server: RealServer) -> None:
    broker = own_server.broker(SHORT)
    asking = own_server.broker(BrokerOptions(answer_timeout=timedelta(minutes=1), submit_timeout=SHORT.submit_timeout))
    desk = Desk(broker, open_epoch(broker), own_server.client())
    token = desk.take()
    desk.hear("x")
    asking.enqueue(desk.epoch, [], quick=True)
    own_server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        desk.renew(W1, (S, token))
    assert caught.value.code == "redis_timeout"
    assert 0.4 < time.monotonic() - began < 20
    began = time.monotonic()
    with pytest.raises(Unavailable):
        asking.enqueue(desk.epoch, [Hear(SessionId("y"), RunId("r"), LANE, WS, INTERACTIVE)], quick=True)
    with pytest.raises(Unavailable):
        asking.look([W1], quick=True)
    assert time.monotonic() - began < 20, "not for the minute that other calls have"
    own_server.signal(signal.SIGCONT)
    eventually(lambda: _caught(lambda: desk.renew(W1, (S, token))) is None, what="it answers again")
    broker.close()
    asking.close()


# lost replies


class DroppingProxy:
    """Forwards to a server, and cuts the connection instead of passing on a share of the answers."""

    def __init__(self, target: Path, path: Path, *, share: float) -> None:
        self.url = f"unix://{path}"
        self._target, self._share, self._chance = target, share, random.Random(7)
        self.dropped = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(str(self._target))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(65536):
                if answers and self._chance.random() < self._share:
                    self.dropped += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_with_replies_lost_every_session_is_worked_once_and_none_is_stuck(real_desk: Desk, tmp_path: Path) -> None:
    """A worker that repeats its request until it is answered, over a connection that loses every 7th answer."""
    desk = real_desk
    proxy = DroppingProxy(Path(desk.client.connection_pool.connection_kwargs["path"]), tmp_path / "p", share=0.15)
    broker = open_broker(proxy.url, options=SHORT)
    total = 300
    desk.broker.ensure(desk.epoch, [Ensure(SessionId(f"s{n}"), LANE, WS, INTERACTIVE) for n in range(total)])
    worked: list[str] = []
    for counter in itertools.count(1):
        request = ClaimRequest(W1, desk.request(), LEASE, counter, 7, ORDER)
        reply = _until_answered(lambda request=request: broker.claim(desk.epoch, request))
        if not reply.sessions:
            break
        worked += [claimed.session_id for claimed in reply.sessions]
        frees = [Free(claimed.session_id, claimed.token, Target.IDLE) for claimed in reply.sessions]
        freed = _until_answered(lambda frees=frees: broker.free(desk.epoch, frees))
        assert {each.place for each in freed} == {Place.IDLE}
    assert sorted(worked) == sorted(f"s{n}" for n in range(total))
    assert proxy.dropped > 10
    assert desk.broker.figures().leased == 0
    broker.close()
    proxy.close()


def _until_answered(call: Any) -> Any:
    for _ in range(50):
        try:
            return call()
        except Unavailable:
            continue
    raise AssertionError("never answered")


def _caught(call: Any) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None
