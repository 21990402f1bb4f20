"""Watch a live terminal, and type into it.

with client.attach(run_id=run, write=True) as terminal:
    for frame in terminal.frames():
        ...                       # oah.core.dialogue.frames: Snapshot, Output, Note
        terminal.type(b"y\\r")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from oah.client.calls import Calls, given, part
from oah.client.transport import Json, Transport, error_of
from oah.core.dialogue.frames import LONGEST_FRAME, SUBPROTOCOL, Frame, Note, decoded, encoded
from oah.errors import InvalidRequest, Unavailable

OPEN_SECONDS = 10.0
ABNORMAL = 1006


class TerminalCalls(Calls):
    """The client's part about live terminals."""

    def screen(self, *, run_id: str | None = None, session_id: str | None = None) -> Json:
        """What the terminal shows now, as text. Raises NotFound ``no_terminal``, Conflict ``run_not_active``."""
        return self._one("GET", f"/v1/{_subject(run_id, session_id)}/screen")

    def attach(
        self,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
        write: bool = False,
        takeover: bool = False,
    ) -> Terminal:
        """The terminal of a run, until that ends, or of a session. ``write``: type too, unless somebody else does
        (``takeover``: even then). Raises what ``screen`` does."""
        return Terminal(self._api, _subject(run_id, session_id), write=write, takeover=takeover)


def _subject(run_id: str | None, session_id: str | None) -> str:
    if (run_id is None) == (session_id is None):
        raise InvalidRequest("name a run or a session")
    return f"runs/{part(run_id)}" if run_id is not None else f"sessions/{part(session_id or '')}"


class Terminal:
    """One attached viewer. ``code`` and ``reason`` say how it ended, once it has."""

    def __init__(self, api: Transport, subject: str, *, write: bool, takeover: bool) -> None:
        self.code: int | None = None
        self.reason = ""
        self._sending = threading.Lock()
        scheme, rest = api.url.split("://", 1)
        asked = httpx.QueryParams(given(write="1" if write else None, takeover="1" if takeover else None))
        url = f"{'wss' if scheme == 'https' else 'ws'}://{rest.rstrip('/')}/v1/{subject}/terminal"
        self._stack = ExitStack()
        try:
            self._connection: ClientConnection = self._stack.enter_context(
                connect(
                    f"{url}?{asked}" if asked else url,
                    additional_headers={} if api.key is None else {"Authorization": f"Bearer {api.key}"},
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    compression=None,
                    open_timeout=OPEN_SECONDS,
                    close_timeout=2,
                    max_size=LONGEST_FRAME,
                )
            )
        except InvalidStatus as error:
            said = error.response
            answer = httpx.Response(
                said.status_code, headers=dict(said.headers.raw_items()), content=bytes(said.body or b"")
            )
            raise error_of(answer) from error
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise api.unreachable(error) from error

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Detach. Repeatable."""
        self._stack.close()

    def receive(self, timeout: float | None = None) -> Frame | None:
        """The next frame; None when none came in ``timeout`` seconds, or after the end (``code`` is set then)."""
        while self.code is None:
            try:
                frame = decoded(self._connection.recv(timeout=timeout))
            except TimeoutError:
                return None
            except (ConnectionClosed, OSError) as error:
                closed = error.rcvd if isinstance(error, ConnectionClosed) else None
                self.code, self.reason = (closed.code, closed.reason) if closed else (ABNORMAL, "the connection broke")
                return None
            if frame is not None:
                return frame
        return None

    def frames(self) -> Iterator[Frame]:
        """Everything, until the end."""
        while (frame := self.receive()) is not None:
            yield frame

    def type(self, keys: bytes) -> None:
        """Type. What cannot be typed is answered by a note ``refused``. Raises Unavailable."""
        self._send(keys)

    def resize(self, *, rows: int, columns: int) -> None:
        """Change the terminal's size; for the writer. Raises Unavailable."""
        self._send(encoded(Note("resize", {"rows": rows, "cols": columns})))

    def ask(self) -> None:
        """Have a snapshot sent. Raises Unavailable."""
        self._send(encoded(Note("snapshot", {})))

    def _send(self, message: bytes | str) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except (ConnectionClosed, OSError) as error:
            raise Unavailable("the terminal is detached", code="detached") from error
