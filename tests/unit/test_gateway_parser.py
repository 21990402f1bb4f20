"""The NATS parser: the same commands however the bytes come, and nothing kept that was refused."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oah.gateway.commands import (
    TOO_LARGE,
    TOO_LONG,
    UNAUTHORIZED,
    UNKNOWN,
    Command,
    Connect,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    Violation,
)
from oah.gateway.parser import MAX_CONTROL, MAX_HEADERS, Parser

BLOCK = b"NATS/1.0\r\nA: b\r\n\r\n"
ALL = (
    b'CONNECT {"verbose":false,"name":"x y"}\r\n'
    b"ping\r\nPoNg\r\n"
    b"PUB a.b 5\r\nhello\r\n"
    b"PUB a.b  5\r\na\r\nbc\r\n"  # two blanks; a line end within the payload
    b"PUB\ta.b\t_INBOX.1 0 \r\n\r\n"
    b"pub a 3\n\xff\xfe\x00\r\n"  # a bare LF ends a line, too; payloads are no text
    b"HPUB a %d %d\r\n%b\r\n" % (len(BLOCK), len(BLOCK), BLOCK)
) + (
    b"HPUB a r %d %d\r\n%bPUB x 1\r\n\r\n" % (len(BLOCK), len(BLOCK) + 9, BLOCK)
    + b"SUB a.*  1\r\nSUB a.> workers 2 \r\nUNSUB 1 \r\nUNSUB 2 5\r\n"
    + b"SUB \xff\xe9.x 7\r\n"
)
EXPECTED: list[Command] = [
    Connect({"verbose": False, "name": "x y"}),
    Ping(),
    Pong(),
    Publish("a.b", b"hello"),
    Publish("a.b", b"a\r\nbc"),
    Publish("a.b", b"", "_INBOX.1"),
    Publish("a", b"\xff\xfe\x00"),
    Publish("a", b"", None, BLOCK),
    Publish("a", b"PUB x 1\r\n", "r", BLOCK),
    Subscribe("a.*", "1"),
    Subscribe("a.>", "2", "workers"),
    Unsubscribe("1"),
    Unsubscribe("2", 5),
    Subscribe("\udcff\udce9.x", "7"),
]


def read(parser: Parser, *pieces: bytes) -> list[Command]:
    found = []
    for piece in pieces:
        parser.feed(piece)
        while (command := parser.take()) is not None:
            found.append(command)
    return found


def violation(data: bytes, **options: int) -> str:
    parser = Parser(**{"max_payload": 100, **options})
    with pytest.raises(Violation) as caught:
        read(parser, data)
    return caught.value.text


def test_everything_in_one_piece() -> None:
    assert read(Parser(max_payload=100), ALL) == EXPECTED


@pytest.mark.parametrize("at", range(1, len(ALL)))
def test_cut_anywhere_in_two(at: int) -> None:
    assert read(Parser(max_payload=100), ALL[:at], ALL[at:]) == EXPECTED


def test_byte_by_byte() -> None:
    parser = Parser(max_payload=100)
    assert read(parser, *(ALL[at : at + 1] for at in range(len(ALL)))) == EXPECTED
    assert parser.kept == 0


@given(st.lists(st.integers(0, len(ALL)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_cut_in_any_pieces(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ALL)]
    pieces = [ALL[a:b] for a, b in itertools.pairwise(edges)]
    assert read(Parser(max_payload=100), *pieces) == EXPECTED


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b" PING", b"NOPE", b"PUB", b"PUB a", b"PUB a b c 1", b"PUB a x", b"PUB a -1", b"PUB a +1", b"PUB a 1_0"),
        *(b"PUB a 1e3", b"PUB a 99999999999", b"HPUB a 1", b"HPUB a 9 8", b"HPUB a b c 1 2", b"SUB", b"SUB a"),
        *(b"SUB a b c d", b"UNSUB", b"UNSUB 1 x", b"UNSUB 1 2 3", b"CONNECT", b"CONNECT x", b"CONNECT []"),
        *(b"CONNECT " + b"[" * 4000, b'CONNECT "a"', b"\x16\x03\x01\x02", b"GET / HTTP/1.1", b"PUB a \xd9\xa1"),
    ],
)
def test_lines_that_say_nothing(line: bytes) -> None:
    assert violation(line + b"\r\n") == UNKNOWN


def test_a_payload_ends_with_a_line_end() -> None:
    assert violation(b"PUB a 2\r\nabcd\r\n") == UNKNOWN
    assert violation(b"PUB a 2\r\nab\n\n") == UNKNOWN


def test_the_largest_payload_and_one_more() -> None:
    assert read(Parser(max_payload=100), b"PUB a 100\r\n" + b"x" * 100 + b"\r\n") == [Publish("a", b"x" * 100)]
    assert violation(b"PUB a 101\r\n") == TOO_LARGE  # before a byte of it came
    head = b"HPUB a %d %d\r\n" % (len(BLOCK), len(BLOCK) + 100)
    assert read(Parser(max_payload=100), head + BLOCK + b"x" * 100 + b"\r\n") == [Publish("a", b"x" * 100, None, BLOCK)]
    assert violation(b"HPUB a %d %d\r\n" % (len(BLOCK), len(BLOCK) + 101)) == TOO_LARGE
    assert violation(b"HPUB a %d %d\r\n" % (MAX_HEADERS + 1, MAX_HEADERS + 1)) == TOO_LARGE


def test_the_longest_line_and_one_more() -> None:
    line = b"SUB " + b"a" * (MAX_CONTROL - 7) + b" 1\r"
    assert len(line) == MAX_CONTROL
    assert len(read(Parser(max_payload=1), line + b"\n")) == 1
    assert violation(b"SUB " + b"a" * MAX_CONTROL + b" 1\r\n") == TOO_LONG
    assert violation(b"a" * (MAX_CONTROL + 1)) == TOO_LONG  # it need not end


def test_who_is_not_known_yet_may_only_say_who_it_is() -> None:
    parser = Parser(max_payload=100)
    parser.locked = True
    assert read(parser, b"PING\r\nCONNECT {}\r\n") == [Ping(), Connect({})]
    with pytest.raises(Violation) as caught:
        read(parser, b"PUB a 100\r\n")
    assert caught.value.text == UNAUTHORIZED


def test_what_is_behind_a_connect_waits_until_it_is_asked_for() -> None:
    parser = Parser(max_payload=100)
    parser.locked = True
    parser.feed(b"CONNECT {}\r\nPUB a 1\r\nx\r\n")
    assert parser.take() == Connect({})
    parser.locked = False
    assert parser.take() == Publish("a", b"x")


def _words() -> st.SearchStrategy[bytes]:
    verbs = [b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"CONNECT", b"pong", b"+OK", b"MSG", b"\x00"]
    word = st.one_of(
        st.sampled_from([*verbs, b"a", b"a.>", b"5", b"0", b"1048577", b"{}", b"\r\n"]), st.binary(max_size=9)
    )
    return st.lists(st.tuples(word, st.sampled_from([b" ", b"  ", b"\t", b"\r\n", b""])), max_size=40).map(
        lambda pairs: b"".join(word + blank for word, blank in pairs)
    )


@given(_words(), st.integers(1, 64))
@settings(max_examples=400, deadline=None)
def test_whatever_comes_gives_commands_or_a_violation_and_keeps_little(data: bytes, step: int) -> None:
    parser = Parser(max_payload=64)
    try:
        for at in range(0, len(data), step):
            parser.feed(data[at : at + step])
            while (command := parser.take()) is not None:
                assert isinstance(command, Command)
            assert parser.kept <= MAX_CONTROL + MAX_HEADERS + step
    except Violation as fault:
        told = fault.text
    else:
        told = UNKNOWN
    assert told in (UNKNOWN, TOO_LARGE, TOO_LONG)
