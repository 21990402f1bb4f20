"""The small endpoint of processes without an API."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta

import pytest

from oah.errors import Broken, Unavailable
from oah.runtime.probe import Pages, Probe


@pytest.fixture
def reasons() -> list[str]:
    return []


def _page() -> dict[str, object]:
    return {"items": [timedelta(seconds=1)]}


def _away() -> object:
    raise Unavailable("no database")


@pytest.fixture
def probe(reasons: list[str]) -> Iterator[Probe]:
    component = Probe(
        host="127.0.0.1",
        port=0,
        reasons=lambda: reasons,
        metrics=lambda: (b"oah_up 1\n", "text/plain; version=0.0.4"),
        pages={"/decisions": _page, "/away": _away},
    )
    component.start()
    assert component.started.wait(60)
    yield component
    component.stop(timedelta(0))
    assert component.join(timedelta(seconds=5))


def _get(probe: Probe, path: str, method: str = "GET") -> tuple[int, bytes, str]:
    assert probe.address is not None
    host, port = probe.address
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers["Content-Type"]


def test_alive_and_ready(probe: Probe, reasons: list[str]) -> None:
    assert _get(probe, "/healthz")[0] == 200
    assert _get(probe, "/readyz")[0] == 200
    reasons.append("database: away")
    status, body, _ = _get(probe, "/readyz")
    assert status == 503
    assert json.loads(body)["reasons"] == ["database: away"]
    assert _get(probe, "/healthz")[0] == 200, "alive does not mean ready"


def test_figures_as_they_are(probe: Probe) -> None:
    assert _get(probe, "/metrics") == (200, b"oah_up 1\n", "text/plain; version=0.0.4")
    assert _get(probe, "/metrics?format=text")[0] == 200


def test_pages(probe: Probe) -> None:
    status, body, content_type = _get(probe, "/decisions")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"items": ["0:00:01"]}
    assert _get(probe, "/away")[0] == 503
    assert _get(probe, "/else")[0] == 404
    assert _get(probe, "/healthz", "HEAD")[:2] == (200, b"")
    assert _get(probe, "/healthz", "POST")[0] == 501


def test_an_address_that_is_taken_ends_it_with_a_reason(probe: Probe) -> None:
    assert probe.address is not None
    second = Probe(host="127.0.0.1", port=probe.address[1], reasons=list, metrics=lambda: (b"", "text/plain"))
    second.start()
    assert second.started.wait(60)
    assert second.join(timedelta(seconds=5))
    assert isinstance(second.failure, Unavailable)
    assert second.failure.code == "address_taken"


def test_it_starts_once(probe: Probe) -> None:
    with pytest.raises(Broken):
        probe.start()


def test_a_process_that_is_stuck_is_not_alive() -> None:
    stuck: list[str] = []
    pages = Pages(reasons=list, metrics=lambda: (b"", "text/plain"), stuck=lambda: stuck)
    assert pages.answer("/healthz")[0] == 200
    stuck.append("the claimer loop has not moved for 61 s")
    status, body, _ = pages.answer("/healthz")
    assert (status, json.loads(body)) == (503, {"status": "stuck", "reasons": stuck})
    assert pages.answer("/readyz")[0] == 200, "a probe each"
