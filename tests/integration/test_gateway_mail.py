"""Mailboxes over NATS: order, the seam between what is stored and what comes, time, and the later verbs."""

import base64
import json
import time
from datetime import timedelta
from itertools import pairwise

import pytest

from oah.core.model.message import Priority
from oah.ports.mailboxes import Outgoing
from oah.services.post import MailRules
from tests.support.gateway import Gateway, Line, MakeGateway, subject
from tests.support.waiting import eventually

LIST = "$mq9.AI.MAILBOX.LIST."
DELETE = "$mq9.AI.MAILBOX.DELETE."
CREATE = "$mq9.AI.MAILBOX.CREATE"


def read(line: Line, name: str, sid: int = 1, queue: str = "") -> None:
    line.say(b"SUB %b %b %d\r\n" % (name.encode(), queue.encode(), sid))


def numbers(gateway: Gateway, line: Line, box: str) -> list[int]:
    return [int(each["msg_id"]) for each in line.ask(LIST + box)["messages"]]


def test_create_private_and_public_and_again(gateways: MakeGateway) -> None:
    line = gateways().line()
    first, second = line.ask(CREATE, {"ttl": 60}), line.ask(CREATE, b"")
    assert first["mail_id"] != second["mail_id"]
    assert len(first["mail_id"]) >= 2 + 32
    assert "error" not in first
    named = line.ask(CREATE, {"ttl": 60, "public": True, "name": "task.queue", "desc": "work"})
    assert named == {"mail_id": "task.queue", "mail_address": "task.queue", "is_new": True}
    assert line.ask(CREATE, {"ttl": 9, "name": "task.queue"})["is_new"] is False
    for body in ({"public": True}, {"name": "a.urgent"}, {"name": "A"}, {"name": "a..b"}, {"ttl": -1}, {"ttl": "x"}):
        assert line.ask(CREATE, body)["code"] == 400
    assert line.ask(CREATE, b"[]")["error"]


