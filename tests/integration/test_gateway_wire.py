"""The NATS protocol in bytes: what a client says, however it says it, and what it is told."""

import json
import os
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.services import keys, workspaces
from tests.support.gateway import Gateway, Line, MakeGateway, subject
from tests.support.waiting import eventually


def refusal(name: str) -> bytes:
    return b"-ERR 'Permissions Violation for Subscription to \"%b\"'" % name.encode()


# Connecting


def test_info_comes_first_and_pong_is_the_first_answer(gateway: Gateway) -> None:
    line = gateway.dial()
    info = line.info()
    assert info["proto"] == 1
    assert info["version"].count(".") == 2
    assert (info["headers"], info["max_payload"], info["jetstream"]) == (True, 1_048_576, False)
    assert "nonce" not in info
    assert "connect_urls" not in info
    line.say(b"CONNECT {}\r\nPING\r\nPING\r\n")
    assert [line.line(), line.line()] == [b"PONG", b"PONG"]


def test_commands_in_pieces_of_one_byte(gateway: Gateway) -> None:
    line = gateway.dial()
    line.info()
    said = b'coNNect {"headers":true}\r\nping\r\nSub  a.b.pieces \t 7 \r\nPUB a.b.pieces  4\r\na\r\nb\r\nPiNg\r\n'
    line.say(*(said[at : at + 1] for at in range(len(said))))
    assert line.line() == b"PONG"
    assert line.message().payload == b"a\r\nb"
    assert line.line() == b"PONG"


def test_a_verbose_client_hears_of_each_command(gateway: Gateway) -> None:
    line, box = gateway.dial(), gateway.box()
    line.info()
    line.say(b'CONNECT {"verbose":true}\r\nPING\r\nSUB v.1 1\r\nPUB v.1 1\r\nx\r\nUNSUB 1\r\n')
    assert [line.line() for _ in range(3)] == [b"+OK", b"PONG", b"+OK"]
    assert line.message().payload == b"x"
    assert [line.line() for _ in range(2)] == [b"+OK", b"+OK"]
    line.publish(subject(box), b"stored")
    assert line.line() == b"+OK"
    line.say(b"SUB %b 2\r\n" % subject(box).encode())
    assert line.line() == b"+OK"
    assert line.message().payload == b"stored"
    line.publish(subject("nobody"), b"x")
    assert line.line() == b"-ERR 'Permissions Violation for Publish to \"$mq9.AI.MAILBOX.MSG.nobody\"'"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"NOPE\r\n", b"-ERR 'Unknown Protocol Operation'"),
        (b"GET / HTTP/1.1\r\n", b"-ERR 'Unknown Protocol Operation'"),
        (b"PUB a 1048577\r\n", b"-ERR 'Maximum Payload Violation'"),
        (b"PUB a 1\r\nxx\r\n", b"-ERR 'Unknown Protocol Operation'"),
        (b"SUB " + b"a" * 5_000, b"-ERR 'maximum control line exceeded'"),
        (b"CONNECT {}\r\nCONNECT {}\r\n", b"-ERR 'CONNECT came twice'"),
        (b'CONNECT {"no_responders":true}\r\n', b"-ERR 'no responders requires headers support'"),
        (b"\xff\xfe\xfd\r\n", b"-ERR 'Unknown Protocol Operation'"),
    ],
)
def test_who_breaks_the_protocol_is_told_and_let_go_and_nobody_else(gateway: Gateway, said: bytes, told: bytes) -> None:
    other = gateway.line()
    line = gateway.dial()
    line.info()
    line.say(said)
    assert line.line() == told
    assert line.at_end()
    other.settle()


def test_an_unfinished_command_is_no_command(gateway: Gateway) -> None:
    listener, line = gateway.line(), gateway.line()
    listener.say(b"SUB half.open 1\r\n")
    listener.settle()
    line.say(b"PUB half.open 100\r\nonly a part")
    line.close()
    listener.settle()


