"""Where a worker's private endpoint listens."""

from __future__ import annotations

import socket
import threading

import pytest

from oah.adapters.pty.live import Lives
from oah.adapters.system.clock import SystemClock
from oah.adapters.websocket.server import open_server
from oah.errors import Unavailable
from oah.ports.telemetry import NullTelemetry
from oah.runtime.probe import Pages
from oah.worker.endpoint import Endpoint
from tests.support.waiting import eventually


def _endpoint(host: str, port: int) -> Endpoint:
    return Endpoint(
        host=host,
        port=port,
        token="t",
        pages=Pages(reasons=list, metrics=lambda: (b"", "text/plain")),
        terminals=Lives(),
        open_server=open_server,
        clock=SystemClock(),
        telemetry=NullTelemetry(),
    )


def test_workers_that_start_at_once_never_fight_for_a_port() -> None:
    """All want the same one; nobody looks first and binds later, which two could do at once."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        wanted = probe.getsockname()[1]
    endpoints = [_endpoint("127.0.0.1", wanted) for _ in range(6)]
    threads = [threading.Thread(target=endpoint.run) for endpoint in endpoints]
    for thread in threads:
        thread.start()
    eventually(lambda: all(endpoint.address for endpoint in endpoints), within=10, what="all listen")
    ports = [endpoint.address[1] for endpoint in endpoints if endpoint.address]
    assert wanted in ports
    assert len(set(ports)) == 6
    for endpoint, thread in zip(endpoints, threads, strict=True):
        endpoint.interrupt()
        thread.join(60)
        assert not thread.is_alive()


def test_an_address_that_is_not_ours_is_a_clear_error() -> None:
    with pytest.raises(Unavailable) as error:
        _endpoint("192.0.2.1", 0).run()
    assert error.value.code == "address_taken"
