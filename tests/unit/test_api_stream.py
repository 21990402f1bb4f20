"""The seam of a stream between SQL and the tailer, moment by moment."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from oah.api import stream as streams
from oah.api.stream import Feed, Streams, _Stream
from oah.core.model.event import Event
from oah.core.model.ids import RunId, SessionId
from oah.core.model.run import RunStatus
from oah.ports.telemetry import NullTelemetry
from oah.services.stream import Subject

SESSION = SessionId("ses_1")
RUN = RunId("run_1")
NOW = datetime.now(UTC)


def event(number, kind="run.output", run=RUN):
    return Event(SESSION, number, run, 1, kind, {}, NOW)


class Sql:
    """The committed events; `seen` is what a look at the session says."""

    def __init__(self, count):
        self.rows = [event(number) for number in range(1, count + 1)]
        self.status = RunStatus.RUNNING

    @property
    def seen(self):
        return self.rows[-1].number if self.rows else 0

    def session(self, session_id, workspace_id):
        return SimpleNamespace(id=SESSION, event_seq=self.seen)

    def run(self, run_id, workspace_id):
        return SimpleNamespace(id=RUN, session_id=SESSION, status=self.status)

    def events(self, session_id, *, after, limit, run_id=None):
        return [row for row in self.rows if row.number > after and run_id in (None, row.run_id)][:limit]


class Scene:
    """One stream whose subscription the test plays."""

    def __init__(self, sql, *, of_run=False, after=None):
        self.sql = sql
        self.closing = False
        self.feed = None
        self.at_subscribe = lambda position: position
        run = sql.run(RUN, None) if of_run else None
        about = Subject(SESSION, run, sql.seen)
        context = SimpleNamespace(store=sql)
        self.frames = _Stream(self, context, about, after, timedelta(milliseconds=50)).frames()

    def subscribe(self, session_id, position):
        self.feed = Feed()
        return self.feed, self.at_subscribe(position)

    def unsubscribe(self, session_id, feed):
        self.feed = None

    async def numbers(self, count):
        """The next `count` numbers; keep-alives are not events."""
        got = []
        while len(got) < count:
            frame = await asyncio.wait_for(anext(self.frames), 10)
            for line in frame.decode().splitlines():
                if line.startswith("id: "):
                    got.append(int(line[4:]))
        return got


def play(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_what_came_between_the_reading_and_the_subscription_is_read_again():
    async def scenario():
        sql = Sql(3)
        scene = Scene(sql)

        def others_were_ahead(position):
            # Another stream of the session exists: the tailer has read and delivered 4 and 5 before we came.
            sql.rows += [event(4), event(5)]
            return 5

        scene.at_subscribe = others_were_ahead
        assert await scene.numbers(5) == [1, 2, 3, 4, 5], "without any further event"

    play(scenario)


def test_what_the_tailer_brings_twice_is_told_once():
    async def scenario():
        sql = Sql(2)
        scene = Scene(sql)
        assert await scene.numbers(2) == [1, 2]
        following = asyncio.ensure_future(scene.numbers(2))
        while scene.feed is None:
            await asyncio.sleep(0)
        for number in (1, 2, 3, 3, 2, 4):
            scene.feed.push(event(number))
        assert await following == [3, 4]

    play(scenario)


def test_a_hole_sends_the_stream_back_to_sql():
    async def scenario():
        sql = Sql(2)
        scene = Scene(sql)
        assert await scene.numbers(2) == [1, 2]
        following = asyncio.ensure_future(scene.numbers(3))
        while scene.feed is None:
            await asyncio.sleep(0)
        sql.rows += [event(3), event(4), event(5)]
        scene.feed.push(event(5))
        assert await following == [3, 4, 5]
        sql.rows.append(event(6))
        scene.feed.push(event(6))
        assert await scene.numbers(1) == [6]

    play(scenario)


@pytest.mark.parametrize("size", [1, 3])
def test_a_reader_that_is_too_slow_is_sent_back_to_sql(monkeypatch, size):
    async def scenario():
        sql = Sql(1)
        scene = Scene(sql)
        assert await scene.numbers(1) == [1]
        monkeypatch.setattr(streams, "FEED", size)
        following = asyncio.ensure_future(scene.numbers(9))
        while scene.feed is None:
            await asyncio.sleep(0)
        for number in range(2, 11):
            sql.rows.append(event(number))
            scene.feed.push(sql.rows[-1])
        assert await following == list(range(2, 11))

    play(scenario)


def test_a_run_stream_counts_the_sessions_numbers_and_tells_its_own():
    async def scenario():
        sql = Sql(0)
        sql.rows = [event(1, "run.queued"), event(2, "run.queued", RunId("run_2")), event(3, "run.started")]
        scene = Scene(sql, of_run=True)
        asked = []
        scene.at_subscribe = lambda position: asked.append(position) or position
        assert await scene.numbers(2) == [1, 3]
        following = asyncio.ensure_future(scene.numbers(1))
        while scene.feed is None:
            await asyncio.sleep(0)
        assert asked == [3], "not its own last number, the session's"
        scene.feed.push(event(4, "run.started", RunId("run_2")))
        scene.feed.push(event(5, "run.completed"))
        assert await following == [5]
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(scene.frames), 10)
        assert scene.feed is None, "the stream has left"

    play(scenario)


def test_a_run_that_ended_while_the_stream_was_opened_ends_it():
    async def scenario():
        sql = Sql(0)
        sql.rows = [event(1, "run.queued"), event(2, "run.started")]
        scene = Scene(sql, of_run=True)
        sql.rows += [event(3, "run.failed"), event(4, "run.quarantined")]
        sql.status = RunStatus.FAILED
        assert await scene.numbers(4) == [1, 2, 3, 4]
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(scene.frames), 10)

    play(scenario)


def test_deliveries_after_the_loop_has_ended_are_nobodys():
    context = SimpleNamespace(
        store=None, broker=None, clock=None, telemetry=NullTelemetry(), keep_alive=timedelta(seconds=1)
    )
    these = Streams(context)
    these._deliver([event(1)])
    loop = asyncio.new_event_loop()
    these.attach(loop)
    loop.close()
    these._deliver([event(1)])
    these.close()
    assert these.closing
