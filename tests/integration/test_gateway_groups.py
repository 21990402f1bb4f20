"""Queue groups over NATS: each message to one member, and back to the group when that member goes."""

from datetime import timedelta

from oah.services.post import MailRules
from tests.support.gateway import Gateway, Line, MakeGateway, Message, subject
from tests.support.waiting import eventually

LIST = "$mq9.AI.MAILBOX.LIST."
DELETE = "$mq9.AI.MAILBOX.DELETE."


def join(line: Line, box: str, group: str = "workers", sid: int = 1, suffix: str = ".*") -> None:
    line.say(b"SUB %b %b %d\r\n" % (subject(box, suffix).encode(), group.encode(), sid))


def fill(gateway: Gateway, box: str, count: int, suffix: str = "") -> None:
    line = gateway.line()
    for number in range(count):
        line.publish(subject(box, suffix), b"%d" % number)
    line.settle()


def member(gateway: Gateway, box: str, **options: str) -> Line:
    line = gateway.line(headers=True)
    join(line, box, **options)
    return line


def collect(lines: list[Line], count: int) -> list[list[Message]]:
    """Until all members together have so many."""
    got: list[list[Message]] = [[] for _ in lines]

    def enough() -> bool:
        for each, line in zip(got, lines, strict=True):
            each.extend(waiting(line))
        return sum(map(len, got)) >= count

    eventually(enough, within=30)
    return got


def waiting(line: Line) -> list[Message]:
    line.say(b"PING\r\n")
    got = []
    while (words := line.line().split(b" "))[0] != b"PONG":
        if words[0] != b"PING":
            got.append(_rest(line, words))
    return got


def _rest(line: Line, words: list[bytes]) -> Message:
    assert words[0] == b"HMSG", words
    head, total = int(words[-2]), int(words[-1])
    body = line.bytes(total)
    assert line.bytes(2) == b"\r\n"
    return Message(words[1].decode(), words[2].decode(), None, body[:head], body[head:])


def test_stored_and_coming_messages_are_shared_and_each_comes_once(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    members = [member(gateway, box) for _ in range(3)]
    for line in members:
        waiting(line)
    fill(gateway, box, 60)
    got = collect(members, 60)
    numbers = sorted(each.number for own in got for each in own)
    assert numbers == list(range(1, 61))
    assert all(len(own) >= 5 for own in got), [len(own) for own in got]


def test_what_is_stored_before_the_first_member_is_shared_too(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    fill(gateway, box, 7)
    fill(gateway, box, 2, ".critical")
    one = member(gateway, box)
    got = collect([one], 9)[0]
    assert [each.number for each in got] == [8, 9, 1, 2, 3, 4, 5, 6, 7]


def test_what_a_member_held_goes_to_another_when_it_is_gone_but_not_what_it_deleted(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    fill(gateway, box, 10)
    first = member(gateway, box)
    held = collect([first], 10)[0]
    for number in (1, 2, 3):
        assert first.ask(DELETE + f"{box}.{number}") == {"deleted": True}
    second = member(gateway, box)
    waiting(second)
    first.reset()
    got = collect([second], 7)[0]
    assert [each.number for each in got] == [4, 5, 6, 7, 8, 9, 10]
    assert {each.headers["mq9-attempt"] for each in got} == {"2"}
    assert len(held) == 10
    for each in got:
        second.say(b"PUB %b 0\r\n\r\n" % (DELETE + f"{box}.{each.number}").encode())
    second.settle()
    second.close()
    third = member(gateway, box)
    third.settle()


def test_the_last_member_leaves_and_the_group_comes_back(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    fill(gateway, box, 3)
    for attempt in (1, 2):
        line = member(gateway, box)
        got = collect([line], 3)[0]
        assert [each.number for each in got] == [1, 2, 3]
        assert got[0].headers.get("mq9-attempt", "1") == str(attempt)
        line.reset()


def test_groups_are_independent_and_a_plain_reader_gets_all(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    one, other, plain = member(gateway, box), member(gateway, box, group="others"), gateway.line(headers=True)
    plain.say(b"SUB %b 1\r\n" % subject(box).encode())
    fill(gateway, box, 5)
    for line in (one, other):
        assert len(collect([line], 5)[0]) == 5
    assert len(plain.messages(5)) == 5


def test_a_lease_of_a_member_that_answers_is_extended(gateways: MakeGateway) -> None:
    gateway = gateways(lease=timedelta(seconds=3))
    box = gateway.box()
    fill(gateway, box, 1)
    holder = gateway.line(headers=True)
    join(holder, box)
    assert holder.message().number == 1
    other = member(gateway, box)
    for _ in range(4):  # each answer to a PING keeps what it has; they come every third of a lease
        assert holder.line() == b"PING"
        holder.say(b"PONG\r\n")
    assert _odd(other) == []


def _odd(line: Line) -> list[bytes]:
    """What is no PING."""
    line.say(b"PING\r\n")
    found = []
    while (answer := line.line()) != b"PONG":
        assert answer, "the connection has ended"
        if answer != b"PING":
            found.append(answer)
    return found


def test_a_member_that_is_half_gone_keeps_nothing(gateways: MakeGateway) -> None:
    gateway = gateways(lease=timedelta(seconds=1))
    box = gateway.box()
    fill(gateway, box, 2)
    dead = gateway.line(headers=True)
    join(dead, box)
    assert [each.number for each in dead.messages(2)] == [1, 2]
    living = gateway.line(headers=True)  # the dead one answers no PING from here on
    join(living, box)
    got = living.messages(2)
    assert all(int(each.headers["mq9-attempt"]) > 1 for each in got)


def test_a_message_that_nobody_settles_becomes_a_dead_letter(gateways: MakeGateway) -> None:
    gateway = gateways(mail=MailRules(max_attempts=2))
    box = gateway.box()
    fill(gateway, box, 1)
    for _ in range(2):
        line = member(gateway, box)
        assert collect([line], 1)[0][0].number == 1
        line.reset()
    line = member(gateway, box)
    fill(gateway, box, 1)
    got = collect([line], 1)[0]
    assert [each.number for each in got] == [2]


def test_a_member_that_drains_still_deletes_what_it_has(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    fill(gateway, box, 3)
    line = member(gateway, box)
    assert len(collect([line], 3)[0]) == 3
    line.say(b"UNSUB 1\r\n")
    line.settle()
    other = member(gateway, box)
    waiting(other)
    for number in (1, 2, 3):
        assert line.ask(DELETE + f"{box}.{number}") == {"deleted": True}
    line.close()
    fill(gateway, box, 1)
    assert [each.number for each in collect([other], 1)[0]] == [4]


def test_a_member_with_an_end_is_never_given_more(gateways: MakeGateway) -> None:
    gateway = gateways()
    box = gateway.box()
    fill(gateway, box, 10)
    line = gateway.line(headers=True)
    line.say(b"SUB %b w 1\r\nUNSUB 1 2\r\n" % subject(box).encode())
    assert len(line.messages(2)) == 2
    other = member(gateway, box, group="w")
    assert sorted(each.number for each in collect([other], 8)[0]) == list(range(3, 11))
    line.settle()


def test_two_gateways_share_a_group(gateways: MakeGateway) -> None:
    one, two = gateways(), gateways()
    box = one.box()
    members = [member(one, box), member(two, box)]
    for line in members:
        waiting(line)
    fill(one, box, 40)
    got = collect(members, 40)
    assert sorted(each.number for own in got for each in own) == list(range(1, 41))
    members[0].reset()
    back = collect(members[1:], len(got[0]))[0]
    assert sorted(each.number for each in back) == sorted(each.number for each in got[0])