def test_all_that_is_there_by_priority_then_what_comes(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, sender, box = gateway.line(headers=True), gateway.line(), gateway.box()
    for suffix in ("", ".urgent", ".critical", "", ".urgent", ".normal"):
        sender.publish(subject(box, suffix), suffix.encode())
    sender.settle()
    assert numbers(gateway, line, box) == [3, 2, 5, 1, 4, 6]
    for sid, form in enumerate((box, box + ".*", box + ".>"), start=1):
        read(line, subject(form), sid)
        got = line.messages(6)
        assert [each.number for each in got] == [3, 2, 5, 1, 4, 6]
        assert [each.subject for each in got] == [
            *(subject(box, ".critical"), subject(box, ".urgent"), subject(box, ".urgent")),
            *(subject(box), subject(box), subject(box)),
        ]
        assert got[0].headers["mq9-priority"] == "critical"
        assert got[0].headers["mq9-time"].endswith("Z")
        assert got[0].reply is None
        line.say(b"UNSUB %d\r\n" % sid)
    read(line, subject(box, ".urgent"), 7)
    assert [each.number for each in line.messages(2)] == [2, 5]
    sender.publish(subject(box, ".urgent"), b"live")
    sender.publish(subject(box), b"not for it")
    assert line.message().payload == b"live"
    line.settle()


def test_no_gap_and_no_doubling_where_the_stored_ends_and_the_live_begins(gateways: MakeGateway) -> None:
    gateway = gateways()
    box, sender, readers = gateway.box(), gateway.line(), [gateway.line(headers=True) for _ in range(3)]
    words = [b"", b".urgent", b".critical"]
    for number in range(300):
        sender.say(b"PUB %b%b 3\r\n%03d\r\n" % (subject(box).encode(), words[number % 3], number))
        if number % 100 == 50:
            read(readers[number // 100], subject(box))
    for reader in readers:
        got = reader.messages(300)
        assert sorted(each.payload for each in got) == [b"%03d" % number for number in range(300)]
        for priority in Priority:
            own = [each.number for each in got if each.headers["mq9-priority"] == priority.word]
            assert own == sorted(own)
        reader.settle()


def test_a_critical_message_overtakes_what_has_not_been_sent(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    box, sender, reader = gateway.box(), gateway.line(), gateway.dial(receive_buffer=16_384).connect(headers=True)
    for _ in range(400):
        sender.publish(subject(box), b"x" * 16_384)
    sender.settle()
    read(reader, subject(box))
    assert reader.message().number == 1
    sender.publish(subject(box, ".critical"), b"now")
    sender.settle()
    got = reader.messages(400)
    at = next(at for at, each in enumerate(got) if each.payload == b"now")
    assert at < 200, f"{at} messages came before it"
    assert [each.number for each in got if each.payload != b"now"] == list(range(2, 401))


def test_lists_are_metadata_in_pages_and_disturb_nobody(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, box = gateway.line(), gateway.box()
    gateway.post.send([Outgoing(workspace_id=gateway.rules.workspace, address=box, payload=b"x")] * 2_500)
    whole = line.ask(LIST + box)
    assert len(whole["messages"]) == 2_500
    assert set(whole) == {"mail_id", "messages"}
    assert set(whole["messages"][0]) == {"msg_id", "priority", "ts"}
    assert isinstance(whole["messages"][0]["msg_id"], str)
    seen, cursor = [], None
    while True:
        page = line.ask(LIST + box, {"limit": 1_000} | ({"cursor": cursor} if cursor else {}))
        seen += page["messages"]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert seen == whole["messages"]


def test_delete_says_whether_something_was_deleted(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, box, other = gateway.line(headers=True), gateway.box(), gateway.box(address="task.queue", public=True)
    for name in (box, box, other):
        line.publish(subject(name), b"x")
    line.settle()
    assert line.ask(DELETE + box + ".1") == {"deleted": True}
    assert line.ask(DELETE + box + ".1") == {"deleted": False}
    assert line.ask(DELETE + box + ".99") == {"deleted": False}
    assert line.ask(DELETE + other + ".1") == {"deleted": True}
    assert line.ask(DELETE + box + ".x")["code"] == 400
    assert line.ask(DELETE + "nobody.1")["code"] == 404
    assert line.ask(f"$mq9.AI.MSG.DELETE.{box}.2") == {"error": "", "deleted": True}
    read(line, subject(box))
    line.settle()


def test_receipts_and_refusals(gateways: MakeGateway) -> None:
    line = gateways().line(headers=True)
    box = line.ask(CREATE)["mail_id"]
    assert line.ask(subject(box), b"a") == {"msg_id": "1"}
    assert line.ask(f"$mq9.AI.MSG.SEND.{box}", b"b") == {"error": "", "msg_id": 2}
    for wrong, code in (("nobody", 404), ("*", 403), ("A", 400)):
        assert line.ask(subject(wrong), b"x")["code"] == code
    assert line.ask("$mq9.AI.NOPE", b"x")["code"] == 400
    line.publish(subject("nobody"), b"x")
    assert line.line() == b"-ERR 'Permissions Violation for Publish to \"$mq9.AI.MAILBOX.MSG.nobody\"'"
    line.settle()


def test_headers_of_the_sender_arrive_and_steer(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, box = gateway.line(headers=True), gateway.box()
    line.publish(subject(box), b"1", X_Own="kept", mq9_msg_id="99", mq9_priority="critical", Nats_Msg_Id="once")
    line.publish(subject(box), b"2", Nats_Msg_Id="once")
    line.publish(f"$mq9.AI.MSG.SEND.{box}", b"late", mq9_delay="0.4")
    line.publish(f"$mq9.AI.MSG.SEND.{box}", b"short", mq9_ttl="0.3")
    line.publish(f"$mq9.AI.MSG.SEND.{box}", b"wrong", mq9_ttl="x")
    assert b"Permissions Violation for Publish" in line.line()
    read(line, subject(box))
    first = line.message()
    assert first.headers | {"mq9-time": ""} == {
        "mq9-msg-id": "1",
        "mq9-priority": "critical",
        "mq9-time": "",
        "X-Own": "kept",
        "Nats-Msg-Id": "once",
    }
    assert [each.payload for each in line.messages(2)] == [b"short", b"late"]
    eventually(lambda: len(line.ask(LIST + box)["messages"]) == 2)


def test_at_the_end_of_a_messages_life_all_agree(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, box = gateway.line(headers=True), gateway.box()
    sent_at = time.monotonic()
    line.publish(subject(box), b"short", mq9_ttl="1")
    line.settle()
    assert len(line.ask(LIST + box)["messages"]) == 1
    taken_at = time.monotonic()

    def over() -> bool:
        asked_at = time.monotonic()
        listed = bool(line.ask(LIST + box)["messages"])
        assert not listed or asked_at - taken_at < 2, "a second at most after its end"
        return not listed

    eventually(over, every=0.1)
    assert time.monotonic() - sent_at > 0.9
    read(line, subject(box))
    line.settle()
    assert line.ask(DELETE + box + ".1") == {"deleted": False}


def test_at_the_end_of_a_mailboxs_life_all_agree_and_readers_are_told(gateways: MakeGateway) -> None:
    gateway = gateways()
    line, reader, member = gateway.line(), gateway.line(headers=True), gateway.line()
    assert line.ask(CREATE, {"ttl": 1, "name": "short.lived"})["is_new"]
    name = subject("short.lived")
    line.publish(name, b"of the first")
    line.settle()
    read(reader, name)
    read(member, name, queue="w")
    assert reader.message().payload == member.message().payload == b"of the first"
    assert reader.line() == b"-ERR 'Permissions Violation for Subscription to \"%b\"'" % name.encode()
    assert member.line() == b'-ERR \'Permissions Violation for Subscription to "%b" using queue "w"\'' % name.encode()
    assert line.ask(name, b"too late")["code"] in (404, 410)
    assert line.ask(LIST + "short.lived")["code"] in (404, 410)
    read(reader, name)
    assert b"Permissions Violation" in reader.line()
    assert line.ask(CREATE, {"ttl": 60, "name": "short.lived"})["is_new"]
    read(reader, name)
    line.publish(name, b"of the second")
    got = reader.message()
    assert (got.payload, got.number) == (b"of the second", 1)


def test_a_payload_that_looks_like_an_answer_is_a_payload(gateway: Gateway) -> None:
    line, box = gateway.line(headers=True), gateway.box()
    payload = json.dumps({"msg_id": 99, "error": "x", "payload": "eA=="}).encode()
    line.publish(subject(box), payload)
    read(line, subject(box))
    assert line.message().payload == payload


def test_an_end_after_so_many_counts_what_was_stored(gateway: Gateway) -> None:
    line, box = gateway.line(headers=True), gateway.box()
    for _ in range(5):
        line.publish(subject(box), b"x")
    line.settle()
    line.say(b"SUB %b 1\r\nUNSUB 1 3\r\n" % subject(box).encode())
    assert [each.number for each in line.messages(3)] == [1, 2, 3]
    line.publish(subject(box), b"more")
    line.settle()


def test_a_reply_may_be_a_mailbox(gateway: Gateway) -> None:
    line, box, receipts = gateway.line(headers=True), gateway.box(), gateway.box()
    read(line, subject(receipts, ".urgent"))
    line.say(b"PUB %b %b 1\r\nx\r\n" % (subject(box).encode(), subject(receipts, ".urgent").encode()))
    assert json.loads(line.message().payload) == {"msg_id": "1"}


def test_a_full_mailbox_refuses_the_newest(gateways: MakeGateway) -> None:
    gateway = gateways(mail=MailRules(max_messages=3))
    line, box = gateway.line(), gateway.box()
    for _ in range(3):
        line.publish(subject(box), b"kept")
    assert line.ask(subject(box), b"one too many")["code"] == 429
    assert numbers(gateway, line, box) == [1, 2, 3]


# The later generation


def fetch(line: Line, box: str, wait: int = 0, **body: object) -> list[dict[str, object]]:
    config = {"num_msgs": body.pop("num_msgs", 100), "max_wait_ms": wait}
    answer = line.ask(f"$mq9.AI.MSG.FETCH.{box}", {"config": config, **body})
    assert answer["error"] == "", answer
    found: list[dict[str, object]] = answer["messages"]
    return found


def test_fetch_and_ack_of_each_message(gateways: MakeGateway) -> None:
    gateway = gateways(lease=timedelta(seconds=5))
    line, other, box = gateway.line(headers=True), gateway.line(), gateway.box()
    for suffix in ("", ".critical", ""):
        line.publish(subject(box, suffix), b"\xff" + suffix.encode())
    line.settle()
    got = fetch(line, box, group_name="g", deliver="earliest", num_msgs=2)
    assert [each["msg_id"] for each in got] == [2, 1]
    assert base64.b64decode(str(got[0]["payload"])) == b"\xff.critical"
    assert [each["msg_id"] for each in fetch(other, box, group_name="g")] == [3]
    assert fetch(other, box, group_name="g") == []
    ack = f"$mq9.AI.MSG.ACK.{box}"
    assert line.ask(ack, {"group_name": "g", "msg_id": 2}) == {"error": ""}
    assert line.ask(ack, {"group_name": "g", "msg_id": 2})["code"] == 404
    other.close()
    # Acknowledging 2 says nothing of 1 and 3: 3 comes again when its lease is over, 1 is kept by who fetched it.
    again = eventually(lambda: fetch(line, box, group_name="g"), within=20)
    assert [(each["msg_id"], each["attempt"]) for each in again] == [(3, 2)]
    assert [each["msg_id"] for each in fetch(line, box, group_name="another")] == [1, 3]


def test_fetch_waits_for_something_to_come(gateway: Gateway) -> None:
    waiting, sender, box = gateway.line(), gateway.line(), gateway.box()
    begun = time.monotonic()
    assert fetch(waiting, box, wait=300, group_name="g") == []
    assert time.monotonic() - begun >= 0.3
    inbox = b"_INBOX.fetch.1"
    body = json.dumps({"group_name": "g", "config": {"max_wait_ms": 20_000}}).encode()
    waiting.say(b"SUB %b 1\r\nPUB $mq9.AI.MSG.FETCH.%b %b %d\r\n%b\r\n" % (inbox, box.encode(), inbox, len(body), body))
    sender.publish(subject(box), b"there")
    assert json.loads(waiting.message().payload)["messages"][0]["msg_id"] == 1


def test_a_client_goes_on_while_it_waits_for_a_fetch(gateway: Gateway) -> None:
    """It may be the one that sends what it waits for, and its PINGs are answered."""
    line, box = gateway.line(), gateway.box()
    body = json.dumps({"group_name": "g", "config": {"max_wait_ms": 60_000}}).encode()
    line.say(b"SUB _INBOX.x 1\r\nPUB $mq9.AI.MSG.FETCH.%b _INBOX.x %d\r\n%b\r\n" % (box.encode(), len(body), body))
    begun = time.monotonic()
    line.settle()
    line.publish(subject(box), b"there")
    assert json.loads(line.message().payload)["messages"][0]["msg_id"] == 1
    assert time.monotonic() - begun < 20
    line.say((b"PUB $mq9.AI.MSG.FETCH.%b _INBOX.x %d\r\n%b\r\n" % (box.encode(), len(body), body)) * 100)
    line.say(b"PING\r\n")
    line.close()  # more than may wait at once: it is read no further, and the others are undisturbed
    gateway.line().settle()


@pytest.mark.parametrize("group", ["g", ""])
def test_a_message_is_fetched_however_large_it_is_in_base64(gateway: Gateway, group: str) -> None:
    """Alone, if need be: it does not become a dead letter that nobody ever saw, nor the end of what can be read."""
    line, box = gateway.line(headers=True), gateway.box()
    whole = b"x" * gateway.rules.max_payload
    line.publish(subject(box), whole)
    line.publish(subject(box), b"small")
    line.settle()
    [found] = fetch(line, box, group_name=group, deliver="earliest")
    assert base64.b64decode(str(found["payload"])) == whole


def test_what_did_not_fit_into_an_answer_was_no_attempt(gateway: Gateway) -> None:
    """Headers weigh more in an answer than in the store: what does not fit goes back, and is never spent by that."""
    line, box = gateway.line(headers=True), gateway.box()
    for _ in range(12):
        line.publish(subject(box), b"", X="9" * 60_000)
    line.settle()
    seen: list[tuple[object, object]] = []
    while found := fetch(line, box, group_name="g"):
        assert len(found) < 12
        for each in found:
            assert line.ask(f"$mq9.AI.MSG.ACK.{box}", {"group_name": "g", "msg_id": each["msg_id"]}) == {"error": ""}
            seen.append((each["msg_id"], each["attempt"]))
    assert seen == [(number, 1) for number in range(1, 13)]


def test_fetch_without_a_group_is_a_look(gateway: Gateway) -> None:
    line, box = gateway.line(), gateway.box()
    for number in range(3):
        line.publish(subject(box), b"%d" % number)
    line.settle()
    assert [each["msg_id"] for each in fetch(line, box, deliver="earliest")] == [1, 2, 3]
    assert [each["msg_id"] for each in fetch(line, box, deliver="from_id", from_id=2)] == [2, 3]
    assert [each["msg_id"] for each in fetch(line, box)] == [3]
    assert fetch(line, box, deliver="from_time", from_time=int(time.time()) + 60) == []


def test_query_by_key_tag_and_time(gateway: Gateway) -> None:
    line, box = gateway.line(headers=True), gateway.box()
    send = f"$mq9.AI.MSG.SEND.{box}"
    line.publish(send, b"running", mq9_key="status")
    line.publish(send, b"done", mq9_key="status")
    line.publish(send, b"order", mq9_tags="billing, vip")
    query = f"$mq9.AI.MSG.QUERY.{box}"
    found = line.ask(query, {"key": "status"})["messages"]
    assert [base64.b64decode(each["payload"]) for each in found] == [b"done"]
    assert len(line.ask(query, {"tags": ["billing", "vip"]})["messages"]) == 1
    assert line.ask(query, {"tags": ["billing", "other"]})["messages"] == []
    assert len(line.ask(query, b"")["messages"]) == 2
    assert line.ask(query, {"since": int(time.time()) + 60})["messages"] == []


def test_agents_make_themselves_known(make_gateway: MakeGateway) -> None:
    line = make_gateway().line()
    agent = "$mq9.AI.AGENT."
    for name, text in (("translator", "EN ZH"), ("reviewer", "reads code")):
        card = {"name": name, "mailbox": f"box.{name}", "payload": text}
        assert line.ask(agent + "REGISTER", card) == {"error": ""}
    assert line.ask(agent + "REGISTER", {"name": "translator", "mailbox": "box.translator", "payload": "EN JA"}) == {
        "error": ""
    }
    line.ask(agent + "REPORT", {"name": "translator", "report_info": "busy"})
    found = line.ask(agent + "DISCOVER", {"text": "en ja"})["agents"]
    assert [each["name"] for each in found] == ["translator"]
    assert found[0]["report"]["report_info"] == "busy"
    assert len(line.ask(agent + "DISCOVER", b"")["agents"]) == 2
    assert [each["name"] for each in line.ask(agent + "DISCOVER", {"semantic": "who reads my code"})["agents"]] == [
        "reviewer"
    ]
    assert len(line.ask(agent + "DISCOVER", {"limit": 1, "page": 2})["agents"]) == 1
    assert line.ask(agent + "UNREGISTER", {"mailbox": "box.translator"}) == {"error": ""}
    assert line.ask(agent + "UNREGISTER", {"name": "translator"})["code"] == 404
    assert [each["name"] for each in line.ask(agent + "DISCOVER")["agents"]] == ["reviewer"]
    assert line.ask(agent + "REGISTER", {})["code"] == 400


def test_two_gateways_share_the_mailboxes(gateways: MakeGateway) -> None:
    one, two = gateways(), gateways()
    box, reader, sender = one.box(), one.line(headers=True), two.line()
    read(reader, subject(box))
    reader.settle()
    for number in range(20):
        sender.publish(subject(box), b"%d" % number)
    got = reader.messages(20)
    assert all(a.number < b.number for a, b in pairwise(got))


@pytest.mark.parametrize("cut", [True, False])
def test_a_reader_that_comes_back_reads_all_again(gateway: Gateway, cut: bool) -> None:
    box, sender = gateway.box(), gateway.line()
    sender.publish(subject(box), b"x")
    sender.settle()
    for _ in range(2):
        reader = gateway.line(headers=True)
        read(reader, subject(box))
        assert reader.message().number == 1
        reader.reset() if cut else reader.close()