# Ordinary subjects


def test_publish_and_subscribe(gateway: Gateway) -> None:
    one, two = gateway.line(), gateway.line(headers=True)
    one.say(b"SUB t.* 1\r\nSUB t.> 2\r\nSUB t.x 3\r\nSUB t.x 3\r\nSUB other 4\r\n")
    one.settle()
    two.say(b"PUB t.x _INBOX.r 2\r\nhi\r\n")
    got = one.messages(3)
    assert {each.sid for each in got} == {"1", "2", "3"}
    assert {(each.subject, each.reply, each.payload) for each in got} == {("t.x", b"_INBOX.r", b"hi")}
    one.say(b"UNSUB 1\r\nUNSUB 2\r\nUNSUB 77\r\n")
    one.settle()
    two.say(b"PUB t.x 0\r\n\r\n")
    assert one.message().sid == "3"
    one.settle()


def test_headers_reach_only_who_knows_them(gateway: Gateway) -> None:
    new, old = gateway.line(headers=True), gateway.line()
    for line in (new, old):
        line.say(b"SUB h.x 1\r\n")
        line.settle()
    new.publish("h.x", b"body", A="b")
    found = new.message()
    assert (found.block, found.payload) == (b"NATS/1.0\r\nA: b\r\n\r\n", b"body")
    found = old.message()
    assert (found.block, found.payload) == (b"", b"body")


def test_an_end_after_so_many(gateway: Gateway) -> None:
    line = gateway.line()
    line.say(b"SUB m.x 1\r\nUNSUB 1 2\r\n" + b"PUB m.x 1\r\nx\r\n" * 4)
    line.messages(2)
    line.settle()
    line.say(b"SUB m.x 1\r\n" + b"PUB m.x 1\r\ny\r\n" * 2 + b"UNSUB 1 2\r\nPUB m.x 1\r\nz\r\n")
    assert [each.payload for each in line.messages(2)] == [b"y", b"y"]
    line.settle()  # it had had so many already


def test_a_queue_group_gets_each_message_once(gateway: Gateway) -> None:
    members, sender = [gateway.line() for _ in range(3)], gateway.line()
    for member in members:
        member.say(b"SUB q.x workers 1\r\nSUB q.end 2\r\n")
        member.settle()
    sender.say(b"".join(b"PUB q.x 3\r\n%03d\r\n" % number for number in range(90)) + b"PUB q.end 0\r\n\r\n")
    got: list[list[bytes]] = []
    for member in members:
        found = []
        while (message := member.message()).sid == "1":
            found.append(message.payload)
        got.append(found)
    assert sorted(payload for found in got for payload in found) == [b"%03d" % number for number in range(90)]
    assert all(got)


def test_no_echo_and_nobody_there(gateway: Gateway) -> None:
    line = gateway.line(echo=False, headers=True, no_responders=True)
    line.say(b"SUB e.x 1\r\nSUB _INBOX.e.* 2\r\nPUB e.x 1\r\nx\r\n")
    line.settle()
    line.say(b"PUB e.nobody _INBOX.e.7 0\r\n\r\n")
    found = line.message()
    assert (found.subject, found.sid, found.payload) == ("_INBOX.e.7", "2", b"")
    assert found.block.startswith(b"NATS/1.0 503")
    found_json = line.ask("$mq9.AI.MAILBOX.LIST.nobody")
    assert found_json["code"] == 404  # of mailboxes we are the responder


def test_an_answer_goes_to_whoever_listens_for_it(gateway: Gateway) -> None:
    asker, listener, nosy = gateway.line(), gateway.line(), gateway.line()
    listener.say(b"SUB _INBOX.elsewhere.* 5\r\n")
    nosy.say(b"SUB > 1\r\nSUB *.> 2\r\nSUB *.*.* 3\r\n")
    for line in (listener, nosy):
        line.settle()
    asker.say(b"PUB $mq9.AI.MAILBOX.CREATE _INBOX.elsewhere.1 2\r\n{}\r\n")
    assert json.loads(listener.message().payload)["mail_id"].startswith("m-")
    nosy.settle()  # who listens to everything learns of no address


