"""Noise on the wire of a living gateway: it goes on, others notice nothing, and its memory is bounded."""

import random
import socket
import threading

import psutil
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.gateway import Gateway, Line, subject
from tests.support.waiting import eventually

VERBS = [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG", b"CONNECT", b"INFO", b"+OK", b"-ERR", b"MSG"]
WORDS = [
    *(
        b"a",
        b"a.b",
        b">",
        b"*",
        b"_INBOX.1",
        b"1",
        b"0",
        b"5",
        b"999999999",
        b"-1",
        b"\xff",
        b"{}",
        b'{"headers":true}',
    ),
    *(b"$mq9.AI.MAILBOX.CREATE", b"$mq9.AI.MAILBOX.MSG.fuzz", b"$mq9.AI.MAILBOX.MSG.fuzz.*", b"$mq9.>"),
    *(
        b"$mq9.AI.MAILBOX.LIST.fuzz",
        b"$mq9.AI.MSG.FETCH.fuzz",
        b"$mq9.AI.MAILBOX.DELETE.fuzz.1",
        b"$mq9.AI.AGENT.DISCOVER",
    ),
    *(b'{"ttl":1e9}', b'{"name":"fuzz"}', b'{"config":{"max_wait_ms":0}}'),
]


def _command() -> st.SearchStrategy[bytes]:
    words = st.lists(st.sampled_from(WORDS), max_size=4)
    line = st.tuples(st.sampled_from(VERBS), words).map(lambda pair: b" ".join([pair[0], *pair[1]]) + b"\r\n")
    whole = st.tuples(st.sampled_from(WORDS), st.binary(max_size=40)).map(
        lambda pair: b"PUB %b _INBOX.1 %d\r\n%b\r\n" % (pair[0], len(pair[1]), pair[1])
    )
    return st.one_of(whole, whole, line, st.binary(max_size=60))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_command(), max_size=12), st.booleans(), st.booleans())
def test_whatever_a_client_says_others_are_served(
    gateway: Gateway, commands: list[bytes], polite: bool, abrupt: bool
) -> None:
    noisy = Line(gateway.address)
    noisy.socket.settimeout(0.5)
    try:
        noisy.say(*([b"CONNECT {}\r\nPING\r\n"] if polite else []), b"".join(commands))
        noisy.reset() if abrupt else noisy.close()
    except OSError:
        noisy.close()
    line = Line(gateway.address)
    line.connect()
    line.close()


def _serves(gateway: Gateway) -> None:
    line = Line(gateway.address)
    try:
        line.connect(headers=True)
        box = gateway.box()
        line.publish(subject(box), b"x")
        line.say(b"SUB %b 1\r\n" % subject(box).encode())
        assert line.message().payload == b"x"
    finally:
        line.close()


def test_many_noisy_clients_at_once_cost_no_memory(gateway: Gateway) -> None:
    process, chance = psutil.Process(), random.Random(7)
    steady, box = gateway.line(headers=True), gateway.box()
    steady.say(b"SUB %b 1\r\n" % subject(box).encode())
    noises = [bytes(chance.getrandbits(8) for _ in range(2_000)) for _ in range(20)]
    noises += [b"PUB a 1048576\r\n" + b"x" * 900_000, b"SUB " + b"y" * 4_000, b"PING\r\n" * 5_000, b"CONNECT {"]
    before = process.memory_info().rss
    there = gateway.telemetry.value("oah_gateway_connections") or 0

    def shout(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(40):
            with socket.create_connection(gateway.address, 10) as noisy:
                try:
                    noisy.sendall(own.choice(noises))
                except OSError:
                    continue

    shouters = [threading.Thread(target=shout, args=(seed,)) for seed in range(4)]
    for shouter in shouters:
        shouter.start()
    for number in range(50):
        steady.publish(subject(box), b"%d" % number)
        assert steady.message().payload == b"%d" % number
    for shouter in shouters:
        shouter.join()
    eventually(lambda: (gateway.telemetry.value("oah_gateway_connections") or 0) <= there)
    assert process.memory_info().rss - before < 64 * 2**20
    _serves(gateway)


def test_half_a_payload_of_many_clients_is_bounded(gateway: Gateway) -> None:
    lines = [gateway.line() for _ in range(20)]
    for line in lines:
        line.say(b"PUB half.of 1048576\r\n" + b"x" * 1_000)
    _serves(gateway)
    for line in lines:
        line.reset()
    _serves(gateway)


def test_a_client_that_asks_and_never_reads_is_held_back(gateway: Gateway) -> None:
    """It is listened to no further while its answers wait: it costs its buffers, and nobody else anything."""
    greedy = gateway.dial(receive_buffer=4_096)
    greedy.info()
    greedy.say(b"CONNECT {}\r\nSUB _INBOX.g 1\r\n")
    greedy.socket.settimeout(1)
    frame = b"PUB $mq9.AI.NOPE.%b _INBOX.g 0\r\n\r\n" % (b"x" * 900)
    try:
        for _ in range(200):
            greedy.say(frame * 100)
    except OSError:
        pass
    assert gateway.hub is not None
    assert max(each.unsent for each in gateway.hub.connections) < 2**20
    _serves(gateway)
    greedy.reset()
    _serves(gateway)
