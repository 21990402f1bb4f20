"""Calls outside: to the address that was judged, within one deadline, with an answer for everything."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import timedelta
from typing import Any

import pytest

from oah.adapters.http.sender import HttpCoreSender
from oah.core.policy.addresses import Rules
from oah.ports.http import HttpAnswer, HttpCall, HttpFailed, HttpFault
from tests.support.receiver import NAME, Receiver, receiving, status

OPEN = HttpCoreSender(Rules(allow_private=True))
STRICT = HttpCoreSender(Rules())


def failed(answer: HttpAnswer | HttpFailed) -> HttpFault:
    assert isinstance(answer, HttpFailed), answer
    return answer.fault


def answered(answer: HttpAnswer | HttpFailed) -> HttpAnswer:
    assert isinstance(answer, HttpAnswer), answer
    return answer


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let every name lead to these addresses: one list a look-up, the last one for ever. The names that were asked."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr("oah.adapters.http.network.socket.getaddrinfo", getaddrinfo)
    return asked


def test_a_call_and_its_answer(receiver: Receiver) -> None:
    receiver.answers = [status(202, "körper" * 1_000, retry_after="7")]
    answer = answered(OPEN.send(HttpCall(f"{receiver.url}?a=1", b"{}", {"x-one": "1"}, excerpt=100)))
    assert (answer.status, answer.retry_after) == (202, timedelta(seconds=7))
    assert answer.text.startswith("körper")
    assert len(answer.text.encode()) <= 103
    [got] = receiver.got
    assert (got.path, got.body, got.headers["x-one"]) == ("/hook?a=1", b"{}", "1")
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_a_redirect_is_an_answer(receiver: Receiver) -> None:
    receiver.answers = [status(307, location=receiver.url)]
    assert answered(OPEN.send(HttpCall(receiver.url, b""))).status == 307
    assert len(receiver.got) == 1


@pytest.mark.parametrize("how", ["silence", "drip"])
def test_one_deadline_bounds_all_of_a_call(receiver: Receiver, how: str) -> None:
    receiver.answers = [getattr(receiver, how)]
    begun = time.monotonic()
    assert failed(OPEN.send(HttpCall(receiver.url, b"x", timeout=timedelta(seconds=0.5)))) is HttpFault.TIMEOUT
    assert time.monotonic() - begun < 20


def test_a_large_body_and_a_huge_answer_are_bounded(receiver: Receiver) -> None:
    receiver.answers = [status(200, "x" * 5_000_000)]
    answer = answered(OPEN.send(HttpCall(receiver.url, b"y" * 1_000_000)))
    assert len(answer.text) == 2_048
    assert len(receiver.got[0].body) == 1_000_000


def test_what_is_no_answer_says_why(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver.answers = [receiver.hang_up]
    assert failed(OPEN.send(HttpCall(receiver.url, b""))) is HttpFault.PROTOCOL
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert failed(OPEN.send(HttpCall(f"http://127.0.0.1:{nobody.getsockname()[1]}/", b""))) is HttpFault.CONNECT
    assert failed(OPEN.send(HttpCall("ftp://127.0.0.1/", b""))) is HttpFault.INVALID
    assert failed(OPEN.send(HttpCall(f"https://127.0.0.1:{receiver.port}/", b""))) is HttpFault.CONNECT

    def nothing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("oah.adapters.http.network.socket.getaddrinfo", nothing)
    assert failed(OPEN.send(HttpCall("http://nowhere.example/", b""))) is HttpFault.NAME


def test_an_inner_address_is_never_connected_to(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (receiver.url, f"http://[::ffff:127.0.0.1]:{receiver.port}/"):
        assert failed(STRICT.send(HttpCall(url, b""))) is HttpFault.REFUSED
    resolve(monkeypatch, ["127.0.0.1"])
    answer = STRICT.send(HttpCall(f"http://{NAME}:{receiver.port}/", b""))
    assert failed(answer) is HttpFault.REFUSED
    assert isinstance(answer, HttpFailed) and "loopback" in answer.message
    assert receiver.got == []


def test_a_name_that_leads_elsewhere_a_moment_later_gains_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: judged as a public address, then, had it been asked again, loopback."""
    asked = resolve(monkeypatch, ["203.0.114.1"], ["127.0.0.1"])
    tried: list[str] = []

    def create_connection(address: tuple[str, int], *_: Any, **__: Any) -> Any:
        tried.append(address[0])
        raise OSError("unreachable")

    monkeypatch.setattr("socket.create_connection", create_connection)
    assert failed(STRICT.send(HttpCall(f"http://{NAME}:{receiver.port}/", b""))) is HttpFault.CONNECT
    assert asked == [NAME], "one look-up"
    assert tried == ["203.0.114.1"], "and the address that was judged"


def test_of_several_addresses_only_the_allowed_ones_are_tried(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, ["169.254.169.254", "127.0.0.1"])
    assert answered(OPEN.send(HttpCall(f"http://{NAME}:{receiver.port}/", b""))).status == 204


def test_an_address_at_which_nobody_answers_leaves_time_for_the_next(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver's machine that is gone without a word, and is still a record of the name."""
    resolve(monkeypatch, ["203.0.114.1", "127.0.0.1"])
    connect, given = socket.create_connection, list[float]()

    def create_connection(address: tuple[str, int], timeout: float, **more: Any) -> Any:
        if address[0] == "127.0.0.1":
            return connect(address, timeout, **more)
        given.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", create_connection)
    call = HttpCall(f"http://{NAME}:{receiver.port}/", b"", timeout=timedelta(seconds=60))
    assert answered(OPEN.send(call)).status == 204
    assert len(given) == 1 and given[0] <= 30, "half of the time is the other's"


def test_tls_speaks_of_the_name_and_is_verified(
    tls_receiver: tuple[Receiver, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, trusting = tls_receiver
    resolve(monkeypatch, ["127.0.0.1"])
    sender = HttpCoreSender(Rules(allow_private=True), tls=trusting)
    assert answered(sender.send(HttpCall(f"https://{NAME}:{receiver.port}/", b""))).status == 204
    assert receiver.names == [NAME]
    assert receiver.got[0].headers["host"] == f"{NAME}:{receiver.port}"
    assert failed(sender.send(HttpCall(f"https://other.test:{receiver.port}/", b""))) is HttpFault.CONNECT
    assert failed(OPEN.send(HttpCall(f"https://{NAME}:{receiver.port}/", b""))) is HttpFault.CONNECT
    assert len(receiver.got) == 1


def test_many_at_once_take_as_long_as_the_slowest(receiver: Receiver) -> None:
    receiver.answers = [receiver.silence, status(204)]
    calls = [HttpCall(receiver.url, b"%d" % n, timeout=timedelta(seconds=1)) for n in range(16)]
    answers = OPEN.send_all(calls)
    assert sorted(type(each).__name__ for each in answers) == ["HttpAnswer"] * 15 + ["HttpFailed"]
    assert {got.body for got in receiver.got} == {call.body for call in calls}
    assert OPEN.send_all([]) == []


def test_proxies_of_the_environment_are_not_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert answered(OPEN.send(HttpCall(receiver.url, b""))).status == 204
        assert proxy.got == []