def test_drain_leaves_what_was_sent_before_it(gateway: Gateway) -> None:
    line = gateway.line()
    line.say(b"SUB d.x 1\r\n" + b"PUB d.x 1\r\nx\r\n" * 5 + b"UNSUB 1\r\nPING\r\nPUB d.x 1\r\ny\r\n")
    assert [each.payload for each in line.messages(5)] == [b"x"] * 5
    assert line.line() == b"PONG"
    line.settle()


def test_a_subject_that_is_none_is_refused_and_the_rest_goes_on(gateway: Gateway) -> None:
    line = gateway.line()
    for wrong in ("a..b", ".a", "a.", ">.a", "a.>.b", "x" * 1025):
        line.say(b"SUB %b 1\r\n" % wrong.encode())
        assert line.line() == refusal(wrong)
    line.say(b"PUB a.* 0\r\n\r\n")
    assert line.line() == b"-ERR 'Permissions Violation for Publish to \"a.*\"'"
    line.settle()


# Mailboxes


@pytest.mark.parametrize("rest", ["*", ">", "*.*", "*.critical", "#", "*.>", "nobody", "nobody.*", "nobody.urgent"])
def test_a_mailbox_that_cannot_be_read_is_refused_in_the_form_that_clients_survive(gateway: Gateway, rest: str) -> None:
    line = gateway.line()
    line.say(b"SUB %b 1\r\n" % subject(rest).encode())
    assert line.line() == refusal(subject(rest))
    line.say(b"SUB %b workers 1\r\n" % subject(rest).encode())
    assert line.line() == refusal(subject(rest))[:-1] + b' using queue "workers"\''
    line.settle()


def test_no_pattern_sees_a_mailboxs_traffic(gateway: Gateway) -> None:
    nosy, line, box = gateway.line(), gateway.line(), gateway.box()
    nosy.say(b"SUB > 1\r\nSUB *.> 2\r\nSUB *.AI.MAILBOX.MSG.* 3\r\n")
    nosy.settle()
    for pattern in (b"$mq9.>", b"$mq9.AI.>", b"$mq9.*.MAILBOX.>"):
        nosy.say(b"SUB %b 4\r\n" % pattern)
        assert nosy.line() == refusal(pattern.decode())
    line.publish(subject(box, ".urgent"), b"secret")
    line.publish("plain.subject", b"seen")
    line.settle()
    assert {nosy.message().payload for _ in range(2)} == {b"seen"}
    nosy.settle()


@pytest.mark.parametrize("payload", [b"", b"\r\n", b"a\r\nMSG x 1 1\r\n", b"\xff\xfe\x00", bytes(range(256)) * 4096])
def test_payloads_are_bytes_end_to_end(gateway: Gateway, payload: bytes) -> None:
    line, box = gateway.line(headers=True), gateway.box()
    line.publish(subject(box), payload)
    line.say(b"SUB %b 1\r\n" % subject(box, ".>").encode())
    assert line.message().payload == payload


def test_the_largest_payload_with_headers_and_one_byte_more(gateway: Gateway) -> None:
    line, box, largest = gateway.line(headers=True), gateway.box(), os.urandom(1_048_576)
    line.publish(subject(box), largest, X="y")
    line.say(b"SUB %b 1\r\n" % subject(box).encode())
    found = line.message()
    assert (found.payload, found.headers["X"]) == (largest, "y")
    line.say(b"PUB %b 1048577\r\n" % subject(box).encode())
    assert line.line() == b"-ERR 'Maximum Payload Violation'"


