"""Clients of the NATS protocol that others wrote, against a gateway: nats-py, and nats.js where there is a node."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.ports.mailboxes import Outgoing
from oah.services import keys
from tests.support import nats_clients
from tests.support.gateway import Gateway, MakeGateway, subject


def _check(seen: dict[str, Any]) -> None:
    assert seen["echo"] == "hello!"
    assert seen["nobody"] is True
    assert seen["listed"] == ["critical", "urgent", "normal"]
    assert seen["receipt"] == {"msg_id": "4"}
    assert seen["read"][:3] == ["stored.critical", "stored.urgent", "stored"]
    assert (seen["ids"], seen["kind"]) == (["3", "2", "1", "4"], "test")
    assert seen["deleted"] == [True, False]
    assert seen["alive"] is True
    assert len([each for each in seen["errors"] if "permissions violation for subscription" in each]) >= 2
    assert seen["shared"] == 2


@pytest.mark.parametrize("client", nats_clients.clients())
def test_a_client_that_others_wrote(gateway: Gateway, client: str) -> None:
    _check(nats_clients.run(client, gateway.url))


@pytest.mark.parametrize("client", nats_clients.clients())
def test_with_tls_and_an_api_key(make_gateway: MakeGateway, client: str, certificate: tuple[Path, Path]) -> None:
    gateway = make_gateway(strangers=False, token="t", certificate=str(certificate[0]), key=str(certificate[1]))
    secret = keys.create(
        gateway.store, gateway.ids, name="k", workspace_id=DEFAULT_WORKSPACE, scopes=frozenset({Scope.RUN})
    ).secret
    url = gateway.url.replace("127.0.0.1", "localhost")
    _check(nats_clients.run(client, url, token=secret, ca=certificate[0]))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_a_large_box_is_read_whole_and_in_order(gateway: Gateway) -> None:
    box = gateway.box()
    letter = [Outgoing(workspace_id=gateway.rules.workspace, address=box, payload=b"%d" % n) for n in range(5_000)]
    gateway.post.send(letter)

    async def work() -> None:
        client = await nats.connect(gateway.url)
        mails = await client.subscribe(subject(box))
        got = [await mails.next_msg(timeout=30) for _ in range(5_000)]
        assert [int(each.data) for each in got] == list(range(5_000))
        await client.close()

    run(work())


def test_drain_handles_what_had_come(gateway: Gateway) -> None:
    box = gateway.box()

    async def work() -> None:
        client, got = await nats.connect(gateway.url), []
        enough = asyncio.Event()

        async def on_message(message: Any) -> None:
            got.append(message.headers["mq9-msg-id"])
            if len(got) >= 10:
                enough.set()

        for _ in range(50):
            await client.publish(subject(box), b"x")
        await client.flush(10)
        await client.subscribe(subject(box), cb=on_message)
        await enough.wait()
        await client.drain()
        assert got == [str(number) for number in range(1, len(got) + 1)]

    run(work())


def test_a_client_comes_back_to_another_gateway_and_reads_all_again(make_gateway: MakeGateway) -> None:
    first, second = make_gateway(), make_gateway()
    box = first.box()

    async def work() -> None:
        back: asyncio.Event = asyncio.Event()
        seen: list[str] = []
        once, twice = asyncio.Event(), asyncio.Event()

        async def on_message(message: Any) -> None:
            seen.append(message.headers["mq9-msg-id"])
            once.set()
            if seen.count("1") == 2:
                twice.set()

        async def on_reconnect() -> None:
            back.set()

        client: Client = await nats.connect(
            [first.url, second.url],
            reconnected_cb=on_reconnect,
            reconnect_time_wait=0.05,
            dont_randomize=True,
            max_reconnect_attempts=-1,
        )
        await client.publish(subject(box), b"x")
        await client.subscribe(subject(box), cb=on_message)
        await once.wait()
        await asyncio.to_thread(first.group.stop, timedelta(seconds=2))
        await back.wait()
        await twice.wait()
        assert (await client.request(subject(box), b"y", timeout=10)).data == b'{"msg_id":"2"}'
        await client.close()

    run(work())


def test_a_group_of_three_shares_and_what_one_held_comes_back(gateway: Gateway) -> None:
    box = gateway.box()

    async def work() -> None:
        clients = [await nats.connect(gateway.url, allow_reconnect=False) for _ in range(3)]
        got: list[dict[str, Any]] = [{} for _ in clients]
        news = asyncio.Event()

        def member(own: dict[str, Any]) -> Any:
            async def on_message(message: Any) -> None:
                own[message.headers["mq9-msg-id"]] = message
                news.set()

            return on_message

        for client, own in zip(clients, got, strict=True):
            await client.subscribe(subject(box), queue="w", cb=member(own))
            await client.flush(10)
        for _ in range(30):
            await clients[0].publish(subject(box), b"x")
        while sum(map(len, got)) < 30:
            await news.wait()
            news.clear()
        assert all(got)
        lost = set(got[2])
        clients[2]._transport._io_writer.transport.abort()
        while not lost <= set(got[0]) | set(got[1]):
            await news.wait()
            news.clear()
        for client in clients[:2]:
            await client.close()

    run(work())
