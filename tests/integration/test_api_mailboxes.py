"""Mailboxes over HTTP on both stores: made, sent to as JSON and as bytes, read, deleted; and every refusal."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from oah.client import Client
from oah.errors import Conflict, InvalidRequest, LimitReached, NotFound, PayloadTooLarge
from oah.services.post import MailRules, Post
from oah.services.run_keys import run_key
from oah.settings import AuthMode
from tests.support import eventually
from tests.support.api import Deployment

EVERY_BYTE = bytes(range(256)) * 3


@pytest.fixture
def client(shared_api: Deployment) -> Client:
    return shared_api.client("runner")


@pytest.fixture
def http(shared_api: Deployment) -> Iterator[httpx.Client]:
    with shared_api.http("runner") as http:
        yield http


@pytest.fixture
def box(client: Client) -> str:
    """A private mailbox of this test."""
    return str(client.create_mailbox()["address"])


def fresh(name: str) -> str:
    """A name that no other test has."""
    return f"{name}.{secrets.token_hex(4)}"


def test_a_private_address_is_random_and_a_public_one_is_chosen_and_listed(client: Client) -> None:
    private = client.create_mailbox(ttl=timedelta(minutes=5), description="mine")
    assert private["new"] and not private["public"] and private["ttl_seconds"] == 300
    assert private["address"].startswith("m-") and len(private["address"]) == 2 + 32
    public = client.create_mailbox(fresh("team.reviews"), description="what waits")
    assert public["new"] and public["public"] and public["description"] == "what waits"
    again = client.create_mailbox(public["address"], ttl=1, description="other")
    assert not again["new"]
    assert {**again, "new": True} == public, "the first one stands"
    listed = [one["address"] for one in client.mailboxes()]
    assert public["address"] in listed and private["address"] not in listed
    assert client.mailbox(private["address"])["id"] == private["id"]


def test_who_lists_secret_addresses_must_operate(shared_api: Deployment, box: str) -> None:
    with shared_api.http("runner") as http:
        assert http.get("/v1/mailboxes", params={"private": True}).status_code == 403
    operator = shared_api.client("operator")
    assert box in [one["address"] for one in operator.mailboxes(private=True)]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "A",
        "b c",
        "a..b",
        ".a",
        "a.",
        "a.urgent",
        "critical",
        "m-mine",
        "ses_mine",
        "a*",
        "a>",
        "x" * 129,
        "ä",
        "b\n",
    ],
)
def test_names_that_nobody_may_choose(client: Client, address: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        client.create_mailbox(address)
    assert caught.value.code == "invalid_address"


@pytest.mark.parametrize("ttl", [-1, 1e12, 1e300])
def test_times_to_live_that_are_refused(client: Client, box: str, ttl: float) -> None:
    for call in (lambda: client.create_mailbox(ttl=ttl), lambda: client.send_message(box, "x", ttl=ttl)):
        with pytest.raises(InvalidRequest):
            call()


@pytest.mark.parametrize("payload", [b"", b"x", "grüße".encode(), EVERY_BYTE, b"a\r\nb\r\n", b'{"msg_id": 1}'])
def test_payloads_come_back_byte_by_byte(client: Client, http: httpx.Client, box: str, payload: bytes) -> None:
    sent = client.send_message(box, payload)
    assert client.message(box, sent["seq"])["payload"] == payload
    raw = http.post(f"/v1/mailboxes/{box}/messages", content=payload, headers={"content-type": "application/x-any"})
    assert raw.status_code == 201, raw.text
    assert raw.headers["location"] == f"/v1/mailboxes/{box}/messages/{raw.json()['seq']}"
    answer = http.get(raw.headers["location"], headers={"accept": "application/octet-stream"})
    assert (answer.content, answer.headers["oah-seq"]) == (payload, str(raw.json()["seq"]))
    assert answer.headers["oah-message-id"] == raw.json()["id"]
    assert client.message(box, raw.json()["seq"])["payload"] == payload
    got = [client.receive_messages(box)[0]["payload"] for _ in range(2)]
    assert got == [payload, payload]


def test_a_message_carries_what_it_was_given(client: Client, http: httpx.Client, box: str) -> None:
    headers = {"X-Kind": "test", "Trace": ["a", "b: c"]}
    sent = client.send_message(box, "hi", priority="urgent", headers=headers, ttl=60, key="k", tags=["a", "ü"])
    found = client.message(box, sent["seq"])
    assert (found["id"], found["priority"], found["key"], found["tags"]) == (sent["id"], "urgent", "k", ["a", "ü"])
    assert found["headers"] == {"X-Kind": ["test"], "Trace": ["a", "b: c"]}
    assert found["size"] == 2 and found["sender"].startswith("key:")
    assert found["expires_at"] > found["sent_at"]
    raw = {
        "OAH-Priority": "critical",
        "OAH-TTL-Seconds": "60",
        "OAH-Key": "schlüssel".encode(),
        "OAH-Tags": "one, two",
        "OAH-Header-Reply-To": "m-1",
        "Content-Type": "text/plain",
    }
    answer = http.post(f"/v1/mailboxes/{box}/messages", content=b"raw", headers=raw)
    found = client.message(box, answer.json()["seq"])
    assert (found["priority"], found["key"], found["tags"]) == ("critical", "schlüssel", ["one", "two"])
    assert found["headers"] == {"reply-to": ["m-1"]} and found["payload"] == b"raw"


def test_a_list_is_in_the_order_of_reading_and_without_payloads(client: Client, box: str) -> None:
    for number, word in enumerate(["normal", "critical", "urgent", "normal", "critical", "urgent"], 1):
        client.send_message(box, f"m{number}", priority=word, tags=["odd" if number % 2 else "even"])
    listed = client.messages(box)
    assert [one["seq"] for one in listed] == [2, 5, 3, 6, 1, 4]
    assert all("payload" not in one and one["size"] == 2 for one in listed)
    assert [one["seq"] for one in client.messages(box, tag="even")] == [2, 6, 4]
    assert [one["seq"] for one in client.messages(box, limit=4)] == [2, 5, 3, 6]
    assert client.messages(box, since=datetime.now(UTC) + timedelta(hours=1)) == []


def test_lists_come_in_pages(http: httpx.Client, client: Client, box: str) -> None:
    for number in range(5):
        client.send_message(box, str(number), priority="urgent" if number % 2 else "normal")
    seen, cursor = [], None
    while True:
        page = http.get(f"/v1/mailboxes/{box}/messages", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        seen += [one["seq"] for one in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert seen == [2, 4, 1, 3, 5]
    assert http.get(f"/v1/mailboxes/{box}/messages", params={"cursor": "made up"}).status_code == 400


def test_only_the_newest_of_a_key_stays(client: Client, box: str) -> None:
    client.send_message(box, "old", key="status")
    client.send_message(box, "other")
    client.send_message(box, "new", key="status")
    assert [client.message(box, one["seq"])["payload"] for one in client.messages(box)] == [b"other", b"new"]
    assert [one["seq"] for one in client.messages(box, key="status")] == [3]


def test_sent_twice_under_one_key_it_is_one_message(http: httpx.Client, client: Client, box: str) -> None:
    first = client.send_message(box, "once", idempotency_key="k-1")
    assert not first["duplicate"]
    again = client.send_message(box, "once", idempotency_key="k-1")
    assert (again["id"], again["seq"], again["duplicate"]) == (first["id"], first["seq"], True)
    raw = http.post(f"/v1/mailboxes/{box}/messages", content=b"x", headers={"idempotency-key": "k-1"})
    assert (raw.status_code, raw.headers["idempotent-replayed"], raw.json()["id"]) == (200, "true", first["id"])
    assert len(client.messages(box)) == 1
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.send_message(box, "many", idempotency_key="k-2"), range(8)))
    assert len({one["id"] for one in answers}) == 1
    assert sorted(one["duplicate"] for one in answers) == [False] + [True] * 7


def test_deleted_is_true_only_if_something_was_deleted(client: Client, box: str) -> None:
    seq = client.send_message(box, "x")["seq"]
    assert client.delete_message(box, seq) is True
    assert client.delete_message(box, seq) is False
    with pytest.raises(NotFound):
        client.message(box, seq)
    for _ in range(3):
        client.send_message(box, "x")
    client.send_message(box, "later", delay=600)
    assert client.purge_mailbox(box) == 4
    assert client.purge_mailbox(box) == 0
    assert client.mailbox(box)["messages"] == 0
    assert client.delete_mailbox(box) is True
    with pytest.raises(NotFound) as caught:
        client.delete_mailbox(box)
    assert caught.value.code == "mailbox_not_found"


def test_a_delayed_message_is_seen_when_it_is_due(client: Client, box: str) -> None:
    sent = client.send_message(box, "later", delay=0.3)
    assert sent["seq"] is None
    assert client.messages(box) == []


def test_what_is_not_there_is_answered_by_name(http: httpx.Client) -> None:
    calls = [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/messages", None),
        ("DELETE", "/messages", None),
        ("POST", "/messages", {"payload": "x"}),
        ("GET", "/messages/1", None),
        ("DELETE", "/messages/1", None),
        ("GET", "/subscribe", None),
        ("POST", "/receive", {}),
    ]
    for address in ("nowhere", "m-" + "0" * 32, "%2e%2e", "a%2Fb", "A b", "x" * 400, "_x", "ses_none"):
        for method, rest, body in calls:
            answer = http.request(method, f"/v1/mailboxes/{address}{rest}", json=body)
            assert answer.status_code == 404, (method, address, rest, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            code = answer.json()["code"]
            assert code in ("mailbox_not_found", "not_found"), (method, address, rest, code)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"payload": "x", "payload_base64": "eA=="},
        {"payload_base64": "no base64!"},
        {"payload": 1},
        {"payload": "x", "typo": 1},
        {"payload": "x", "priority": "highest"},
        {"payload": "x", "ttl_seconds": 0},
        {"payload": "x", "ttl_seconds": -5},
        {"payload": "x", "delay_seconds": -1},
        {"payload": "x", "delay_seconds": 1e20},
        {"payload": "x", "tags": ["t"] * 17},
        {"payload": "x", "tags": [""]},
        {"payload": "x", "key": ""},
        {"payload": "x", "key": "k" * 300},
        {"payload": "x", "key": "a\0b"},
        {"payload": "x", "headers": {"bad name": "v"}},
        {"payload": "x", "headers": {"": "v"}},
        {"payload": "x", "headers": {"A": "v\r\nB: injected"}},
        {"payload": "x", "headers": {"A": 5}},
    ],
)
def test_sends_that_make_no_sense(http: httpx.Client, client: Client, box: str, body: dict[str, Any]) -> None:
    answer = http.post(f"/v1/mailboxes/{box}/messages", json=body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"]
    assert client.messages(box) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"OAH-Priority": "highest"},
        {"OAH-TTL-Seconds": "soon"},
        {"OAH-TTL-Seconds": "nan"},
        {"OAH-Delay-Seconds": "1e400"},
        {"OAH-Prio": "urgent"},
    ],
)
def test_raw_sends_that_make_no_sense(http: httpx.Client, client: Client, box: str, headers: dict[str, str]) -> None:
    answer = http.post(f"/v1/mailboxes/{box}/messages", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert client.messages(box) == []


def test_broken_json_is_no_payload(http: httpx.Client, client: Client, box: str) -> None:
    for content in (b"{", b"", b"[]", b'{"payload": "\xff"}', b'{"payload": "\\ud800"}'):
        declared = {"content-type": "application/json; charset=utf-8"}
        answer = http.post(f"/v1/mailboxes/{box}/messages", content=content, headers=declared)
        assert answer.status_code in (400, 422), (content, answer.text)
    assert client.messages(box) == []


def test_limits_are_typed_refusals(apis: Deployment) -> None:
    post: Post = apis.context.post
    post.rules = MailRules(max_payload_bytes=1_000, max_messages=3, max_mailboxes=2)
    client = apis.client("runner")
    box = client.create_mailbox("small")["address"]
    client.send_message(box, b"x" * 1_000)
    with pytest.raises(PayloadTooLarge) as large:
        client.send_message(box, b"x" * 1_001)
    assert large.value.code == "payload_too_large"
    with apis.http("runner") as http:
        raw = http.post(f"/v1/mailboxes/{box}/messages", content=b"x" * 1_001)
        assert (raw.status_code, raw.json()["code"]) == (413, "payload_too_large")
        client.send_message(box, "2")
        client.send_message(box, "3")
        full = http.post(f"/v1/mailboxes/{box}/messages", content=b"4")
        assert (full.status_code, full.json()["code"]) == (429, "mailbox_full"), full.text
        assert full.json()["hint"], "what to do"
        assert full.headers["retry-after"]
    with pytest.raises(LimitReached) as caught:
        client.send_message(box, "4")
    assert caught.value.code == "mailbox_full"
    assert [client.message(box, one["seq"])["payload"][:1] for one in client.messages(box)] == [b"x", b"2", b"3"]
    client.delete_message(box, 1)
    assert client.send_message(box, "4")["seq"] == 4
    client.create_mailbox("second")
    with pytest.raises(LimitReached):
        client.create_mailbox("third")
    assert client.create_mailbox("second")["new"] is False


def test_an_expired_mailbox_is_gone_and_its_name_is_free(shared_api: Deployment, client: Client) -> None:
    name = fresh("short")
    first = client.create_mailbox(name, ttl=0.4)
    client.send_message(name, "old")

    def expired() -> str | None:
        try:
            client.mailbox(name)
        except NotFound as error:
            return error.code
        return None

    assert eventually(expired, within=5) in ("mailbox_expired", "mailbox_not_found")
    for call in (client.messages, lambda a: client.send_message(a, "x"), client.receive_messages):
        with pytest.raises(NotFound) as caught:
            call(name)
        assert caught.value.code in ("mailbox_expired", "mailbox_not_found")
    assert name not in [one["address"] for one in client.mailboxes()]
    again = client.create_mailbox(name)
    assert again["new"] and again["id"] != first["id"]
    assert client.messages(name) == [] and client.receive_messages(name) == []


def test_another_workspace_knows_nothing_of_it(shared_api: Deployment, client: Client, box: str) -> None:
    client.send_message(box, "secret words")
    foreigner = shared_api.client("foreigner")
    for call in (
        lambda: foreigner.mailbox(box),
        lambda: foreigner.messages(box),
        lambda: foreigner.message(box, 1),
        lambda: foreigner.send_message(box, "x"),
        lambda: foreigner.receive_messages(box),
        lambda: foreigner.delete_message(box, 1),
        lambda: foreigner.purge_mailbox(box),
        lambda: foreigner.delete_mailbox(box),
        lambda: next(foreigner.subscribe(box, timeout=5)),
        lambda: foreigner.mailbox(box, workspace="default"),
    ):
        with pytest.raises(NotFound):
            call()
    public = client.create_mailbox(fresh("shared"))["address"]
    theirs = foreigner.create_mailbox(public)
    assert theirs["new"], "a name is taken in its own workspace only"
    foreigner.send_message(public, "theirs")
    assert client.messages(public) == []
    assert client.message(box, 1)["payload"] == b"secret words"
    [leased] = client.receive_messages(box)
    for settle in (foreigner.ack_message, foreigner.nack_message):
        with pytest.raises(NotFound) as caught:
            settle(leased["lease_id"])
        assert caught.value.code == "lease_not_found"
    assert foreigner.extend_leases("anybody") == 0
    client.ack_message(leased["lease_id"])


def test_a_key_of_all_workspaces_names_one(shared_api: Deployment, client: Client) -> None:
    admin = shared_api.client()
    made = admin.create_mailbox(fresh("named"), workspace="foreign")
    address = made["address"]
    admin.send_message(address, "x", workspace="foreign")
    assert len(admin.messages(address, workspace="foreign")) == 1
    with pytest.raises(NotFound):
        admin.mailbox(address)
    [leased] = admin.receive_messages(address, workspace="foreign")
    admin.ack_message(leased["lease_id"])
    assert shared_api.client("foreigner").mailbox(address)["id"] == made["id"]


def test_without_keys_no_page_of_another_origin_sends(shared_api: Deployment, client: Client, box: str) -> None:
    """JSON is asked about first (preflight); a form is not."""
    state = shared_api.state
    kept = state.context
    state.context = replace(kept, auth=AuthMode.OFF)
    try:
        with shared_api.http("runner") as http:
            path = f"/v1/mailboxes/{box}/messages"
            refused = http.post(path, content=b"x", headers={"origin": "https://evil.example"})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert http.post(path, content=b"x").status_code == 201
    finally:
        state.context = kept
    assert len(client.messages(box)) == 1


# --- the agent of a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def agent(shared_api: Deployment) -> Iterator[Client]:
    """A client with the key of a run that is under way."""
    with shared_api.http() as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
    started = shared_api.start(session)
    with Client(shared_api.url, run_key(shared_api.fence(started)), retries=0) as made:
        made.session_id = session  # type: ignore[attr-defined]
        made.over = lambda: shared_api.settle(started)  # type: ignore[attr-defined]
        made.run_id = started.run.id  # type: ignore[attr-defined]
        yield made


def test_an_agent_makes_sends_reads_and_takes(agent: Client, client: Client) -> None:
    mine = agent.create_mailbox()["address"]
    public = client.create_mailbox(fresh("agents"))["address"]
    assert public in [one["address"] for one in agent.mailboxes()]
    agent.send_message(public, EVERY_BYTE)
    found = client.message(public, 1)
    assert found["payload"] == EVERY_BYTE and found["sender"] == f"run:{agent.run_id}"  # type: ignore[attr-defined]
    client.send_message(mine, "an answer")
    assert next(agent.subscribe(mine, timeout=10))["payload"] == b"an answer"
    [leased] = agent.receive_messages(mine, wait=5)
    agent.ack_message(leased["lease_id"])
    assert agent.messages(mine) == []
    assert agent.delete_message(public, 1) is True


def test_what_an_agent_may_not(shared_api: Deployment, agent: Client, client: Client, box: str) -> None:
    headers = {"authorization": f"Bearer {agent._api.key}"}
    with httpx.Client(base_url=shared_api.url, headers=headers, timeout=20) as http:
        assert http.delete(f"/v1/mailboxes/{box}").status_code == 403
        assert http.delete(f"/v1/mailboxes/{box}/messages").status_code == 403
        assert http.get("/v1/mailboxes", params={"private": True}).status_code == 403
        assert http.get("/v1/mailboxes", params={"workspace": "foreign"}).status_code == 404
        own = http.get(f"/v1/sessions/{agent.session_id}")  # type: ignore[attr-defined]
        assert (own.status_code, own.json()["code"]) == (404, "not_found")
    agent.over()  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="attempt is over"):
        agent.send_message(box, "too late")


def test_payloads_of_a_mebibyte(client: Client, box: str) -> None:
    payload = base64.b64decode(base64.b64encode(hashlib.sha256(b"x").digest() * 32_768))
    assert len(payload) == 1_048_576
    seq = client.send_message(box, payload)["seq"]
    assert client.message(box, seq)["payload"] == payload
    assert client.receive_messages(box)[0]["payload"] == payload
    with pytest.raises(PayloadTooLarge):
        client.send_message(box, payload + b"x")


# --- where a message has been ----------------------------------------------------------------------------------------


def test_a_trace_of_a_message_in_a_mailbox(shared_api: Deployment, client: Client, box: str) -> None:
    sent = client.send_message(box, "x", priority="urgent", ttl=600)
    for group in ("early", "late", "both"):
        client.receive_messages(box, group=group)
    again = client.send_message(box, "y", priority="urgent")
    [held] = client.receive_messages(box, group="both")
    client.nack_message(held["lease_id"], delay=30)
    found = client.trace_message(sent["id"])
    assert (found["mailbox"], found["state"], found["message"]["seq"]) == (box, None, sent["seq"])
    assert [hop["hop"] for hop in found["hops"]] == ["sent", "expires"]
    assert found["hops"][0]["data"]["sender"].startswith("key:")
    assert {one["group"]: one["state"] for one in found["groups"]} == dict.fromkeys(("early", "late", "both"), "held")
    second = {one["group"]: one["state"] for one in client.trace_message(again["id"])["groups"]}
    assert second == {"early": "ahead", "late": "ahead", "both": "given_back"}
    delayed = client.send_message(box, "z", delay=60)
    assert [hop["hop"] for hop in client.trace_message(delayed["id"])["hops"]] == ["sent", "due"]
    for foreign, message in ((shared_api.client("foreigner"), sent["id"]), (client, "msg_nothing"), (client, "a.b")):
        with pytest.raises(NotFound):
            foreign.trace_message(message)


def test_a_trace_of_a_dead_one(apis: Deployment) -> None:
    apis.context.post.rules = MailRules(max_attempts=1)
    client = apis.client("runner")
    box = client.create_mailbox()["address"]
    sent = client.send_message(box, "poison")
    [held] = client.receive_messages(box)
    client.nack_message(held["lease_id"])
    assert client.receive_messages(box) == []
    found = client.trace_message(sent["id"])
    assert "dead_letter" in [hop["hop"] for hop in found["hops"]]
    [letter] = apis.client().dead_letters(kind="message")
    assert next(hop for hop in found["hops"] if hop["hop"] == "dead_letter")["data"]["id"] == letter["id"]


def test_a_trace_of_a_message_for_an_agent(apis: Deployment) -> None:
    client = apis.client("runner")
    session = client.create_session("shell")["id"]
    with apis.http("runner") as http:
        sent = http.post(f"/v1/mailboxes/{session}/messages", json={"payload": "hello agent"})
    assert sent.status_code == 201, sent.text
    assert sent.json()["session_id"] == session
    found = client.trace_message(sent.json()["id"])
    assert (found["session_id"], found["mailbox"]) == (session, session)
    assert [hop["hop"] for hop in found["hops"]][:2] == ["sent", "message.queued"]
    with pytest.raises(NotFound):
        apis.client("foreigner").trace_message(sent.json()["id"])
    for call in (client.receive_messages, client.purge_mailbox, client.delete_mailbox):
        with pytest.raises(Conflict):
            call(session)
