"""The private endpoint of a worker: of a process of its own, and of one inside an API."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oah.adapters.pty.live import Lives
from oah.adapters.websocket.server import open_server
from oah.bootstrap.kit import Kit
from oah.runtime.probe import Pages
from oah.worker.endpoint import Endpoint

_EVERYWHERE = ("0.0.0.0", "::", "")


class PrivateEndpoint:
    """The component, the terminals that it shows, and the token that it wants to hear."""

    def __init__(
        self,
        kit: Kit,
        *,
        host: str,
        port: int,
        reasons: Callable[[], Sequence[str]],
        stuck: Callable[[], Sequence[str]] = list,
        pages: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self.lives = Lives()
        self.token = secrets.token_urlsafe(32)
        self._advertise = kit.settings.worker.advertise
        self.component = Endpoint(
            host=host,
            port=port,
            token=self.token,
            pages=Pages(reasons=reasons, metrics=kit.telemetry.exposition, pages=pages, stuck=stuck),
            terminals=self.lives,
            open_server=open_server,
            clock=kit.clock,
            telemetry=kit.telemetry,
        )

    def address(self) -> str | None:
        """``host:port`` for the registry, once it listens."""
        bound = self.component.address
        if bound is None:
            return None
        host = self._advertise or (_own_address() if bound[0] in _EVERYWHERE else bound[0])
        return f"[{host}]:{bound[1]}" if ":" in host else f"{host}:{bound[1]}"


def _own_address() -> str:
    """Of this machine or pod, as its own name resolves."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name
