"""Event streams on a real server: no gap, no repeat, whoever comes and goes."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import create_engine, text

from oah.api import stream as streams
from oah.client import Client
from tests.support import eventually
from tests.support.api import deploy
from tests.support.servers_redis import FakeServer


def session_of(client, count=1):
    session = client.create_session("shell")["id"]
    return session, [client.submit(session, f"echo {index}")["id"] for index in range(count)]


def take(events, count):
    return [next(events) for _ in range(count)]


def raw(api, path, headers=None, seconds=10.0):
    """The lines of a stream until it ends."""
    with api.http() as http, http.stream("GET", path, headers=headers, timeout=seconds) as response:
        return response.status_code, response.headers, list(response.iter_lines())


def test_a_stream_ends_with_its_key(api):
    client = api.client()
    session, _ = session_of(client)
    made = client.create_key("short", workspace="default", scopes=["read"])
    path, headers = f"/v1/sessions/{session}/events", {"authorization": f"Bearer {made['secret']}"}
    with api.http(None) as http:
        with http.stream("GET", f"{path}?after=0&keep_alive=1", headers=headers, timeout=10) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            assert "event: run.queued" in [next(lines) for _ in range(5)]
            client.revoke_key(made["id"])
            assert list(lines).count(": keep-alive") < 5, "and then it has ended"
        assert http.get(path, headers=headers).status_code == 401


def test_a_session_stream_tells_everything_in_order(apis):
    client = apis.client()
    session, [first] = session_of(client)
    events = client.stream(session, timeout=20)
    assert take(events, 1)[0].type == "run.queued"
    started = apis.start(session)
    apis.output(started, "hello")
    second = client.submit(session, "echo 2")["id"]
    apis.settle(started)
    got = take(events, 4)
    assert [event.number for event in got] == [2, 3, 4, 5]
    assert [event.type for event in got] == ["run.started", "run.output", "run.queued", "run.completed"]
    assert got[1].data["text"] == "hello"
    assert [event.run_id for event in got] == [first, first, second, first]
    events.close()


def test_a_run_stream_tells_its_own_and_ends(apis):
    client = apis.client()
    session, [first, second] = session_of(client, 2)
    apis.work(session)
    started = apis.start(session)

    def finish():
        eventually(lambda: apis.state.streams._feeds)
        apis.output(started, "hi")
        apis.settle(started)

    with ThreadPoolExecutor() as pool:
        done = pool.submit(finish)
        got = list(client.stream(second, timeout=20))
        done.result(60)
    assert [event.type for event in got] == ["run.queued", "run.started", "run.output", "run.completed"]
    assert {event.run_id for event in got} == {second}
    numbers = [event.number for event in got]
    assert numbers == sorted(set(numbers))
    eventually(lambda: not apis.state.streams._feeds, what="the stream has left nothing behind")
    assert [event.type for event in client.stream(first, timeout=20)][-1] == "run.completed"


def test_the_wire_format(api):
    client = api.client()
    session, [run] = session_of(client)
    api.work(session)
    status, headers, lines = raw(api, f"/v1/runs/{run}/events")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    frames = "\n".join(lines).split("\n\n")
    assert frames[0].startswith("retry: ")
    assert frames[1].splitlines()[:2] == ["event: run.queued", "id: 1"]
    assert frames[1].splitlines()[2].startswith('data: {"session_id"')
    assert frames[3].splitlines()[0] == "event: run.completed"


def test_position_by_header_and_by_query(api):
    client = api.client()
    session, [run] = session_of(client)
    api.work(session)
    path = f"/v1/runs/{run}/events"

    def ids(path, headers=None):
        return [line for line in raw(api, path, headers)[2] if line.startswith("id: ")]

    assert ids(path + "?after=1") == ["id: 2", "id: 3"]
    assert ids(path, {"Last-Event-ID": "2"}) == ["id: 3"]
    assert ids(path + "?after=0", {"Last-Event-ID": "2"}) == ["id: 3"], "a browser repeats its first query"
    status, _, lines = raw(api, path, {"Last-Event-ID": "3"})
    assert (status, lines) == (204, [])
    assert list(client.stream(run, after=3, timeout=10)) == []
    for bad in ("x", "-1", "1.5", "9" * 30):
        assert raw(api, path, {"Last-Event-ID": bad})[0] == 400
    assert raw(api, path + "?after=-1")[0] == 422


def test_a_requeued_run_goes_on_in_its_stream(api):
    client = api.client()
    session, [run] = session_of(client)
    api.settle(api.start(session), error="exit_nonzero")
    client.requeue(run)
    events = client.stream(run, timeout=20)
    assert [event.type for event in take(events, 4)] == ["run.queued", "run.started", "run.failed", "run.queued"]
    api.work(session)
    assert [event.type for event in events] == ["run.started", "run.completed"]


def test_an_idle_stream_is_kept_alive(api):
    client = api.client()
    session, _ = session_of(client)
    with api.http() as http, http.stream("GET", f"/v1/sessions/{session}/events?keep_alive=1") as response:
        lines = response.iter_lines()
        comments = 0
        while comments < 2:
            comments += next(lines) == ": keep-alive"


def test_events_arrive_without_hints_too(api):
    client = api.client()
    session, _ = session_of(client)
    events = client.stream(session, timeout=20)
    take(events, 1)
    api.broker.off()
    started = api.store.start("w", "epoch-1", [])
    assert started == []
    api.broker.on()
    run = api.start(session)
    api.broker.broken.update({"hints", "publish"})
    for index in range(3):
        api.output(run, str(index), hint=False)
    got = take(events, 4)
    assert [event.number for event in got] == [2, 3, 4, 5]
    api.broker.broken.clear()
    events.close()


def test_the_store_may_go_away_and_come_back(api):
    client = api.client()
    session, _ = session_of(client)
    events = client.stream(session, timeout=30)
    take(events, 1)
    run = api.start(session)
    api.store.broken.add("events_since")
    api.store.broken.add("events")
    seen = len(api.store.calls)
    api.store.__dict__["_inner"]  # the writer goes on through the same store object
    api.output(run, "a")
    eventually(lambda: "events_since" in api.store.calls[seen:])
    api.store.broken.clear()
    api.output(run, "b")
    assert [event.number for event in take(events, 3)] == [2, 3, 4]
    events.close()


@pytest.mark.parametrize("feed", [1000, 3])
def test_readers_who_come_and_go_miss_nothing(apis, monkeypatch, feed):
    """Six readers of one busy session subscribe at different moments; half of them hang up and resume again and again.

    With a small feed they are also sent back to SQL all the time.
    """
    monkeypatch.setattr(streams, "FEED", feed)
    client = apis.client()
    session, [run] = session_of(client)
    started = apis.start(session)
    total = 150

    def write():
        for index in range(total):
            apis.output(started, str(index), hint=index % 3 == 0)
        apis.settle(started)

    def read(index):
        numbers = []
        reader = apis.client()
        while True:
            after = numbers[-1] if numbers else None
            for event in reader.stream(run if index % 2 else session, after=after, timeout=60):
                assert event.type != "reset"
                numbers.append(event.number)
                if event.type == "run.completed":
                    return numbers
                if index % 3 == 0 and len(numbers) % 20 == 0:
                    break

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, index) for index in range(3)]
        writer = pool.submit(write)
        eventually(lambda: apis.store.session(session, None).event_seq > 50, within=30)
        readers += [pool.submit(read, index) for index in range(3)]
        writer.result(60)
        for reader in readers:
            assert reader.result(60) == list(range(1, total + 4))


def test_reset_when_older_events_are_gone(api, sqlite_url):
    client = api.client()
    session, [run] = session_of(client)
    started = api.start(session)
    for index in range(5):
        api.output(started, str(index))
    engine = create_engine(sqlite_url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM run_events WHERE number <= 4"))
    events = client.stream(session, after=1, timeout=20)
    got = take(events, 4)
    assert [(event.type, event.number) for event in got] == [
        ("reset", 4), ("run.output", 5), ("run.output", 6), ("run.output", 7),
    ]  # fmt: skip
    events.close()
    assert next(client.stream(run, after=2, timeout=20)).type == "reset"
    assert next(client.stream(session, timeout=20)).number == 5, "who asks for no number is told no loss"
    assert next(client.stream(session, after=4, timeout=20)).number == 5, "nothing behind 4 is missing"
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM run_events"))
    assert (next(client.stream(session, after=6, timeout=20))).number == 7
    engine.dispose()


def test_a_number_from_another_life_of_the_database(api):
    client = api.client()
    session, _ = session_of(client)
    got = take(client.stream(session, after=999, timeout=20), 2)
    assert [(event.type, event.number) for event in got] == [("reset", 0), ("run.queued", 1)]


def test_streams_end_when_the_process_stops(sqlite_url, tmp_path):
    broker = FakeServer().broker()
    with deploy(sqlite_url, broker, tmp_path) as api:
        client = api.client()
        session, _ = session_of(client)
        ended = threading.Event()

        def read():
            with api.http() as http, http.stream("GET", f"/v1/sessions/{session}/events") as response:
                for _ in response.iter_lines():
                    pass
            ended.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        eventually(lambda: api.state.streams._feeds)
        begun = time.monotonic()
        api.server.stop(timedelta(seconds=10))
        assert api.server.join(timedelta(seconds=10))
        assert time.monotonic() - begun < 9
        assert ended.wait(60), "the stream ended cleanly"
    broker.close()


def test_many_idle_streams_cost_one_statement_a_second(api):
    client = api.client()
    session, _ = session_of(client)
    others = [client.create_session("shell")["id"] for _ in range(20)]
    started = api.start(session)
    count = 300
    host, port = "127.0.0.1", api.server.port
    secret = api.secrets["admin"]

    async def open_one(of):
        reader, writer = await asyncio.open_connection(host, port)
        request = f"GET /v1/sessions/{of}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        return reader, writer

    async def until(reader, word):
        while word not in (line := await reader.readline()):
            assert line, "the stream ended"

    async def scenario():
        opened = [await open_one(session if index % 2 else others[index // 2 % 20]) for index in range(count)]
        watching = [opened[index] for index in range(count) if index % 2]
        await asyncio.wait_for(asyncio.gather(*(until(reader, b"run.started") for reader, _ in watching)), 30)
        wanted = {session, *others}
        await asyncio.to_thread(eventually, lambda: api.state.streams.tailer._cursors.keys() == wanted)
        await asyncio.to_thread(eventually, lambda: "heard" in api.store.calls, what="the submit is all over")
        seen = len(api.store.calls)
        begun = time.monotonic()
        await asyncio.to_thread(eventually, lambda: time.monotonic() - begun > 2.5)
        idle = api.store.calls[seen:]
        assert api.state.streams.tailer._cursors[session] == api.store.session(session, None).event_seq
        await asyncio.to_thread(api.output, started, "hello")
        await asyncio.wait_for(asyncio.gather(*(until(reader, b"hello") for reader, _ in watching)), 10)
        for _, writer in opened:
            writer.close()
        return idle

    idle = asyncio.run(scenario())
    assert set(idle) == {"events_since"}
    assert len(idle) <= 4
    eventually(lambda: not api.state.streams._feeds, what="closed connections leave no feed behind")
    assert not api.state.streams.tailer._cursors


def test_a_stream_of_nothing_is_refused_before_it_begins(api):
    with api.http() as http:
        for path in ("/v1/runs/run_nothing/events", "/v1/sessions/ses_nothing/events"):
            answer = http.get(path)
            assert answer.status_code == 404
            assert answer.json()["code"] == "not_found"


def test_connections_that_break_are_resumed_by_the_client(api):
    """The client's own reconnecting, over a proxy that hangs up after every few hundred bytes."""
    client = api.client()
    session, [run] = session_of(client)
    started = api.start(session)
    for index in range(30):
        api.output(started, str(index))
    api.settle(started)
    inner = httpx.HTTPTransport()

    class Cutting(httpx.BaseTransport):
        connections = 0

        def handle_request(self, request):
            Cutting.connections += 1
            response = inner.handle_request(request)

            def some():
                size = 0
                for piece in response.stream:
                    yield piece
                    size += len(piece)
                    if size > 900:
                        response.close()
                        raise httpx.ReadError("cut")

            return httpx.Response(response.status_code, headers=response.headers, content=some())

    with Client(api.url, api.secrets["admin"], transport=Cutting()) as cut:
        numbers = [event.number for event in cut.stream(run, timeout=60)]
    assert numbers == list(range(1, 34))
    assert Cutting.connections > 2
