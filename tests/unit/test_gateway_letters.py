"""Headers, letters, answers and bodies of requests."""

import json
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oah.core.model.ids import MailboxId, MessageId, WorkspaceId
from oah.core.model.message import Message, Priority
from oah.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    LimitReached,
    NotFound,
    OahError,
    PayloadTooLarge,
    RequestError,
    Unavailable,
)
from oah.gateway import answers, bodies, frames, headers, letters
from oah.gateway.commands import Publish
from oah.gateway.subjects import Asked, Era, Verb
from oah.ports.mailboxes import Sent

HERE = WorkspaceId("default")
AT = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def message(**more: Any) -> Message:
    fields: dict[str, Any] = {"id": MessageId("msg_1"), "mailbox_id": MailboxId("mbx_1"), "seq": 7, "sent_at": AT}
    return Message(**{**fields, "priority": Priority.URGENT, **more})


def letter(*lines: str, asked: Asked | None = None) -> Any:
    block = "NATS/1.0\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n"
    command = Publish("s", b"\x00\xff", None, block.encode())
    return letters.outgoing(asked or Asked(Verb.SEND, Era.PULL, "a"), command, workspace_id=HERE, sender="me")


def test_headers_of_a_send_are_read_and_ours_are_not_kept() -> None:
    found = letter(
        *("mq9-priority: critical", "mq9-ttl: 10", "mq9-delay: 5", "mq9-key: k", "mq9-tags: a, b,,c"),
        *("Nats-Msg-Id: d1", "mq9-msg-id: 99", "mq9-time: x", "MQ9-Priority: urgent", "X:  two  blanks ", "X: again"),
    )
    assert (found.priority, found.ttl, found.delay) == (Priority.CRITICAL, timedelta(seconds=10), timedelta(seconds=5))
    assert (found.key, found.tags, found.dedup_key) == ("k", ("a", "b", "c"), "d1")
    assert found.payload == b"\x00\xff"
    kept = b"mq9-key: k\r\nmq9-tags: a, b,,c\r\nNats-Msg-Id: d1\r\n"
    kept += b"MQ9-Priority: urgent\r\nX:  two  blanks \r\nX: again\r\n"
    assert found.headers == kept


@pytest.mark.parametrize(
    "line",
    [
        b"mq9-msg-id: 99",
        b"mq9-msg-id : 99",
        b"X: y\nmq9-msg-id: 99",
        b"X: y\rmq9-msg-id: 99",
        b" mq9-msg-id: 99",
        b"\tof the time: 99",
        b" : 99",
    ],
)
def test_no_sender_speaks_for_us_whatever_a_receivers_parser_makes_of_its_line(line: bytes) -> None:
    """Python's parser of mail headers, which nats-py uses; a line may also have come over HTTP."""
    stored = b"A: b\r\n" + line + b"\r\nC: d\r\n"
    assert headers.kept(b"NATS/1.0\r\n" + stored + b"\r\n") == b"A: b\r\nC: d\r\n"
    block = letters.block(message(headers=line + b"\r\n" + stored))
    parsed = BytesParser().parsebytes(block.partition(b"\r\n")[2])
    seen = {name.strip(): value.strip() for name, value in parsed.items()}
    assert (seen["mq9-msg-id"], seen["mq9-time"]) == ("7", "2030-01-02T03:04:05.678Z")
    assert seen["A"] == "b"


def test_the_subjects_priority_counts_before_the_headers() -> None:
    asked = Asked(Verb.SEND, Era.MAIL, "a", Priority.URGENT)
    assert letter("mq9-priority: critical", asked=asked).priority is Priority.URGENT


@pytest.mark.parametrize("line", ["mq9-priority: high", "mq9-ttl: x", "mq9-ttl: -1", "mq9-delay: nan", "mq9-ttl: 1e99"])
def test_a_header_that_is_wrong_is_said(line: str) -> None:
    with pytest.raises(InvalidRequest):
        letter(line)


def test_what_a_subscriber_gets() -> None:
    block = letters.block(message(headers=b"X: y\r\n"), attempt=2)
    assert block == (
        b"NATS/1.0\r\nmq9-msg-id: 7\r\nmq9-priority: urgent\r\nmq9-time: 2030-01-02T03:04:05.678Z\r\n"
        b"mq9-attempt: 2\r\nX: y\r\n\r\n"
    )
    assert b"attempt" not in letters.block(message())


