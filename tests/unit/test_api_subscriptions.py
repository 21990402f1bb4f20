"""Readers of mailboxes, moment by moment: who looks when, what is sent of what was read, who looks for whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from oah.api import subscriptions
from oah.api.bells import Bells
from oah.api.mail_render import position, position_of
from oah.api.subscriptions import Reading, Receiving, Subscriptions, always, until_over
from oah.core.model.ids import MailboxId, MessageId
from oah.core.model.message import Message, Priority
from oah.errors import LimitReached, NotFound, Unavailable
from oah.ports.mailboxes import Leased, Watermarks
from oah.ports.telemetry import NullTelemetry

BOX = MailboxId("mbx_1")
ALL = tuple(Priority)


def message(seq: int, priority: Priority = Priority.NORMAL) -> Message:
    return Message(
        id=MessageId(f"msg_{seq}"), mailbox_id=BOX, seq=seq, priority=priority, sent_at=datetime.now(UTC), payload=b"x"
    )


class World:
    """One mailbox, its readers, and a clock that the test moves."""

    def __init__(self) -> None:
        self.rows: list[Message] = []
        self.time = 100.0
        self.looks = 0
        self.gone = False
        self.watched: list[MailboxId] = []
        self.on_look: Callable[[], None] = lambda: None
        self.bells = Bells(self, NullTelemetry())  # type: ignore[arg-type]
        self.bells.attach(asyncio.get_running_loop())
        self.all = Subscriptions(self, self, self.bells)  # type: ignore[arg-type]

    def monotonic(self) -> float:
        return self.time

    def watch(self, mailbox_id: MailboxId, call: object) -> Callable[[], None]:
        self.watched.append(mailbox_id)
        return lambda: self.watched.remove(mailbox_id)

    def ready(self, mailbox_id: MailboxId, had: Watermarks, *, limit: int, priorities: Any, **_: Any) -> list[Message]:
        self.looks += 1
        if self.gone:
            raise NotFound("gone", code="mailbox_gone")
        found = [row for row in self.rows if row.seq > had.had.get(row.priority, 0) and row.priority in priorities]
        found.sort(key=lambda row: (-row.priority, row.seq))
        self.on_look()
        return found[:limit]

    def put(self, seq: int, priority: Priority = Priority.NORMAL, *, ring: bool = True) -> None:
        self.rows.append(message(seq, priority))
        if ring:
            self.bells._ring(BOX)

    def reading(self, **more: Any) -> Reading:
        mailbox = SimpleNamespace(id=BOX, address="here")
        fields: dict[str, Any] = {
            "mailbox": mailbox,
            "by": "me",
            "most": 50,
            "had": Watermarks(),
            "priorities": ALL,
            "keep_alive": timedelta(seconds=30),
            "allowed": always,
        }
        return Reading(**{**fields, **more})


class Subscriber:
    def __init__(self, world: World, **more: Any) -> None:
        self.frames = world.all.open(world.reading(**more)).__aiter__()

    async def seqs(self, count: int) -> list[int]:
        got: list[int] = []
        while len(got) < count:
            frame = (await asyncio.wait_for(anext(self.frames), 10)).decode()
            got += [json.loads(line[6:])["seq"] for line in frame.splitlines() if line.startswith("data: ")]
        return got


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until it is so; `play` ends what never is."""
    while not condition():
        await asyncio.sleep(0)


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(World()), 20)

    asyncio.run(run())


def test_readers_at_the_same_place_share_one_look() -> None:
    async def scenario(world: World) -> None:
        world.put(1, ring=False)
        readers = [Subscriber(world) for _ in range(20)]
        assert await asyncio.gather(*(reader.seqs(1) for reader in readers)) == [[1]] * 20
        following = [asyncio.ensure_future(reader.seqs(1)) for reader in readers]
        await until(lambda: not world.all._reads and all(not bell.rung for bell in world.bells._boxes[BOX].bells))
        await until(lambda: world.looks >= 2)
        world.looks = 0
        world.put(2)
        assert await asyncio.gather(*following) == [[2]] * 20
        assert world.looks <= 3, "not one for each"
        assert world.watched == [BOX]
        for reader in readers:
            await reader.frames.aclose()  # type: ignore[attr-defined]
        assert world.watched == [] and world.bells._readers == {}

    play(scenario)


def test_what_comes_while_somebody_looks_is_not_missed() -> None:
    """The look has not seen it, its ring came before the look's answer."""

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        reader = Subscriber(world)

        def just_after() -> None:
            world.on_look = lambda: None
            loop.call_soon_threadsafe(world.put, 1)

        world.on_look = just_after
        assert await reader.seqs(1) == [1]

    play(scenario)


