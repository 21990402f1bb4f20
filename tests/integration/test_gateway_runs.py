"""Agents inside runs over NATS: what the key of a run opens, what it does not, and that it ends with the attempt."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

import pytest

from oah.core.model.ids import SessionId
from oah.core.model.run import RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.gateway import connection
from oah.ports.messages import MessageFilter
from oah.services import keys, run_keys
from oah.services.run_keys import run_key
from tests.support import eventually
from tests.support.gateway import Gateway, MakeGateway, subject
from tests.support.store_clerk import Clerk, fence_of

REVOKED = b"-ERR 'User Authentication Revoked'"


@pytest.fixture
def gateway(make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """One that lets nobody in without a key, and asks for keys again all the time."""
    monkeypatch.setattr("oah.gateway.keeper.ASK_AGAIN", 0.1)
    monkeypatch.setattr("oah.gateway.keeper.CONNECT_WITHIN", 60.0)
    return make_gateway(strangers=False, token="t")


@pytest.fixture
def clerk(gateway: Gateway) -> Clerk:
    clerk = Clerk(gateway.store, "")
    for name in ("ses_1", "ses_2"):
        clerk.session(name)
        clerk.submit(name, f"run_{name[-1]}")
    return clerk


def begun(clerk: Clerk, name: str = "ses_1", token: str | None = None) -> str:
    """The key of an attempt that begins."""
    return run_key(fence_of(clerk.start(name, token)))


def refused_sub(wanted: str) -> bytes:
    return b"-ERR 'Permissions Violation for Subscription to \"%b\"'" % wanted.encode()


def test_an_agent_makes_mailboxes_sends_reads_shares_and_deletes(gateway: Gateway, clerk: Clerk) -> None:
    agent = gateway.line(auth_token=begun(clerk), headers=True)
    box = agent.ask("$mq9.AI.MAILBOX.CREATE", {"ttl": 60})["mail_id"]
    assert agent.ask(subject(box), b"one") == {"msg_id": "1"}
    agent.say(b"SUB %b 1\r\n" % subject(box).encode())
    assert agent.message().payload == b"one"
    member = gateway.line(**{"user": "agent", "pass": begun(clerk, "ses_2")}, headers=True)
    member.say(b"SUB %b g 1\r\n" % subject(box).encode())
    assert member.message().number == 1
    assert member.ask(f"$mq9.AI.MAILBOX.DELETE.{box}.1") == {"deleted": True}
    [mailbox] = gateway.store.mailboxes(DEFAULT_WORKSPACE, public=False).items
    assert mailbox.address == box
    assert agent.ask("$mq9.AI.MAILBOX.LIST." + box)["messages"] == []


def test_to_another_session_it_sends_under_its_name_and_sees_nothing_there(gateway: Gateway, clerk: Clerk) -> None:
    agent = gateway.line(auth_token=begun(clerk))
    assert agent.ask(subject("ses_2"), b"hello") == {"msg_id": "1"}
    [sent] = gateway.store.agent_messages(MessageFilter(session_id=SessionId("ses_2"))).items
    assert (sent.sender.by, sent.sender.session_id, sent.sender.run_id) == ("run:run_1", "ses_1", "run_1")
    for asked in ("MAILBOX.LIST.ses_2", "MSG.QUERY.ses_2", "MSG.FETCH.ses_2", "MAILBOX.DELETE.ses_2.1"):
        assert agent.ask(f"$mq9.AI.{asked}")["code"] == 404, asked
    for wanted in (subject("ses_2"), subject("ses_2", ".*")):
        agent.say(b"SUB %b 7\r\n" % wanted.encode())
        assert agent.line() == refused_sub(wanted)
    assert agent.ask(subject("ses_1"), b"to myself") == {"msg_id": "1"}
    assert [each["msg_id"] for each in agent.ask("$mq9.AI.MAILBOX.LIST.ses_1")["messages"]] == ["1"], "its own"


def test_what_it_has_answered_into_another_session_goes_under_its_name(gateway: Gateway, clerk: Clerk) -> None:
    agent = gateway.line(auth_token=begun(clerk))
    agent.say(b"PUB $mq9.AI.MAILBOX.CREATE %b 2\r\n{}\r\n" % subject("ses_2").encode())
    agent.settle()
    sent = eventually(lambda: gateway.store.agent_messages(MessageFilter(session_id=SessionId("ses_2"))).items)
    assert [(each.sender.by, each.sender.session_id, each.sender.run_id) for each in sent] == [
        ("run:run_1", "ses_1", "run_1")
    ]


def test_one_that_was_let_go_while_its_key_was_looked_at_is_not_kept(gateway: Gateway, clerk: Clerk) -> None:
    """Its connection may take its time to close; whatever is noted of it then would be noted for ever."""
    hub = gateway.hub
    assert hub is not None
    asked, goes_on = threading.Event(), threading.Event()
    known = hub.access.of

    def slowly(options: Any) -> Any:
        asked.set()
        assert goes_on.wait(20)
        return known(options)

    hub.access.of = slowly  # type: ignore[method-assign]
    line = gateway.dial()
    line.info()
    line.say(b'CONNECT {"auth_token": "%b"}\r\nPING\r\n' % begun(clerk).encode())
    assert asked.wait(20)
    [client] = hub.connections
    assert client.asking

    def end() -> None:
        client._transport = cast(Any, Held(client._transport))
        client.end("refused", "Authentication Timeout")

    hub.loop.call_soon_threadsafe(end)
    assert line.line() == b"-ERR 'Authentication Timeout'"
    goes_on.set()
    eventually(lambda: not client._tasks, what="the key has been looked at")
    assert not hub.attention.keyed and client.identity is None
    cast(Any, client._transport).held.abort()


class Held:
    """A transport that closes late: something is still on its way."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)