def test_a_thousand_messages_in_one_write_keep_their_order(gateway: Gateway) -> None:
    line, box = gateway.line(headers=True), gateway.box()
    frame = b"PUB %b 4\r\n%%04d\r\n" % subject(box).encode()
    line.say(b"".join(frame % number for number in range(1_000)) + b"SUB %b 1\r\n" % subject(box).encode())
    got = line.messages(1_000)
    assert [each.payload for each in got] == [b"%04d" % number for number in range(1_000)]
    assert [each.number for each in got] == list(range(1, 1_001))


# Limits, slow and silent clients


def test_too_many_connections_and_subscriptions(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_connections=2, max_subscriptions=3)
    line = gateway.line()
    for sid in range(3):
        line.say(b"SUB l.%d %d\r\n" % (sid, sid))
    line.say(b"SUB l.4 4\r\n")
    assert line.line() == b"-ERR 'maximum subscriptions exceeded'"
    line.settle()
    gateway.line()
    third = gateway.dial()
    third.info()
    assert third.line() == b"-ERR 'maximum connections exceeded'"
    assert third.at_end()
    line.settle()


def test_a_client_that_reads_nothing_is_let_go_and_no_other(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_pending=262_144)
    slow, quick, sender = gateway.dial(receive_buffer=4096).connect(), gateway.line(), gateway.line()
    for line in (slow, quick):
        line.say(b"SUB s.x 1\r\n")
        line.settle()
    frame = b"PUB s.x 32768\r\n" + b"x" * 32_768 + b"\r\n"
    for _ in range(200):
        sender.say(frame)
        assert len(quick.message().payload) == 32_768
    eventually(lambda: gateway.telemetry.value("oah_gateway_ends_total", reason="slow") == 1)
    sender.settle()
    assert gateway.telemetry.value("oah_gateway_connections") == 2


