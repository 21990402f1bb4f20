"""The gateway as a process: it is killed in the middle and nothing is lost; it ends in order; its port is taken."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oah.core.model.message import Priority
from oah.testing.fleet import GATEWAY, Fleet
from tests.support.gateway import Line, Message, subject
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

TOTAL = 1_000
SUFFIXES = (b"", b".urgent", b".critical")


def dial(fleet: Fleet) -> Line:
    """A client, once the gateway answers."""
    assert fleet.plan.gateway_port is not None
    address = ("127.0.0.1", fleet.plan.gateway_port)

    def connected() -> Line | None:
        try:
            return Line(address).connect(headers=True)
        except (ConnectionError, AssertionError):
            return None

    found = eventually(connected, within=60, every=0.1)
    assert found is not None
    return found


def test_killed_with_a_thousand_messages_and_a_group_at_work(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(workers=0, gateway=True, env={"OAH_MAIL__LEASE_SECONDS": "3"})
    line = dial(fleet)
    box = line.ask("$mq9.AI.MAILBOX.CREATE", {"ttl": 600})["mail_id"]
    line.say(
        b"".join(
            b"PUB %b%b 4\r\n%04d\r\n" % (subject(box).encode(), SUFFIXES[number % 3], number) for number in range(TOTAL)
        )
    )
    line.settle()
    members = [dial(fleet) for _ in range(3)]
    deleted: set[int] = set()
    for member in members:
        member.say(b"SUB %b workers 1\r\n" % subject(box).encode())
    for member in members:
        for message in member.messages(20):
            assert line.ask(f"$mq9.AI.MAILBOX.DELETE.{box}.{message.number}") == {"deleted": True}
            deleted.add(message.number)
    fleet.kill(GATEWAY)
    assert len(deleted) == 60
    for each in (line, *members):
        each.close()
    fleet.restart(GATEWAY)

    left = set(range(1, TOTAL + 1)) - deleted
    reader = dial(fleet)
    reader.say(b"SUB %b 1\r\n" % subject(box, ".>").encode())
    seen = reader.messages(len(left))
    assert {each.number for each in seen} == left
    _in_order(seen)
    reader.settle()

    members = [dial(fleet) for _ in range(3)]
    for member in members:
        member.say(b"SUB %b workers 1\r\nSUB _done 2\r\n" % subject(box).encode())
    got = [message for member in members for message in _until_quiet(member)]
    missing = left - {each.number for each in got}
    # What the killed gateway's members held comes when their leases are over.
    eventually(lambda: got.extend(m for member in members for m in _until_quiet(member)) or _all(got, left), within=30)
    assert not deleted & {each.number for each in got}
    assert sorted(each.number for each in got) == sorted(left), "a living member's message came twice"
    assert len(missing) < TOTAL


def _all(got: list[Message], left: set[int]) -> bool:
    return {each.number for each in got} >= left


def _until_quiet(member: Line) -> list[Message]:
    """What has come by now."""
    got = []
    member.say(b"PUB _done 0\r\n\r\n")
    while (message := member.message()).sid == "1":
        got.append(message)
    return got


def _in_order(seen: list[Message]) -> None:
    keys = [(-Priority[each.headers["mq9-priority"].upper()], each.number) for each in seen]
    assert all(before < after for before, after in itertools.pairwise(keys))


def test_it_ends_in_order_with_what_was_sent_stored(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(workers=0, gateway=True)
    line = dial(fleet)
    box = line.ask("$mq9.AI.MAILBOX.CREATE", {"ttl": 600})["mail_id"]
    line.say(b"".join(b"PUB %b 1\r\nx\r\n" % subject(box).encode() for _ in range(200)) + b"PING\r\n")
    assert line.line() == b"PONG"
    fleet.kill(GATEWAY, signal.SIGTERM)
    last = line.line()
    assert b'"ldm":true' in last
    assert line.at_end()
    fleet.restart(GATEWAY)
    line = dial(fleet)
    assert len(line.ask(f"$mq9.AI.MAILBOX.LIST.{box}")["messages"]) == 200
    line.close()


def test_a_port_that_is_taken_is_said_in_one_line(short_tmp: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = {name: value for name, value in os.environ.items() if not name.startswith("OAH_")}
        env |= {"OAH_REDIS_URL": "embedded://", "OAH_DATA_DIR": str(short_tmp / "d")}
        command = [sys.executable, "-c", "from oah.cli.main import gateway; gateway()"]
        command += ["--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 5
    assert "cannot listen on" in done.stderr
    assert "OAH_GATEWAY_PORT" in done.stderr
    assert done.stderr.count("\n") == 1
