"""Readers of mailboxes over HTTP: streams without gap or repeat, receives that wait, leases, limits, ends."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest

from oah.api import bells, subscriptions
from oah.client import Client
from oah.errors import Conflict, InvalidRequest, LimitReached, NotFound, Unavailable
from oah.services.post import MailRules
from oah.services.run_keys import run_key
from tests.support import eventually
from tests.support.api import Deployment


@pytest.fixture
def client(shared_api: Deployment) -> Client:
    return shared_api.client("runner")


@pytest.fixture
def box(client: Client) -> str:
    return str(client.create_mailbox()["address"])


class Reader:
    """A subscriber in a thread; what it got, and how it ended."""

    def __init__(self, client: Client, address: str, **more: Any) -> None:
        self.got: list[dict[str, Any]] = []
        self.ended: BaseException | str | None = None
        self._thread = threading.Thread(target=self._read, args=(client, address, more), daemon=True)
        self._thread.start()

    def _read(self, client: Client, address: str, more: dict[str, Any]) -> None:
        try:
            for message in client.subscribe(address, timeout=30, **more):
                self.got.append(message)
            self.ended = "gone"
        except BaseException as error:
            self.ended = error

    @property
    def payloads(self) -> list[str]:
        return [message["payload"].decode() for message in self.got]

    def wait(self, count: int) -> list[str]:
        eventually(lambda: len(self.got) >= count or self.ended, what=f"{count} messages, got {self.payloads}")
        return self.payloads


@contextmanager
def stream(api: Deployment, address: str, who: str = "runner", **more: Any) -> Iterator[Iterator[str]]:
    """The raw lines of a subscription."""
    with api.http(who) as http, http.stream("GET", f"/v1/mailboxes/{address}/subscribe", **more) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response.iter_lines()


def readers(api: Deployment) -> int:
    return sum(api.state.bells._readers.values())


def test_what_is_there_by_priority_then_what_comes(client: Client, box: str) -> None:
    for number, word in enumerate(["normal", "critical", "urgent", "normal"], 1):
        client.send_message(box, f"stored {number}", priority=word)
    first, second = Reader(client, box), Reader(client, box)
    stored = ["stored 2", "stored 3", "stored 1", "stored 4"]
    assert first.wait(4) == second.wait(4) == stored
    client.send_message(box, "live 1")
    first.wait(5)
    client.send_message(box, "live 2", priority="critical")
    assert first.wait(6) == second.wait(6) == [*stored, "live 1", "live 2"], "every subscriber gets all"
    late = Reader(client, box, priorities=["critical", "urgent"])
    assert late.wait(3) == ["stored 2", "live 2", "stored 3"]
    client.delete_mailbox(box)
    for reader in (first, second, late):
        eventually(lambda reader=reader: reader.ended)
        assert reader.ended == "gone"
    assert len(first.got) == 6


def test_a_stream_goes_on_where_it_was(shared_api: Deployment, client: Client, box: str) -> None:
    for number in range(1, 7):
        client.send_message(box, str(number), priority="urgent" if number % 2 else "normal")
    whole = client.subscribe(box, timeout=20)
    got = [next(whole) for _ in range(4)]
    assert [one["payload"] for one in got] == [b"1", b"3", b"5", b"2"]
    rest = client.subscribe(box, after=got[1]["position"], timeout=20)
    assert [next(rest)["payload"] for _ in range(4)] == [b"5", b"2", b"4", b"6"]
    with stream(shared_api, box, headers={"last-event-id": got[3]["position"]}) as lines:
        ids = [line for line in (next(lines) for _ in range(8)) if line.startswith("id:")]
    assert ids[0] != f"id: {got[3]['position']}"
    for wrong in ("5", "a.b.c.d", "x.1.2.-3", "x.1.2", "x." + "9" * 40 + ".1.1"):
        with shared_api.http("runner") as http:
            answer = http.get(f"/v1/mailboxes/{box}/subscribe", headers={"last-event-id": wrong})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), wrong


def test_a_position_of_an_earlier_mailbox_hides_nothing_of_the_new_one(client: Client) -> None:
    name = f"again.{secrets.token_hex(4)}"
    client.create_mailbox(name)
    for number in range(5):
        client.send_message(name, f"old {number}")
    old = list(zip(range(5), client.subscribe(name, timeout=20), strict=False))[-1][1]["position"]
    client.delete_mailbox(name)
    client.create_mailbox(name)
    client.send_message(name, "new")
    assert next(client.subscribe(name, after=old, timeout=20))["payload"] == b"new"


def test_no_gap_and_no_repeat_while_many_send(apis: Deployment) -> None:
    """The seam between what is stored and what comes, with readers that come and go at any moment."""
    client = apis.client("runner")
    box = client.create_mailbox()["address"]
    words = ["normal", "urgent", "critical"]
    with ThreadPoolExecutor(6) as pool:
        sending = [
            pool.submit(client.send_message, box, f"{word} {number}", priority=word)
            for number in range(60)
            for word in words
        ]
        early = Reader(client, box)
        part: list[dict[str, Any]] = []
        for message in client.subscribe(box, timeout=30):
            part.append(message)
            if len(part) == 40:
                break
        resumed = Reader(client, box, after=part[-1]["position"])
        for sent in sending:
            sent.result()
    everything = {f"{word} {number}" for number in range(60) for word in words}
    early.wait(180)
    resumed.wait(140)
    assert sorted(early.payloads) == sorted(everything)
    both = [one["payload"].decode() for one in part] + resumed.payloads
    assert sorted(both) == sorted(everything), "nothing lost, nothing twice"
    for got in (early.got, part + resumed.got):
        for word in words:
            seqs = [one["seq"] for one in got if one["priority"] == word]
            assert seqs == sorted(seqs), "in order inside a priority"


def test_who_sends_elsewhere_is_heard_too(apis: Deployment) -> None:
    """A message that another process stored: by its hint, or without it by the look."""
    client = apis.client("runner")
    mailbox = client.create_mailbox()
    reader = Reader(client, mailbox["address"])
    eventually(lambda: readers(apis) == 1)
    from oah.services.post import Post

    elsewhere = Post(apis.store, apis.broker, apis.ids, MailRules(), apis.context.telemetry)
    from oah.ports.mailboxes import Outgoing

    def send(payload: bytes) -> None:
        elsewhere.send([Outgoing(workspace_id=mailbox["workspace_id"], address=mailbox["address"], payload=payload)])

    send(b"with a hint")
    assert reader.wait(1) == ["with a hint"]
    apis.broker.broken.add("publish_mail")
    with suppress(Unavailable):
        send(b"without")
    assert reader.wait(2) == ["with a hint", "without"]


def test_an_idle_stream_breathes_and_ends_with_its_mailbox(shared_api: Deployment, client: Client) -> None:
    box = client.create_mailbox(ttl=2)["address"]
    with stream(shared_api, box, params={"keep_alive": 1}) as lines:
        seen = list(lines)
    assert ": keep-alive" in seen
    at = seen.index("event: gone")
    assert json.loads(seen[at + 1].removeprefix("data: "))["address"] == box
    assert seen[-2:] == [seen[at + 1], ""], "and then it is closed"
    eventually(lambda: readers(shared_api) == 0)
    with pytest.raises(NotFound):
        next(client.subscribe(box, timeout=5))


def test_expired_messages_are_not_sent(client: Client, box: str) -> None:
    client.send_message(box, "short", ttl=0.2)
    client.send_message(box, "long")
    eventually(lambda: len(client.messages(box)) == 1, within=5)
    assert next(client.subscribe(box, timeout=10))["payload"] == b"long"


def test_a_slow_reader_holds_a_batch_and_the_urgent_overtakes(shared_api: Deployment, client: Client, box: str) -> None:
    """More than sockets take, for a client that reads nothing: it stays in SQL, and what is critical overtakes it."""
    for number in range(20):
        client.send_message(box, f"{number:02}" + "x" * 900_000)
    with stream(shared_api, box) as lines:
        eventually(lambda: readers(shared_api) == 1)
        eventually(lambda: next(lines).startswith("id:"))
        client.send_message(box, "now", priority="critical")
        time_over = time.monotonic() + subscriptions.HASTE
        eventually(lambda: time.monotonic() > time_over)
        order = []
        for line in lines:
            if line.startswith("data: "):
                order.append(json.loads(line.removeprefix("data: "))["payload"][:3])
            if len(order) == 21:
                break
    assert sorted(order) == sorted([*(f"{number:02}x" for number in range(20)), "now"])
    assert order.index("now") < 20, "before what was not sent yet"
    eventually(lambda: readers(shared_api) == 0)


def test_one_key_may_have_so_many_readers(
    shared_api: Deployment, client: Client, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oah.api.mail.MOST_OF_ONE", 1)
    with stream(shared_api, box):
        eventually(lambda: readers(shared_api) == 1)
        with shared_api.http("runner") as http:
            second = http.get(f"/v1/mailboxes/{box}/subscribe")
            assert (second.status_code, second.json()["code"]) == (429, "too_many_readers"), second.text
            waiting = http.post(f"/v1/mailboxes/{box}/receive", json={"wait_seconds": 5})
            assert (waiting.status_code, waiting.json()["code"]) == (429, "too_many_readers")
            assert http.post(f"/v1/mailboxes/{box}/receive", json={}).status_code == 200, "this one does not wait"
        monkeypatch.setattr(bells, "MOST_READERS", 1)
        with shared_api.http("operator") as http:
            answer = http.get(f"/v1/mailboxes/{box}/subscribe")
            assert (answer.status_code, answer.json()["code"]) == (503, "too_many_readers")
    eventually(lambda: readers(shared_api) == 0)


# --- receive ---------------------------------------------------------------------------------------------------------


def test_messages_are_shared_out_in_a_group_and_each_group_gets_all(client: Client, box: str) -> None:
    for number, word in enumerate(["normal", "critical", "urgent"], 1):
        client.send_message(box, str(number), priority=word)
    first, second = client.receive_messages(box, limit=2), client.receive_messages(box, limit=5)
    assert [one["payload"] for one in first] == [b"2", b"3"]
    assert [one["payload"] for one in second] == [b"1"]
    assert [one["attempt"] for one in [*first, *second]] == [1, 1, 1]
    assert client.receive_messages(box) == []
    assert len(client.receive_messages(box, group="others", limit=10)) == 3
    assert len({one["lease_id"] for one in [*first, *second]}) == 3
    assert client.ack_message(first[0]["lease_id"])["settled"] == "ack"
    client.nack_message(first[1]["lease_id"])
    [again] = client.receive_messages(box, limit=5)
    assert (again["payload"], again["attempt"]) == (b"3", 2)


def test_a_lease_that_is_over_settles_nothing(client: Client, box: str) -> None:
    client.send_message(box, "x")
    [leased] = client.receive_messages(box)
    client.nack_message(leased["lease_id"])
    [again] = client.receive_messages(box)
    for settle in (client.ack_message, client.nack_message):
        with pytest.raises((Conflict, NotFound)) as caught:
            settle(leased["lease_id"])
        assert caught.value.code in ("lease_over", "lease_not_found")
    client.ack_message(again["lease_id"])
    with pytest.raises((Conflict, NotFound)):
        client.ack_message(again["lease_id"])
    for nonsense in ("none", "x" * 200, "a.b", "%00"):
        with pytest.raises(NotFound):
            client.ack_message(nonsense)


def test_a_message_deleted_while_somebody_has_it_is_done_with(client: Client, box: str) -> None:
    seq = client.send_message(box, "x")["seq"]
    [leased] = client.receive_messages(box)
    assert client.delete_message(box, seq) is True
    with pytest.raises((Conflict, NotFound)):
        client.ack_message(leased["lease_id"])
    assert client.receive_messages(box) == []


def test_who_does_not_acknowledge_in_time_loses_it_and_who_extends_does_not(apis: Deployment) -> None:
    apis.context.post.rules = MailRules(lease=timedelta(seconds=3), max_attempts=3)
    client = apis.client("runner")
    box = client.create_mailbox()["address"]
    client.send_message(box, "kept")
    begun = time.monotonic()
    [leased] = client.receive_messages(box, holder="me")
    apis.context.post.rules = MailRules(lease=timedelta(seconds=60), max_attempts=3)
    assert client.extend_leases("me") == 1
    assert client.extend_leases("nobody") == 0
    apis.context.post.rules = MailRules(lease=timedelta(seconds=0.3), max_attempts=3)
    client.send_message(box, "lost")
    [lost] = client.receive_messages(box)
    assert lost["payload"] == b"lost"
    apis.store.sweep_mail()
    again = eventually(lambda: apis.store.sweep_mail() and client.receive_messages(box), within=10)
    assert (again[0]["payload"], again[0]["attempt"]) == (b"lost", 2)
    with pytest.raises((Conflict, NotFound)):
        client.ack_message(lost["lease_id"])
    eventually(lambda: time.monotonic() - begun > 3.5, what="the first lease would have ended")
    apis.store.sweep_mail()
    client.ack_message(leased["lease_id"])


def test_a_receive_waits_without_a_thread(shared_api: Deployment, client: Client, box: str) -> None:
    """More of them than there are threads for requests, and everything else is answered meanwhile."""
    count = 45
    with (
        ThreadPoolExecutor(count) as pool,
        httpx.Client(
            base_url=shared_api.url,
            headers={"authorization": f"Bearer {shared_api.secrets['runner']}"},
            timeout=40,
            limits=httpx.Limits(max_connections=count + 5),
        ) as http,
    ):
        path = f"/v1/mailboxes/{box}/receive"
        waiting = [pool.submit(http.post, path, json={"wait_seconds": 30}) for _ in range(count)]
        eventually(lambda: readers(shared_api) == count, within=20)
        assert client.messages(box) == []
        for number in range(count):
            client.send_message(box, str(number))
        got = [one.result(30).json()["items"] for one in waiting]
    assert sorted(int(item["payload"]) for items in got for item in items) == list(range(count)), "each to one"
    assert readers(shared_api) == 0


def test_a_receive_that_waits_in_vain_is_empty(client: Client, box: str) -> None:
    begun = time.monotonic()
    assert client.receive_messages(box, wait=0.4) == []
    assert time.monotonic() - begun >= 0.4


def test_a_waiting_receive_is_told_that_its_mailbox_is_gone(shared_api: Deployment, client: Client, box: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.receive_messages, box, wait=20)
        eventually(lambda: readers(shared_api) == 1)
        client.delete_mailbox(box)
        with pytest.raises(NotFound):
            waiting.result(20)


def test_nothing_is_handed_to_who_has_hung_up(shared_api: Deployment, client: Client, box: str) -> None:
    headers = {"authorization": f"Bearer {shared_api.secrets['runner']}"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{shared_api.url}/v1/mailboxes/{box}/receive",
            json={"wait_seconds": 30},
            headers=headers,
            timeout=httpx.Timeout(10, read=0.5),
        )
    eventually(lambda: readers(shared_api) == 0, what="the hung-up receive ends")
    client.send_message(box, "x")
    [leased] = client.receive_messages(box)
    assert leased["attempt"] == 1


def test_what_is_given_back_rings(shared_api: Deployment, client: Client, box: str) -> None:
    client.send_message(box, "x")
    [leased] = client.receive_messages(box)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.receive_messages, box, wait=15)
        eventually(lambda: readers(shared_api) == 1)
        client.nack_message(leased["lease_id"])
        [again] = waiting.result(60)
    assert again["attempt"] == 2


def test_a_payload_and_its_lease_as_plain_bytes(shared_api: Deployment, client: Client, box: str) -> None:
    client.send_message(box, bytes(range(256)))
    with shared_api.http("runner") as http:
        http.headers["accept"] = "application/octet-stream"
        path = f"/v1/mailboxes/{box}/receive"
        answer = http.post(path, json={})
        assert (answer.status_code, answer.content) == (200, bytes(range(256)))
        assert (answer.headers["oah-seq"], answer.headers["oah-attempt"]) == ("1", "1")
        assert http.post(path, json={}).status_code == 204
        assert http.post(path, json={"limit": 2}).status_code == 400
        assert http.post(f"/v1/mailboxes/leases/{answer.headers['oah-lease-id']}/ack").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"limit": 0},
        {"limit": 101},
        {"wait_seconds": 61},
        {"wait_seconds": -1},
        {"group": ""},
        {"group": "a\0b"},
        {"holder": "x" * 65},
        {"priorities": ["highest"]},
        {"typo": 1},
    ],
)
def test_receives_that_make_no_sense(shared_api: Deployment, box: str, body: dict[str, Any]) -> None:
    with shared_api.http("runner") as http:
        answer = http.post(f"/v1/mailboxes/{box}/receive", json=body)
    assert answer.status_code in (400, 422), answer.text


def test_only_some_priorities_are_taken(client: Client, box: str, shared_api: Deployment) -> None:
    client.send_message(box, "n")
    client.send_message(box, "c", priority="critical")
    with shared_api.http("runner") as http:
        body = {"priorities": ["normal", "urgent"], "limit": 5}
        [got] = http.post(f"/v1/mailboxes/{box}/receive", json=body).json()["items"]
    assert got["payload"] == "n"


# --- the agent of a run ----------------------------------------------------------------------------------------------


def test_a_stream_ends_with_its_key(shared_api: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.api.subscriptions.ALLOWED", 0.0)
    monkeypatch.setattr("oah.api.auth.REMEMBERED_SECONDS", 0.0)
    client = shared_api.client()
    box = client.create_mailbox()["address"]
    client.send_message(box, b"one")
    made = client.create_key("short", workspace="default", scopes=["read"])
    path, headers = f"/v1/mailboxes/{box}/subscribe", {"authorization": f"Bearer {made['secret']}"}
    with (
        shared_api.http(None) as http,
        http.stream("GET", path, params={"keep_alive": 1}, headers=headers, timeout=10) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()
        assert "event: message" in [next(lines) for _ in range(6)]
        client.revoke_key(made["id"])
        assert list(lines).count(": keep-alive") < 3, "and then it has ended"


def test_a_stream_of_an_agent_ends_with_its_attempt(shared_api: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "ALLOWED", 0.0)
    with shared_api.http() as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
    started = shared_api.start(session)
    with Client(shared_api.url, run_key(shared_api.fence(started)), retries=0) as agent:
        box = agent.create_mailbox()["address"]
        reader = Reader(agent, box)
        eventually(lambda: readers(shared_api) == 1)
        agent.send_message(box, "before")
        reader.wait(1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(agent.receive_messages, agent.create_mailbox()["address"], wait=20)
            eventually(lambda: readers(shared_api) == 2)
            shared_api.settle(started)
            shared_api.client().send_message(box, "after")
            eventually(lambda: reader.ended)
            with pytest.raises(Exception, match="attempt is over"):
                waiting.result(20)
    assert reader.payloads == ["before"]
    assert getattr(reader.ended, "code", None) == "unauthorized"


def test_limits_of_an_agent_are_its_own(shared_api: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.api.mail.MOST_OF_RUN", 0)
    with shared_api.http() as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
    started = shared_api.start(session)
    with Client(shared_api.url, run_key(shared_api.fence(started)), retries=0) as agent:
        box = agent.create_mailbox()["address"]
        with pytest.raises(LimitReached):
            next(agent.subscribe(box, timeout=5))
    shared_api.settle(started)


def test_streams_end_when_the_process_goes_away(api: Deployment) -> None:
    client = api.client("runner")
    box = client.create_mailbox()["address"]
    with stream(api, box) as lines:
        eventually(lambda: readers(api) == 1)
        api.state.drain()
        assert "event: gone" not in list(lines), "the mailbox is not"
    with api.http("runner") as http:
        assert http.get(f"/v1/mailboxes/{box}/subscribe").status_code == 503


def test_a_store_that_is_away_ends_the_stream_and_the_client_comes_back(api: Deployment) -> None:
    client = api.client("runner")
    box = client.create_mailbox()["address"]
    reader = Reader(client, box)
    eventually(lambda: readers(api) == 1)
    client.send_message(box, "1")
    reader.wait(1)
    api.store.broken.add("ready_messages")
    client.send_message(box, "2")
    eventually(lambda: readers(api) == 0)
    api.store.broken.discard("ready_messages")
    assert reader.wait(2) == ["1", "2"]


def test_it_is_invalid_to_ask_for_an_unknown_priority(client: Client, box: str) -> None:
    with pytest.raises(InvalidRequest):
        next(client.subscribe(box, priorities=["highest"], timeout=5))
