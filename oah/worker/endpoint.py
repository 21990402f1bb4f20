"""The private endpoint of a worker: its health and figures for everybody, its terminals for whoever has its token.

The token is made anew with every worker and goes, by its report, to the registry and to nobody else: API processes read
it there. ``GET /sessions/{id}/screen``; WebSockets ``/sessions/{id}/terminal`` and ``/sessions/{id}/keyboard``.
"""

from __future__ import annotations

import hmac
import json
import threading
from typing import Any

from oah.core.dialogue.frames import Note, encoded
from oah.core.model.ids import SessionId
from oah.errors import Unavailable
from oah.ports.clock import Clock
from oah.ports.telemetry import Telemetry
from oah.ports.viewing import LiveTerminal, LiveTerminals
from oah.ports.wire import Asked, OpenServer, Page, Wire, WireServer
from oah.runtime.component import ThreadComponent
from oah.runtime.probe import Pages
from oah.worker.showing import Keyboard, Show
from oah.worker.writers import Writers

MOST_VIEWERS = 200
"""Conversations at once: an API process needs one a terminal and one a writer."""
_SESSIONS = "sessions"


class Endpoint(ThreadComponent):
    """``address`` is known once it has started."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        token: str,
        pages: Pages,
        terminals: LiveTerminals,
        open_server: OpenServer,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        super().__init__("endpoint")
        self._host, self._port = host, port
        self._token = token.encode()
        self._pages = pages
        self._terminals = terminals
        self._open = open_server
        self._clock = clock
        self._telemetry = telemetry
        self._writers = Writers()
        self._server: WireServer | None = None
        self._lock = threading.Lock()
        self._viewers = 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it listens on."""
        return None if self._server is None else self._server.address

    def run(self) -> None:
        """Serve until `stop`. Raises Unavailable when it cannot listen there at all."""
        self._server = self._bound()
        self.serving()
        if self.stopping.is_set():
            self._server.shut()
        self._server.serve()

    def _bound(self) -> WireServer:
        """At the port wanted, or any free one when it is taken: further workers of a host are found by the registry."""
        try:
            return self._open(host=self._host, port=self._port, page=self._page, talk=self._talk)
        except Unavailable:
            if self._port == 0:
                raise
        return self._open(host=self._host, port=0, page=self._page, talk=self._talk)

    def interrupt(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.shut()

    # -- pages ------------------------------------------------------------------------------------------------------

    def _page(self, asked: Asked) -> Page | None:
        """None: a conversation begins."""
        parts = asked.path.strip("/").split("/")
        if parts[0] != _SESSIONS or len(parts) != 3:
            return Page(*self._pages.answer(asked.path))
        if not hmac.compare_digest(asked.token.encode("utf-8", "replace"), self._token):
            return _problem(401, "unauthorized", "the token of this worker is needed")
        session_id, what = SessionId(parts[1]), parts[2]
        if what == "screen" and not asked.upgrades:
            live = self._terminals.find(session_id)
            return _missing() if live is None else Page(200, _json(_screen(live)), "application/json")
        if what not in ("screen", "terminal", "keyboard") or not asked.upgrades:
            return _problem(404, "not_found", f"no page {asked.path}")
        return self._refusal(session_id, what, asked)

    def _refusal(self, session_id: SessionId, what: str, asked: Asked) -> Page | None:
        if self._viewers >= MOST_VIEWERS:
            return _problem(503, "too_many_viewers", "too many viewers at this worker")
        if what != "keyboard":
            return _missing() if self._terminals.find(session_id) is None else None
        by = self._writers.who(session_id)
        if by is not None and "takeover" not in asked.query:
            return _problem(409, "writer_present", f"{by} is typing there")
        return None

    # -- conversations ----------------------------------------------------------------------------------------------

    def _talk(self, wire: Wire) -> None:
        _, session, what = wire.asked.path.strip("/").split("/")
        session_id = SessionId(session)
        self._count(1)
        try:
            if what == "keyboard":
                self._type(wire, session_id)
            else:
                self._show(wire, session_id, once=what == "screen")
            wire.close()
        finally:
            self._count(-1)

    def _show(self, wire: Wire, session_id: SessionId, *, once: bool) -> None:
        live = self._terminals.find(session_id)
        if live is None:
            wire.send(encoded(Note("end", {"reason": "agent_ended"})))
        elif once:
            wire.send(encoded(Note("screen", _screen(live))))
        else:
            Show(wire, live, writers=self._writers, clock=self._clock, telemetry=self._telemetry).run()

    def _type(self, wire: Wire, session_id: SessionId) -> None:
        by = wire.asked.query.get("by", "")[:200]
        writer = self._writers.take(session_id, by, takeover="takeover" in wire.asked.query)
        if writer is None:
            note = {"code": "writer_present", "message": "somebody else is typing there"}
            wire.send(encoded(Note("refused", note)))
            return
        self._gauge()
        try:
            Keyboard(wire, session_id, writer, self._terminals).run()
        finally:
            live = self._terminals.find(session_id)
            if self._writers.release(session_id, writer) and live is not None:
                live.let_go()
            self._gauge()

    def _count(self, change: int) -> None:
        with self._lock:
            self._viewers += change
        self._gauge()

    def _gauge(self) -> None:
        writers = len(self._writers)
        self._telemetry.gauge("oah_viewers", writers, kind="write")
        self._telemetry.gauge("oah_viewers", max(self._viewers - writers, 0), kind="read")


def _screen(live: LiveTerminal) -> dict[str, Any]:
    """A screen as a document."""
    state, screen = live.state(), live.screen()
    return {
        "lines": list(screen.lines),
        "rows": state.rows,
        "cols": state.columns,
        "cursor": {"row": screen.row, "column": screen.column},
        "alternate": screen.alternate,
        "damaged": screen.damaged,
        "run_id": state.run_id,
        "attempt": state.attempt,
        "alive": not state.ended,
    }


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _problem(status: int, code: str, title: str) -> Page:
    return Page(status, _json({"code": code, "title": title}), "application/json")


def _missing() -> Page:
    return _problem(404, "no_terminal", "the session has no agent with a terminal here")
