"""The HTTP process itself: its server, its first key, its health, its figures, what it lets the broker hear."""

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest

from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.api.app import create_app
from oah.api.firstkey import ensure_admin_key
from oah.api.server import Server
from oah.core.model.ids import ClaimToken
from oah.core.model.lane import Lane
from oah.core.model.run import Outcome, ReadyClass, RunStatus
from oah.core.model.session import Place
from oah.core.model.worker import WorkerState
from oah.errors import Backpressure, InvalidRequest, NotFound, Unavailable
from oah.ports.broker import ClaimRequest, Free, Target, WakeKind
from oah.ports.store import RecoveryAction, RecoveryWrite, Settlement
from oah.services import keys
from oah.settings import AuthMode
from tests.support import eventually
from tests.support.api import EPOCH, WORKER, deploy
from tests.support.servers_redis import FakeServer


def test_a_port_that_is_taken_is_an_error_of_the_caller(api):
    second = Server(create_app(api.context), port=api.server.port)
    with pytest.raises(Unavailable) as caught:
        second.start()
    assert caught.value.code == "port_unavailable"
    assert str(api.server.port) in caught.value.message


def test_a_server_that_was_bound_and_never_started_can_be_stopped(api):
    idle = Server(create_app(api.context))
    assert idle.port > 0
    idle.stop(timedelta(0))
    assert idle.join(timedelta(seconds=1))


def test_requests_in_flight_are_answered_before_the_end(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path) as api, ThreadPoolExecutor() as pool:
        client = api.client(retries=0)
        session = client.create_session("shell")["id"]
        inner = api.state.batches._commit
        entered, go = [], []

        def slow(runs):
            entered.append(1)
            eventually(lambda: go, within=20)
            return inner(runs)

        api.state.batches._commit = slow
        answer = pool.submit(client.submit, session, "x")
        eventually(lambda: entered)
        api.server.stop(timedelta(seconds=10))
        eventually(lambda: api.state.stopping.is_set())
        go.append(1)
        assert answer.result(60)["status"] == "queued"
        assert api.server.join(timedelta(seconds=10))
        with pytest.raises(Unavailable):
            client.health()
    broker.close()


def test_what_was_accepted_last_is_heard_before_the_end(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path) as api:
        client = api.client()
        session = client.create_session("shell")["id"]
        client.submit(session, "x")
        api.server.stop(timedelta(seconds=5))
        assert api.server.join(timedelta(seconds=10))
        assert not api.store.unheard(EPOCH, older_than=timedelta(0), limit=10)
    broker.close()


def test_ready_says_what_is_missing_and_that_it_goes_away(api):
    with api.http(None) as http:
        assert http.get("/readyz").json() == {
            "status": "ready",
            "code": "ready",
            "detail": "ready",
            "draining": False,
            "checks": {"store": "ok", "broker": "ok"},
        }
        api.broker.off(Unavailable("no Redis"))
        answer = http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"store": "ok", "broker": "no Redis"}
        api.broker.on()
        api.state.stopping.set()
        assert http.get("/readyz").json()["draining"]
        assert http.get("/healthz").status_code == 200


def test_requests_are_counted_by_template_never_by_id(api):
    with api.http() as http:
        http.get("/v1/runs/run_nothing")
        http.get("/v1/nothing")
    with api.http(None) as http:
        http.get("/v1/runs")
        text = http.get("/metrics").text
    assert 'route="/v1/runs/{run_id}",status="404"' in text
    assert 'route="other",status="404"' in text
    assert 'method="GET",route="other",status="401"' in text, "refused before a route was looked for"
    assert "run_nothing" not in text