def test_it_hears_whom_it_names_and_not_everybody(gateway: Gateway, clerk: Clerk) -> None:
    agent, other = gateway.line(auth_token=begun(clerk)), gateway.line(auth_token="t")
    for wanted in (">", "*", "_INBOX.>", "_INBOX.*", "*.secrets"):
        agent.say(b"SUB %b 7\r\n" % wanted.encode())
        assert agent.line() == refused_sub(wanted)
    agent.say(b"SUB _INBOX.mine.* 1\r\nSUB tools 2\r\nSUB team.builds.> 3\r\n")
    agent.settle()
    other.say(
        b"PUB tools 1\r\na\r\nPUB team.builds.x 1\r\nb\r\nPUB _INBOX.mine.1 1\r\nc\r\nPUB _INBOX.theirs.1 1\r\nd\r\n"
    )
    assert [each.payload for each in agent.messages(3)] == [b"a", b"b", b"c"]
    agent.settle()


def test_its_connections_end_with_the_attempt_and_no_others(gateway: Gateway, clerk: Clerk) -> None:
    started = clerk.start("ses_1", "first")
    first = run_key(fence_of(started))
    agent, second = gateway.line(auth_token=first), gateway.line(auth_token=first)
    stays, plain = gateway.line(auth_token=begun(clerk, "ses_2")), gateway.line(auth_token="t")
    clerk.store.release([fence_of(started)])
    for line in (agent, second):
        assert line.line() == REVOKED
        assert line.at_end()
    late = gateway.dial()
    late.info()
    late.say(b'CONNECT {"auth_token": "%b"}\r\nPING\r\n' % first.encode())
    assert late.line() == b"-ERR 'Authorization Violation'"
    again = clerk.start("ses_1", "second")
    anew = gateway.line(auth_token=run_key(fence_of(again)))
    clerk.settle(again, RunStatus.FAILED)
    assert anew.line() == REVOKED
    for line in (stays, plain):
        line.settle()


@pytest.mark.parametrize("wrong", ["mac", "attempt", "run", "short", "long", "letters"])
def test_a_key_that_is_none_opens_nothing(gateway: Gateway, clerk: Clerk, wrong: str) -> None:
    good = begun(clerk)
    bad = {
        "mac": good[:-1] + ("0" if good[-1] != "0" else "1"),
        "attempt": good.replace(".1.", ".2."),
        "run": good.replace("run_1", "run_2"),
        "short": run_keys.PREFIX,
        "long": good + "0" * 300,
        "letters": run_keys.PREFIX + "é.1.x",
    }[wrong]
    line = gateway.dial()
    line.info()
    line.say(b"CONNECT " + json.dumps({"auth_token": bad}).encode() + b"\r\nPING\r\n")
    assert line.line() == b"-ERR 'Authorization Violation'"
    assert line.at_end()


def test_a_run_has_so_many_connections(gateway: Gateway, clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_OF_RUN", 2)
    key, other = begun(clerk), begun(clerk, "ses_2")
    lines = [gateway.line(auth_token=key) for _ in range(2)]
    more = gateway.dial()
    more.info()
    more.say(b'CONNECT {"auth_token": "%b"}\r\n' % key.encode())
    assert more.line() == b"-ERR 'maximum connections exceeded'"
    gateway.line(auth_token=other)
    for line in lines:
        line.settle()


def test_keys_are_looked_at_together(gateway: Gateway, clerk: Clerk, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients have shown how many keys: two statements."""
    secrets = [
        keys.create(gateway.store, gateway.ids, name=f"k{n}", workspace_id=DEFAULT_WORKSPACE, scopes={Scope.RUN}).secret  # type: ignore[arg-type]
        for n in range(3)
    ]
    runs = [begun(clerk), begun(clerk, "ses_2")]
    asked: list[Any] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(gateway.store, name)

    assert gateway.hub is not None
    access = gateway.hub.access
    access._store = Counted()  # type: ignore[assignment]
    assert access.revoked({*secrets, *runs, "oahk_none", "oahr.none.1.x"}) == {"oahk_none", "oahr.none.1.x"}
    assert sorted(asked) == ["active_fences", "keys_by_digest"]
    monkeypatch.setattr("oah.gateway.access.TOGETHER", 2)
    assert access.revoked({*secrets, *runs, "oahk_none"}) == {"oahk_none"}
    assert access.revoked([]) == set()
