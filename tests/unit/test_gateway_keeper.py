"""When the keeper looks, and at whom: at none of a thousand who are quiet, often at those who need it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import cycle, pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.gateway import keeper
from oah.gateway.access import Identity
from oah.gateway.attention import Attention
from oah.gateway.keeper import Keeper
from tests.support.clock import StillClock
from tests.support.gateway import RULES


class Client:
    """As much of a connection as is looked at."""

    def __init__(self, hub: Hub, *, identity: Identity | None = None) -> None:
        self.hub, self.identity = hub, identity or Identity(DEFAULT_WORKSPACE, "stranger")
        self.opened_at = self.heard_at = hub.now()
        self.written = self.unsent = 0
        self.moved = (0, self.opened_at)
        self.connected = self.asking = False
        self.pings, self.ended = 0, ""
        self.looked: list[float] = []
        hub.connections.add(self)

    def write(self, data: bytes) -> None:
        assert data == b"PING\r\n"
        self.pings += 1

    def end(self, reason: str, _text: str) -> None:
        self.ended = reason
        self.hub.connections.discard(self)
        self.hub.attention.forget(self)


class Hub:
    def __init__(self, **rules: Any) -> None:
        self.clock = StillClock()
        self.now = self.clock.monotonic
        self.rules = replace(RULES, **rules)
        self.connections: set[Client] = set()
        self.attention: Attention[Client] = Attention()
        self.mail = SimpleNamespace(holders={})


def kept(**rules: Any) -> tuple[Hub, Keeper]:
    hub = Hub(**rules)
    return hub, Keeper(cast(Any, hub))


def test_quiet_clients_are_looked_at_a_few_times_before_they_are_asked() -> None:
    hub, it = kept()
    clients = [Client(hub) for _ in range(20)]
    looks = 0
    while not clients[0].pings:
        pause = it.pause()
        assert pause >= 9, "of 120 s, or of a third of a lease"
        hub.clock.seconds += pause
        it.look()
        looks += 1
    assert looks <= 13
    assert all(client.pings == 1 for client in clients)


def test_who_does_not_take_what_waits_is_looked_at_often_and_let_go() -> None:
    hub, it = kept()
    slow, quick = Client(hub), Client(hub)
    hub.clock.seconds += 5
    for client in (slow, quick):
        client.written = client.unsent = 100
        client.moved = (0, hub.now())
        hub.attention.note(hub.attention.unsent, client)
    assert it.pause() == keeper.LOOK
    quick.unsent = 0
    it.look()
    assert hub.attention.unsent == {slow}
    for _ in range(19):
        hub.clock.seconds += it.pause()
        it.look()
    assert slow.ended == ""
    hub.clock.seconds += 2 * keeper.LOOK
    it.look()
    assert (slow.ended, quick.ended) == ("slow", "")
    assert it.pause() > keeper.LOOK, "nobody needs it any more"


def test_who_has_not_said_its_name_is_looked_at_until_its_time_is_over() -> None:
    hub, it = kept(strangers=False)
    client = Client(hub)
    client.identity = cast(Any, None)
    hub.attention.note(hub.attention.nameless, client)
    while not client.ended:
        assert it.pause() == keeper.LOOK
        hub.clock.seconds += it.pause()
        it.look()
    assert client.ended == "refused"
    assert hub.now() - client.opened_at <= keeper.CONNECT_WITHIN + 2 * keeper.LOOK


def test_who_has_said_its_name_is_not_told_that_it_is_wrong_while_the_store_is_slow() -> None:
    """Clients that are refused twice do not come back."""
    hub, it = kept(strangers=False)
    client = Client(hub)
    client.identity, client.asking = cast(Any, None), True
    hub.attention.note(hub.attention.nameless, client)
    hub.clock.seconds += 10 * keeper.CONNECT_WITHIN
    it.look()
    assert not client.ended
    client.asking = False
    it.look()
    assert client.ended == "refused"


def test_members_are_asked_three_times_in_a_lease() -> None:
    hub, it = kept()
    member, other = Client(hub), Client(hub)
    hub.mail.holders["h"] = member
    for _ in range(3):
        hub.clock.seconds += it.pause()
        it.look()
    assert member.pings == 3
    assert other.pings == 0


def test_leases_are_extended_three_times_in_a_lease_whatever_a_look_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, it = kept()
    extended: list[float] = []

    async def extend() -> None:
        extended.append(hub.now())

    def look() -> None:
        looked()
        hub.clock.seconds += next(takes)

    looked, takes = it.look, cycle((0.02, 0.01))
    monkeypatch.setattr(it, "look", look)
    monkeypatch.setattr(it, "extend", extend)
    for _ in range(9):
        hub.clock.seconds += it.pause()
        asyncio.run(it.step())
    third = RULES.lease.total_seconds() / 3
    assert len(extended) == 9
    assert all(later - earlier <= third + 0.1 for earlier, later in pairwise(extended))


def test_keys_are_proven_again_only_where_some_were_shown() -> None:
    hub, it = kept()
    client = Client(hub)
    assert it.pause() > keeper.ASK_AGAIN
    hub.attention.note(hub.attention.keyed, client)
    assert it.pause() == keeper.ASK_AGAIN
    client.end("client", "")
    assert it.pause() > keeper.ASK_AGAIN


def test_who_is_noted_ends_the_rest() -> None:
    async def rests() -> bool:
        attention: Attention[str] = Attention()
        resting = asyncio.ensure_future(attention.rest(600))
        await asyncio.sleep(0)
        attention.note(attention.unsent, "a")
        await asyncio.wait_for(resting, 60)
        await attention.rest(0)  # noted once, it wakes once
        return attention.closely

    assert asyncio.run(rests())