def test_submits_are_counted(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    client.submit(session, "x", idempotency_key="k")
    client.submit(session, "x", idempotency_key="k")
    assert 'oah_runs_submitted_total{class="interactive"} 1.0' in client.metrics()


# --- without keys ----------------------------------------------------------------------------------------------------


def test_without_keys_only_this_machine_is_served(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path, auth=AuthMode.OFF) as api:
        with api.http(None) as http:
            assert http.post("/v1/sessions", json={"agent": "shell"}).status_code == 201
            assert http.get("/v1/keys").status_code == 200
            for host in ("evil.example", "evil.example:80", "10.0.0.1", "[2001:db8::1]:80", "127.0.0.1.evil.example"):
                assert http.get("/v1/runs", headers={"host": host}).status_code == 403, host
            for host in ("localhost", "localhost:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:80"):
                assert http.get("/v1/runs", headers={"host": host}).status_code == 200, host
            # A form of a page in a browser cannot send JSON without asking first.
            form = http.post("/v1/sessions", content=b'{"agent": "shell"}', headers={"content-type": "text/plain"})
            assert form.status_code == 422
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            with pytest.raises(InvalidRequest):
                Server(create_app(api.context), host=host)
    broker.close()


# --- the first key ---------------------------------------------------------------------------------------------------


def test_the_first_start_makes_an_admin_key(store, tmp_path):
    clock, ids = SystemClock(), SystemIds()
    path = ensure_admin_key(store, clock, ids, tmp_path)
    assert path == tmp_path / "admin.key"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    secret = path.read_text().strip()
    assert keys.known(store, clock, secret).workspace_id is None
    assert ensure_admin_key(store, clock, ids, tmp_path) == path, "a second start keeps it"
    assert path.read_text().strip() == secret
    assert len(store.keys(None)) == 1
    assert sorted(os.listdir(tmp_path)) == sorted({"admin.key", *[n for n in os.listdir(tmp_path) if "oah.db" in n]})


def test_keys_made_by_others_are_respected(store, tmp_path):
    clock, ids = SystemClock(), SystemIds()
    keys.create_admin(store, ids)
    assert ensure_admin_key(store, clock, ids, tmp_path) is None
    assert not (tmp_path / "admin.key").exists()


def test_a_key_file_of_another_database_is_replaced(store, tmp_path):
    clock, ids = SystemClock(), SystemIds()
    for rubbish in (b"oahk_" + b"0" * 32, b"\xff\xfe", b""):
        (tmp_path / "admin.key").write_bytes(rubbish)
    path = ensure_admin_key(store, clock, ids, tmp_path)
    assert keys.known(store, clock, path.read_text().strip())


def test_the_first_key_needs_the_store(tmp_path):
    (tmp_path / "admin.key").write_text("oahk_" + "0" * 32)
    store = open_store("postgresql://nobody@127.0.0.1:9/none")
    with pytest.raises(Unavailable):
        ensure_admin_key(store, SystemClock(), SystemIds(), tmp_path)
    assert (tmp_path / "admin.key").read_text() == "oahk_" + "0" * 32
    store.close()


# --- queue and fleet -------------------------------------------------------------------------------------------------

SIGNALS = {
    "readySessionCount", "readyQueueDepth", "uniqueReadySessionCount", "subagentReadySessionCount",
    "subagentReadyQueueDepth", "lockedReadySessionCount", "staleReadySessionCount", "oldestSchedulableReadyAgeMs",
    "busyWorkers", "idleWorkers", "slotCapacity", "busySlots", "idleSlots", "globalActiveWorkers",
    "globalBusyWorkers", "remoteActiveWorkers", "remoteBusyWorkers", "availableIdleCapacity",
    "readySessionsPerActiveWorker", "subagentReserveTarget", "subagentReserveDeficit",
}  # fmt: skip


def test_the_health_snapshot(apis):
    client = apis.client()
    empty = client.queue()
    assert empty.keys() >= SIGNALS
    assert empty["oldestSchedulableReadyAgeMs"] is None
    assert empty["globalActiveWorkers"] == 0

    shells = [client.create_session("shell")["id"] for _ in range(3)]
    lonely = client.create_session("exec")["id"]
    for session in (*shells, lonely):
        client.submit(session, "1", run_class="subagent" if session == shells[0] else "interactive")
    client.submit(shells[0], "2", run_class="subagent")
    client.submit(shells[1], "later", delay=3600)
    eventually(lambda: client.queue()["uniqueReadySessionCount"] == 4)
    apis.report_worker(name="w1", slots=8, busy=2)
    apis.report_worker(name="w2", slots=4, busy=0, cordoned=True)
    apis.report_worker(name="w3", slots=4, busy=1, state=WorkerState.STOPPING)
    apis.start(shells[2])
    client.submit(shells[2], "behind the active one")
    # What is counted in SQL may be older by twenty times what counting takes.
    found = eventually(lambda: now if (now := client.queue())["staleReadySessionCount"] == 1 else None)
    assert found["uniqueReadySessionCount"] == 4, "the broker was not told of the start"
    assert found["readySessionCount"] == 3, "nobody serves exec"
    assert found["readyQueueDepth"] == 4
    assert found["subagentReadySessionCount"] == 1
    assert found["subagentReadyQueueDepth"] == 2
    assert found["lockedReadySessionCount"] == 1
    assert found["oldestSchedulableReadyAgeMs"] >= 0
    assert (found["globalActiveWorkers"], found["globalBusyWorkers"]) == (2, 1)
    assert (found["remoteActiveWorkers"], found["remoteBusyWorkers"]) == (2, 1)
    assert (found["slotCapacity"], found["busyWorkers"], found["idleWorkers"]) == (0, 0, 0), "none is of this process"
    assert found["availableIdleCapacity"] == 6
    assert found["readySessionsPerActiveWorker"] == 1.5
    assert (found["subagentReserveTarget"], found["subagentReserveDeficit"]) == (1, 0)
    assert found["runs"]["running"] == 1
    assert {(lane["lane"], lane["class"]): lane["sessions"] for lane in found["lanes"]} == {
        ("default/shell", "subagent"): 1,
        ("default/shell", "interactive"): 2,
        ("default/exec", "interactive"): 1,
    }


def test_own_workers_are_local(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    local = set()
    with deploy(sqlite_url, broker, tmp_path, local_workers=lambda: frozenset(local)) as api:
        local.add(api.report_worker(name="mine", slots=8, busy=2).id)
        api.report_worker(name="theirs", slots=4, busy=4)
        found = api.client().queue()
        assert (found["slotCapacity"], found["busySlots"], found["idleSlots"]) == (8, 2, 6)
        assert (found["busyWorkers"], found["idleWorkers"]) == (1, 0)
        assert (found["globalActiveWorkers"], found["remoteActiveWorkers"]) == (2, 1)
    broker.close()


def test_the_controllers_view(apis):
    client = apis.client()
    assert client.controller()["leader"] is None
    assert apis.broker.lead("controller-1", lease=timedelta(seconds=30))
    found = client.controller()
    assert found["leader"] == "controller-1"
    assert found["epoch"]["id"] == found["epoch"]["broker_id"] == EPOCH
    assert found["epoch"]["state"] == "open"


# --- hearing ---------------------------------------------------------------------------------------------------------


def test_an_answer_does_not_wait_for_a_slow_broker(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    go, entered = [], []
    inner = api.broker._inner

    class Slow:
        def __getattr__(self, name):
            return getattr(inner, name)

        def enqueue(self, epoch, hears):
            entered.append(len(hears))
            eventually(lambda: go, within=20)
            return inner.enqueue(epoch, hears)

    api.broker._inner = Slow()
    first = client.submit(session, "1")
    eventually(lambda: entered)
    more = [client.submit(session, str(index)) for index in range(5)]
    assert first["status"] == "queued"
    assert len(more) == 5, "all were answered while the broker hung"
    go.append(1)
    eventually(lambda: sum(entered) == 6)
    assert len(entered) == 2, "those who waited went in one call"


def test_backpressure_leaves_the_rest_to_the_relay(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    api.broker.off(Backpressure("maxmemory"))
    assert client.submit(session, "1")["status"] == "queued"
    eventually(lambda: api.state.hearing.dropped == 1)
    api.broker.on()
    assert len(api.store.unheard(EPOCH, older_than=timedelta(0), limit=10)) == 1


def test_before_the_first_epoch_runs_are_accepted(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path, epoch=lambda: None) as api:
        client = api.client()
        session = client.create_session("shell")["id"]
        assert client.submit(session, "1")["status"] == "queued"
        assert client.cancel(client.submit(session, "2")["id"])["result"] == "removed"
    broker.close()


def test_a_raw_client_that_talks_nonsense(api):
    for nonsense in (b"\x00\x01\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", api.server.port), timeout=10) as raw:
            raw.sendall(nonsense)
            assert raw.recv(100).startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{api.url}/healthz").status_code == 200


def test_the_owner_of_a_parked_session_is_called(apis):
    """A warm agent waits at its worker: a submit pushes `look` on that worker's control list."""
    client = apis.client()
    session = client.create_session("shell")["id"]
    client.submit(session, "1")
    lane = Lane("default", "shell")
    token = ClaimToken(apis.ids.nonce())
    order = ((lane, ReadyClass.INTERACTIVE),)
    request = ClaimRequest(WORKER, token, timedelta(seconds=30), 1, 1, order)
    eventually(lambda: apis.broker.claim(EPOCH, request).sessions)
    started = apis.start(session, token)
    apis.store.settle([Settlement(apis.fence(started), Outcome(RunStatus.COMPLETED), keep_owner=True)])
    apis.broker.free(EPOCH, [Free(session, token, Target.PARKED)])
    assert apis.broker.leases(EPOCH, [session])[0].place is Place.PARKED
    while apis.broker.wait(WORKER, [lane], timeout=timedelta(milliseconds=10)) is not None:
        pass
    client.submit(session, "2")
    assert apis.broker.wait(WORKER, [lane], timeout=timedelta(seconds=10)) is WakeKind.LOOK


def test_the_recovery_overview(apis):
    client = apis.client()
    session = client.create_session("shell")["id"]
    run = client.submit(session, "1")["id"]
    apis.start(session)
    [owner] = apis.store.owners_of([session])
    write = RecoveryWrite(owner, RecoveryAction.QUARANTINE, "requeue_running", 3, "worker_lost", "leader")
    assert apis.store.apply_recovery([write])[0].applied
    found = client.recovery()
    assert found["counts"] == {"requeued": 0, "failed": 0, "quarantined": 1}
    assert [one["id"] for one in found["quarantined"]] == [run]
    assert found["reasons"] == [{"reason": "worker_lost", "count": 1}]
    assert found["newest_quarantined_at"] == found["oldest_quarantined_at"]
    assert found["newest_recovered_at"]
    assert client.runs(recovery_state="quarantined")[0]["recovery"]["state"] == "quarantined"
    kinds = [event.type for event in client.stream(run, timeout=20)]
    assert kinds[-1] == "run.failed"
    assert apis.client("foreigner").recovery()["counts"]["quarantined"] == 0


def test_a_long_output_is_read_whole(api):
    client = api.client()
    session = client.create_session("shell")["id"]
    run = client.submit(session, "1")["id"]
    with pytest.raises(NotFound) as caught:
        client.output(run)
    assert caught.value.code == "no_output"
    api.context.blobs.put("o/1.txt", "é".encode() * 2_000_000)
    api.settle(api.start(session), output="the middle is missing", result_blob="o/1.txt")
    assert client.result(run)["output_complete"] is False
    assert client.output(run) == "é" * 2_000_000
    second = client.submit(session, "2")["id"]
    api.settle(api.start(session), output="naïve")
    assert client.output(second) == "naïve"


def test_a_thread_that_failed_makes_the_process_unready(api):
    api.state.hearing._failure = RuntimeError("a bug")
    with api.http(None) as http:
        answer = http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["api-hearing"] == "has failed"
