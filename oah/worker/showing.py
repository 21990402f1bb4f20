"""Shows a live terminal over a wire, and takes a writer's keys. Each conversation is its own thread's business.

A viewer has one number, the offset up to which it was sent everything. When what comes next is no longer kept it is
told how much it has missed and is given a snapshot: at most five a second, however much the program writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from oah.core.dialogue.frames import LONGEST_INPUT, PIECE, Frame, Note, Output, decoded, encoded, size_of
from oah.core.model.ids import SessionId
from oah.errors import AgentError
from oah.ports.clock import Clock
from oah.ports.telemetry import Telemetry
from oah.ports.viewing import LiveTerminal, LiveTerminals
from oah.ports.wire import Wire
from oah.worker.writers import Writer, Writers

LOOK = timedelta(seconds=0.25)
"""How often a quiet terminal's viewer is asked whether it wants something."""
NOW = timedelta(0)
SNAPSHOT_PAUSE = 0.2
"""Seconds between two snapshots for one viewer."""
TYPING = timedelta(seconds=30)
"""How long a person's keys wait for a text that is being given to the program."""


class Show:
    """One viewer of one terminal. ``run`` until the agent is gone (a note says so), or the viewer is (Hangup)."""

    def __init__(self, wire: Wire, live: LiveTerminal, *, writers: Writers, clock: Clock, telemetry: Telemetry) -> None:
        self._wire = wire
        self._live = live
        self._writers = writers
        self._clock = clock
        self._telemetry = telemetry
        self._at: int | None = None
        self._known = self._typed_by = 0
        self._painted_at = float("-inf")
        self._told: dict[str, Note] = {}

    def run(self) -> None:
        """Raises Hangup."""
        while True:
            state = self._live.state()
            self._tell(state.version)
            if self._wants_snapshot():
                self._at = None
            data = None if self._at is None else self._live.read(self._at, PIECE)
            if data is None:
                self._paint()
            elif data:
                assert self._at is not None
                self._send(Output(self._at, data))
                self._at += len(data)
            elif state.ended:
                self._send(Note("end", {"reason": "agent_ended"}))
                return
            else:
                assert self._at is not None
                self._live.wait(self._at, state.version, LOOK)

    def _paint(self) -> None:
        left = self._painted_at + SNAPSHOT_PAUSE - self._clock.monotonic()
        if left > 0:
            threading.Event().wait(left)
        snapshot = self._live.snapshot()
        if self._at is not None and snapshot.offset > self._at:
            missed = snapshot.offset - self._at
            self._telemetry.count("oah_terminal_skipped_bytes_total", missed)
            self._send(Note("skipped", {"bytes": missed}))
        self._send(snapshot)
        self._at, self._painted_at = snapshot.offset, self._clock.monotonic()

    def _wants_snapshot(self) -> bool:
        said = self._wire.receive(NOW)
        frame = decoded(said) if isinstance(said, str) else None
        return isinstance(frame, Note) and frame.type == "snapshot"

    def _tell(self, version: int) -> None:
        """What has changed of size, run and writer since it was told."""
        writers = self._writers.version
        if (self._known, self._typed_by) == (version, writers):
            return
        self._known, self._typed_by = version, writers
        state = self._live.state()
        bound: dict[str, Any] = {"run_id": state.run_id, "attempt": state.attempt, "offset": state.since}
        for kind, data in (
            ("size", {"rows": state.rows, "cols": state.columns}),
            ("bound", bound),
            ("writer", {"by": self._writers.who(self._live.session_id)}),
        ):
            note = Note(kind, data)
            if self._told.get(kind) != note:
                self._told[kind] = note
                self._send(note)

    def _send(self, frame: Frame) -> None:
        self._wire.send(encoded(frame))


class Keyboard:
    """A writer's keys, for as long as it has the lease. Follows the session from agent to agent."""

    def __init__(self, wire: Wire, session_id: SessionId, writer: Writer, terminals: LiveTerminals) -> None:
        self._wire = wire
        self._session_id = session_id
        self._writer = writer
        self._terminals = terminals

    def run(self) -> None:
        """Until somebody takes over (a note says who), or the writer is gone (Hangup)."""
        self._note("granted", by=self._writer.by, before=self._writer.before)
        while not self._writer.lost.is_set():
            said = self._wire.receive(LOOK)
            if isinstance(said, bytes) and not self._writer.lost.is_set():
                self._type(said[:LONGEST_INPUT])
            elif isinstance(said, str):
                self._resize(said)
        self._note("taken_over", by=self._writer.taken_by[0])

    def _type(self, keys: bytes) -> None:
        self._on_terminal(lambda live: live.type(keys, TYPING))

    def _resize(self, said: str) -> None:
        frame = decoded(said)
        if not isinstance(frame, Note) or frame.type != "resize":
            return
        size = size_of(frame.data)
        if size is None:
            self._note("refused", code="invalid_size", message="a terminal has 2 to 500 rows and 10 to 1000 columns")
            return
        self._on_terminal(lambda live: live.resize(rows=size[0], columns=size[1]))

    def _on_terminal(self, act: Callable[[LiveTerminal], None]) -> None:
        live = self._terminals.find(self._session_id)
        if live is None:
            self._note("refused", code="no_terminal", message="the session has no agent at the moment")
            return
        try:
            act(live)
        except AgentError as error:
            self._note("refused", code=error.code, message=error.message)

    def _note(self, kind: str, **data: str | None) -> None:
        self._wire.send(encoded(Note(kind, data)))
