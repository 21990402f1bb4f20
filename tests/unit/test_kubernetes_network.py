"""One deadline for a request, however many addresses its server has."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpcore2
import pytest

from oah.adapters.kubernetes.network import BoundedNetwork, Deadline
from tests.support.clock import StillClock

NAME = "api.example"


class Wires:
    """The network below: addresses that nobody answers at, and who takes how long."""

    def __init__(self, clock: StillClock, answers: dict[str, float | None]) -> None:
        self.clock = clock
        self.answers = answers
        self.tried: list[str] = []

    def connect_tcp(self, host: str, port: int, timeout: float, *_: Any) -> Any:
        self.tried.append(host)
        takes = self.answers[host]
        if takes is None or takes > timeout:
            self.clock.seconds += timeout
            raise httpcore2.ConnectTimeout
        self.clock.seconds += takes
        return SimpleNamespace(host=host)


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float | None]], tuple[Wires, Callable[[], Any]]]:
    def make(answers: dict[str, float | None]) -> tuple[Wires, Callable[[], Any]]:
        clock = StillClock()
        wires, deadline = Wires(clock, answers), Deadline(3, clock.monotonic)
        network = BoundedNetwork(deadline)
        monkeypatch.setattr(network, "_inner", wires)
        monkeypatch.setattr("oah.adapters.kubernetes.network.look_up", lambda *_: list(answers))

        def connect() -> Any:
            with deadline.begun():
                return network.connect_tcp(NAME, 443)

        return wires, connect

    return make


def test_an_address_at_which_nobody_answers_leaves_time_for_the_next(connecting: Any) -> None:
    """A machine of the control plane that is gone without a word, and is still a record of the name."""
    wires, connect = connecting({"10.0.0.1": None, "10.0.0.2": 0.5})
    begun = wires.clock.seconds
    connect()
    assert wires.tried == ["10.0.0.1", "10.0.0.2"] and wires.clock.seconds - begun <= 3


def test_all_addresses_together_take_no_longer_than_the_request_may(connecting: Any) -> None:
    wires, connect = connecting({f"10.0.0.{n}": None for n in range(1, 5)})
    begun = wires.clock.seconds
    with pytest.raises(httpcore2.ConnectTimeout):
        connect()
    assert wires.clock.seconds - begun == pytest.approx(3) and len(wires.tried) == 4


def test_the_last_address_has_all_that_is_left(connecting: Any) -> None:
    wires, connect = connecting({"10.0.0.1": 2.5})
    connect()
    assert wires.tried == ["10.0.0.1"]