def test_what_is_more_urgent_overtakes_what_was_read_a_while_ago() -> None:
    async def scenario(world: World) -> None:
        for seq in (1, 2, 3):
            world.put(seq, ring=False)
        reader = Subscriber(world)
        assert await reader.seqs(1) == [1]
        world.put(4, Priority.CRITICAL)
        world.time += subscriptions.HASTE * 2
        assert await reader.seqs(3) == [4, 2, 3]

    play(scenario)


def test_what_went_while_a_reader_was_slow_is_not_sent() -> None:
    async def scenario(world: World) -> None:
        for seq in (1, 2, 3):
            world.put(seq, ring=False)
        reader = Subscriber(world)
        assert await reader.seqs(1) == [1]
        del world.rows[1]  # it has expired; nobody rings for that
        world.time += subscriptions.STALE * 2
        assert await reader.seqs(1) == [3]

    play(scenario)


def test_a_bell_that_rings_all_the_time_starves_nobody() -> None:
    async def scenario(world: World) -> None:
        for seq in range(1, 10):
            world.put(seq, ring=False)
        reader = Subscriber(world)
        for seq in range(1, 10):
            world.bells._ring(BOX)
            assert await reader.seqs(1) == [seq]
        assert world.looks == 1

    play(scenario)


def test_a_lost_ring_is_made_good() -> None:
    async def scenario(world: World) -> None:
        reader = Subscriber(world, keep_alive=timedelta(milliseconds=10))
        assert b"connected" in await anext(reader.frames)
        assert b"keep-alive" in await anext(reader.frames), "it has looked, and breathes"
        world.put(1, ring=False)
        assert b"keep-alive" in await anext(reader.frames)
        world.time += subscriptions.LOOK_ANYWAY
        assert await reader.seqs(1) == [1]

    play(scenario)


@pytest.mark.parametrize("how", ["gone", "not allowed", "away"])
def test_how_streams_end(how: str) -> None:
    async def scenario(world: World) -> None:
        allowed = until_over(lambda: how != "not allowed")
        reader = Subscriber(world, allowed=allowed)
        assert b"connected" in await anext(reader.frames)
        waiting = asyncio.ensure_future(anext(reader.frames, None))
        await until(lambda: world.looks == 1 and not world.all._reads)
        world.time += subscriptions.ALLOWED * 2
        if how == "away":

            def away() -> None:
                raise Unavailable("away")

            world.on_look = away
        world.gone = how == "gone"
        world.bells._ring(BOX)
        last = await asyncio.wait_for(waiting, 10)
        assert (last is not None and b"event: gone" in last) == (how == "gone")
        assert await anext(reader.frames, None) is None

    play(scenario)


def test_of_many_that_wait_for_a_group_few_look() -> None:
    async def scenario(world: World) -> None:
        store: list[str] = []
        takes = 0

        def take() -> list[Leased]:
            nonlocal takes
            takes += 1
            return [Leased(message=message(1), lease_id=store.pop(), attempt=1)] if store else []

        async def never() -> None:
            await asyncio.Event().wait()

        def receive(group: str) -> asyncio.Task[list[Leased]]:
            receiving = Receiving(world.bells, world, world.reading(), group)  # type: ignore[arg-type]
            return asyncio.create_task(receiving.first(take, wait=timedelta(hours=1), hung_up=never))

        waiting = [receive("g") for _ in range(30)]
        await until(lambda: takes >= 30)
        takes = 0
        for number in range(30):
            store.append(f"lease {number}")
            world.bells._ring(BOX)
            await until(lambda: not store)
        leases = [leased.lease_id for task in waiting for leased in await task]
        assert sorted(leases) == sorted(f"lease {number}" for number in range(30)), "each to one"
        assert takes <= 90, "not thirty for each message"
        assert world.bells._readers == {}

    play(scenario)


def test_readers_are_counted_by_who_they_are() -> None:
    async def scenario(world: World) -> None:
        with world.bells.reader(BOX, "me", most=1):
            with pytest.raises(LimitReached):
                world.bells.admits("me", most=1)
            world.bells.admits("others", most=1)
        world.bells.admits("me", most=1)
        world.bells.close()
        with pytest.raises(Unavailable):
            world.bells.admits("me", most=1)

    play(scenario)


def test_positions() -> None:
    had = Watermarks({Priority.NORMAL: 3, Priority.CRITICAL: 9})
    text = position(BOX, had)
    found = position_of(text, BOX)
    assert found is not None and {p: n for p, n in found.had.items() if n} == dict(had.had)
    assert position_of(text, MailboxId("mbx_2")) == Watermarks(), "of another life: from the beginning"
    assert position_of(None, BOX) == position_of(" ", BOX) == Watermarks()
    for wrong in ("5", "a.b.c.d", "mbx_1.1.2", "mbx_1.1.2.3.4", "mbx_1.-1.2.3", "mbx_1.1.2.²", "mbx_1.1.2." + "9" * 19):
        assert position_of(wrong, BOX) is None, wrong