def test_a_client_whose_buffer_does_not_move_is_let_go(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(write_deadline=timedelta(seconds=0.6))
    box, slow, line = gateway.box(), gateway.dial(receive_buffer=4096).connect(), gateway.line()
    for _ in range(40):
        line.publish(subject(box), b"x" * 262_144)
    line.settle()
    slow.say(b"SUB %b 1\r\n" % subject(box).encode())
    eventually(lambda: gateway.telemetry.value("oah_gateway_ends_total", reason="slow") == 1)
    line.settle()


def test_who_is_let_go_and_does_not_read_why_holds_no_socket(make_gateway: MakeGateway) -> None:
    """What it is still to be told is little, and waits for it: but not for ever."""
    gateway = make_gateway(write_deadline=timedelta(seconds=1))
    line = gateway.dial(receive_buffer=4096).connect()
    assert gateway.hub is not None
    [connection] = gateway.hub.connections

    def stuck() -> bool:
        line.say(b"PING\r\n" * 2_000)
        return connection.unsent > 0

    eventually(stuck, within=20)
    raw = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
    line.say(b"NONSENSE\r\n")
    eventually(lambda: connection.ended is not None, within=10)
    eventually(lambda: raw.fileno() == -1, within=10)


def test_a_silent_client_is_asked_and_let_go(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(ping_every=timedelta(seconds=0.2))
    silent = gateway.line()
    assert silent.line() == b"PING"
    while (answer := silent.line()) == b"PING":
        pass
    assert answer == b"-ERR 'Stale Connection'"
    assert silent.at_end()


# Who may come in


def test_a_token_a_user_and_an_api_key(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(strangers=False, token="t0ken", user="u", password="p")
    other = workspaces.create(gateway.store, gateway.ids, "other")
    secrets = {
        name: keys.create(gateway.store, gateway.ids, name=name, workspace_id=where, scopes=frozenset(scopes)).secret
        for name, where, scopes in (
            ("runner", DEFAULT_WORKSPACE, {Scope.RUN}),
            ("reader", DEFAULT_WORKSPACE, {Scope.READ}),
            ("foreigner", other.id, {Scope.RUN}),
        )
    }
    for options in ({}, {"auth_token": "wrong"}, {"user": "u", "pass": "x"}, {"auth_token": "oahk_" + "0" * 32}):
        line = gateway.dial()
        line.info()
        line.say(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        assert line.line() == b"-ERR 'Authorization Violation'"
        assert line.at_end()
    box = gateway.box(address="team.box", public=True)
    for options in ({"auth_token": "t0ken"}, {"user": "u", "pass": "p"}, {"auth_token": secrets["runner"]}):
        assert gateway.line(**options).ask(subject(box), b"hello")["msg_id"]
    reader = gateway.line(auth_token=secrets["reader"])
    assert len(reader.ask(f"$mq9.AI.MAILBOX.LIST.{box}")["messages"]) == 3
    assert reader.ask(subject(box), b"x")["code"] == 403
    reader.say(b"SUB %b 1\r\n" % subject(box).encode())
    reader.messages(3)
    reader.say(b"SUB %b workers 2\r\n" % subject(box).encode())
    assert b"Permissions Violation" in reader.line()
    foreigner = gateway.line(user="anything", **{"pass": secrets["foreigner"]})
    assert foreigner.ask(f"$mq9.AI.MAILBOX.LIST.{box}")["code"] == 404
    foreigner.say(b"SUB plain.x 1\r\n")
    foreigner.settle()
    gateway.line(auth_token="t0ken").publish("plain.x", b"x")
    foreigner.settle()


def test_a_key_that_is_revoked_ends_its_connections_and_no_others(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oah.gateway.keeper.ASK_AGAIN", 0.1)
    gateway = make_gateway(strangers=False, token="t")
    one, two = (
        keys.create(gateway.store, gateway.ids, name=name, workspace_id=DEFAULT_WORKSPACE, scopes={Scope.RUN})
        for name in ("one", "two")
    )
    gone, stays, plain = (gateway.line(auth_token=each) for each in (one.secret, two.secret, "t"))
    keys.revoke(gateway.store, one.key.id)
    assert gone.line() == b"-ERR 'User Authentication Revoked'"
    assert gone.at_end()
    for line in (stays, plain):
        line.settle()


def test_who_has_not_said_who_it_is_can_do_nothing(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(strangers=False, token="t")
    line = gateway.dial()
    line.info()
    line.say(b"PUB a 1048576\r\n")
    assert line.line() == b"-ERR 'Authorization Violation'"
    late = gateway.dial()
    late.info()
    assert late.line() == b"-ERR 'Authorization Violation'"  # after a few seconds of silence


def test_a_stranger_reaches_no_session(gateway: Gateway) -> None:
    line = gateway.line()
    assert line.ask(subject("ses_01hzy"), b"do this")["code"] == 403
    line.say(b"SUB %b 1\r\n" % subject("ses_01hzy").encode())
    assert line.line() == refusal(subject("ses_01hzy"))


# TLS


def test_tls_begins_after_info(make_gateway: MakeGateway, certificate: tuple[Path, Path]) -> None:
    gateway = make_gateway(certificate=str(certificate[0]), key=str(certificate[1]))
    line = gateway.dial()
    info = line.info()
    assert info["tls_required"] is True
    context = ssl.create_default_context(cafile=str(certificate[0]))
    line.socket = context.wrap_socket(line.socket, server_hostname="localhost")
    line.say(b"CONNECT {}\r\nPING\r\n")
    assert line.line() == b"PONG"
    box = gateway.box()
    for _ in range(3):
        line.publish(subject(box), b"x" * 1_000_000)
    line.say(b"SUB %b 1\r\n" % subject(box).encode())
    assert [len(each.payload) for each in line.messages(3)] == [1_000_000] * 3
    plain = Line(gateway.address)
    plain.info()
    plain.say(b"CONNECT {}\r\nPING\r\n")
    assert not plain.line().startswith(b"PONG")
    plain.close()
    line.settle()
