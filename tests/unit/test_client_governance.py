"""When a client believes that workers have drained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oah.client import governance
from oah.client.governance import GONE_SECONDS, GovernanceCalls


class Looks(GovernanceCalls):
    """A registry that says something else at each look; the last stays. A look takes a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: list[dict[str, Any]]) -> None:
        self.now, self._looks = 0.0, list(looks)
        monkeypatch.setattr(governance, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += 1

    def workers(self) -> list[dict[str, Any]]:
        return self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]


def worker(busy: int = 0, parked: int = 0) -> dict[str, Any]:
    return {"id": "w.1", "state": "busy", "draining": True, "busy": busy, "parked": parked}


@pytest.mark.parametrize("at_work", [{"busy": 1}, {"parked": 1}])
def test_a_registry_that_was_emptied_is_no_end_of_work(
    monkeypatch: pytest.MonkeyPatch, at_work: dict[str, int]
) -> None:
    """A broker that was restarted: whoever believes it takes the machine away from under running agents."""
    client = Looks(monkeypatch, [worker(**at_work)], [], [], [], [worker(**at_work)], [worker()])
    client.wait_drained(["w.1"])
    assert client.now == 5


@pytest.mark.parametrize(("last", "after"), [(worker(), 0), (worker(busy=1), GONE_SECONDS)])
def test_one_that_reports_no_more_is_gone(monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], after: float) -> None:
    client = Looks(monkeypatch, [last], [])
    client.wait_drained(["w.1"], timeout=60)
    assert client.now == after


def test_it_says_who_drains_still(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError, match=r"1 worker\(s\) still drain: w\.1"):
        Looks(monkeypatch, [worker(busy=1)]).wait_drained(["w.1"], timeout=3)