@given(st.binary(max_size=80))
def test_any_block_can_be_read(block: bytes) -> None:
    headers.fields(block)
    assert headers.kept(block) == b"" or headers.kept(block).endswith(b"\r\n")


def test_frames() -> None:
    assert frames.message("a", "1", b"x\r\n") == b"MSG a 1 3\r\nx\r\n\r\n"
    assert frames.message("a", "1", b"", reply="r") == b"MSG a 1 r 0\r\n\r\n"
    block = headers.block(b"A: b\r\n")
    assert (
        frames.message("a", "1", b"x", reply="r", block=block) == b"HMSG a 1 r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
    )
    assert frames.message("\udcff", "1", b"") == b"MSG \xff 1 0\r\n\r\n"
    assert frames.NOBODY == b"NATS/1.0 503\r\n\r\n"
    assert frames.error("it's\r\nso") == b"-ERR 'its  so'\r\n"
    assert frames.refused_subscription("s") == b"-ERR 'Permissions Violation for Subscription to \"s\"'\r\n"
    assert frames.refused_subscription("s", "q").endswith(b'to "s" using queue "q"\'\r\n')


def test_both_generations_of_clients_are_satisfied() -> None:
    sent = Sent(message_id=MessageId("m"), mailbox_id=MailboxId("b"), seq=7)
    assert answers.sent(Era.MAIL, sent) == {"msg_id": "7"}
    assert answers.sent(Era.PULL, sent) == {"error": "", "msg_id": 7}
    delayed = Sent(message_id=MessageId("m"), mailbox_id=MailboxId("b"), seq=None, duplicate=True)
    assert answers.sent(Era.PULL, delayed) == {"error": "", "msg_id": -1, "duplicate": True}
    assert answers.metadata(message()) == {"msg_id": "7", "priority": "urgent", "ts": int(AT.timestamp())}
    assert answers.whole(message(payload=b"\xff"))["payload"] == "/w=="


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), 400),
        (Forbidden("x"), 403),
        (NotFound("x", code="mailbox_not_found"), 404),
        (NotFound("x", code="mailbox_expired"), 410),
        (Conflict("x"), 409),
        (PayloadTooLarge("x"), 413),
        (LimitReached("x"), 429),
        (RequestError("x"), 400),
        (Unavailable("secret address"), 503),
    ],
)
def test_codes_of_errors(error: OahError, code: int) -> None:
    answer = answers.failed(error)
    assert answer["code"] == code
    assert answer["error"]
    assert "secret" not in answer["error"]


def test_as_many_items_as_fit() -> None:
    items = [{"n": number} for number in range(10)]
    assert answers.fitting(items, 1_000) == (items, True)
    found, whole = answers.fitting(items, 30)
    assert (len(found), whole) == (3, False)
    assert len(json.dumps(found, separators=(",", ":"))) <= 30


@pytest.mark.parametrize("payload", [b"", b"  ", b'""', b"null", b"{}"])
def test_an_empty_body(payload: bytes) -> None:
    assert bodies.read(payload) == {}


@pytest.mark.parametrize("payload", [b"[]", b"{", b"\xff", b"1", b"[" * 50_000, b'{"a":"' + b"x" * 70_000 + b'"}'])
def test_a_body_that_is_none(payload: bytes) -> None:
    with pytest.raises(InvalidRequest):
        bodies.read(payload)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(
    st.dictionaries(
        st.sampled_from(["group_name", "deliver", "from_time", "from_id", "config", "force_deliver"]),
        st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=4),
    )
)
def test_a_fetch_is_understood_or_refused(body: dict[str, Any]) -> None:
    try:
        wanted = bodies.fetch(body)
    except InvalidRequest:
        return
    assert 1 <= wanted.limit <= bodies.MOST_FETCHED


@pytest.mark.parametrize("value", [True, "x", -1, float("nan"), float("inf"), 1e12])
def test_seconds_that_are_none(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        bodies.seconds({"ttl": value}, "ttl")
    with pytest.raises(InvalidRequest):
        bodies.moment({"since": value if value != 1e12 else 1e30}, "since")
