"""``oah run attach``, ``oah session attach``: a live terminal in this one.

What the program sends is cleaned: modes that would change this terminal's mouse, focus and paste are left out. A window
that is smaller than the program's screen shows a part of it, without colours; one that writes gives its own size to the
program. Ctrl-] detaches.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import Connection, pass_connection
from oah.cli.failures import Exit, complain
from oah.cli.output import cell, emit_json, write_text
from oah.core.dialogue.escapes import Cleaner, ModeSet, other_screen
from oah.core.dialogue.frames import Frame, Note, Output, Snapshot
from oah.errors import OahError, Unavailable

if TYPE_CHECKING:
    from oah.client import Client
    from oah.client.terminal import Terminal

DETACH = b"\x1d"
"""Ctrl-]."""
_INTERRUPT = b"\x03"
RECONNECT_SECONDS = 15.0
_REDRAW = 0.25
_NO_SIZE = 24, 80
"""Rows and columns of a window that does not say how large it is."""
_ENTER = "\x1b[?1049h\x1b[2J\x1b[H"
_LEAVE = "\x1b[?6l\x1b[4l\x1b[r\x1b[m\x1b[?7h\x1b[?25h\x1b[?1049l"
_RESTARTS, _NO_TERMINAL, _WRITER_PRESENT = (1001, 1006, 1012), 4404, 4409

_write = click.option("--write", is_flag=True, help="Type into it; refused while somebody else does.")
_takeover = click.option("--takeover", is_flag=True, help="With --write: even if somebody else types; both are told.")
_once = click.option("--once", is_flag=True, help="Print the screen as it is now and leave.")
_json = click.option("--json", "as_json", is_flag=True, help="With --once: the screen as a JSON document.")


@click.command("attach")
@click.argument("run_id", metavar="RUN")
@_write
@_takeover
@_once
@_json
@pass_connection
@click.pass_context
def attach_run(
    ctx: click.Context,
    connection: Connection,
    /,
    run_id: str,
    *,
    write: bool,
    takeover: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Watch the terminal of a run until it ends. Ctrl-] detaches; the run goes on."""
    ctx.exit(_attach(connection.client, {"run_id": run_id}, write=write, takeover=takeover, once=once, as_json=as_json))


@click.command("attach")
@click.argument("session_id", metavar="SESSION")
@_write
@_takeover
@_once
@_json
@pass_connection
@click.pass_context
def attach_session(
    ctx: click.Context,
    connection: Connection,
    /,
    session_id: str,
    *,
    write: bool,
    takeover: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Watch the terminal of a session, from run to run. Ctrl-] detaches."""
    what = {"session_id": session_id}
    ctx.exit(_attach(connection.client, what, write=write, takeover=takeover, once=once, as_json=as_json))


def _attach(client: Client, what: dict[str, str], *, write: bool, takeover: bool, once: bool, as_json: bool) -> Exit:
    if takeover and not write:
        raise click.UsageError("--takeover is for those who --write")
    if as_json or once or not sys.stdout.isatty():
        if write:
            raise click.UsageError("only a terminal can write")
        _print_screen(client.screen(**what), as_json=as_json)
        return Exit.DONE
    viewer = Viewer(client, what, write=write, takeover=takeover)
    with _raw():
        code, reason = viewer.run()
    return _verdict(code, reason, viewer.status)


def _print_screen(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(shown)
    else:
        write_text("\n".join(shown["lines"]).rstrip() + "\n")


def _verdict(code: int | None, reason: str, status: str | None) -> Exit:
    if code is None:
        click.echo("detached", err=True)
        return Exit.DONE
    if code == 1000 and status in (None, "completed"):
        click.echo(reason or "ended", err=True)
        return Exit.DONE
    complain(reason or f"closed ({code})")
    known = {1000: Exit.FAILED, _NO_TERMINAL: Exit.NOT_FOUND, _WRITER_PRESENT: Exit.REFUSED}
    return known.get(code, Exit.UNAVAILABLE)


@contextmanager
def _raw() -> Iterator[None]:
    """Keys come at once and unseen, the screen is our own; both are given back whatever happens."""
    stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if stdin is None else termios.tcgetattr(stdin)
    ended = signal.signal(signal.SIGTERM, _interrupted)
    try:
        if stdin is not None:
            tty.setraw(stdin)
        write_text(_ENTER)
        yield
    finally:
        signal.signal(signal.SIGTERM, ended)
        write_text(_LEAVE)
        if stdin is not None and before is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _window_size() -> tuple[int, int]:
    """Rows and columns of the window itself: LINES and COLUMNS of the environment stay behind when it changes."""
    try:
        found = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return _NO_SIZE
    return (found.lines, found.columns) if found.lines > 0 and found.columns > 0 else _NO_SIZE


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class Viewer:
    """``run`` until it is detached (None) or ended (a close code)."""

    def __init__(self, client: Client, what: dict[str, str], *, write: bool, takeover: bool) -> None:
        self._client = client
        self._what = what
        self._write, self._takeover = write, takeover
        self.status: str | None = None
        """Of the run, when it ended meanwhile."""
        self._detached = threading.Event()
        self._granted = False
        self._terminal: Terminal | None = None
        self._cleaner = Cleaner()
        self._at = 0
        self._size = (0, 0)
        self._window = (0, 0)
        self._notice = "Ctrl-] detaches"
        self._drawn_at = 0.0
        self._dirty = False

    def run(self) -> tuple[int | None, str]:
        """Reconnects while an API process restarts."""
        if sys.stdin.isatty():
            threading.Thread(target=self._keys, name="keys", daemon=True).start()
        lost_at: float | None = None
        while True:
            try:
                with self._client.attach(write=self._write, takeover=self._takeover, **self._what) as terminal:
                    lost_at = None
                    self._terminal, self._window, self._granted = terminal, (0, 0), False
                    code, reason = self._follow(terminal)
            except Unavailable as error:
                code, reason = _RESTARTS[0], error.message
            if code not in _RESTARTS:
                return code, reason
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > RECONNECT_SECONDS:
                return code, reason
            self._show_notice(f"{reason or 'the connection is lost'}; connecting again")
            if self._detached.wait(0.5):
                return None, ""

    def _follow(self, terminal: Terminal) -> tuple[int | None, str]:
        while not self._detached.is_set():
            self._measure(terminal)
            frame = terminal.receive(timeout=0.1)
            if frame is not None:
                self._take(terminal, frame)
            elif terminal.code is not None:
                return terminal.code, terminal.reason
            if self._dirty and time.monotonic() - self._drawn_at >= _REDRAW:
                self._draw_part()
        return None, ""

    def _keys(self) -> None:
        """Read keys in a thread of its own; without ``--write`` they only detach."""
        while not self._detached.is_set():
            keys = os.read(sys.stdin.fileno(), 4096)
            before, found, _ = keys.partition(DETACH)
            if self._write and before and self._terminal is not None:
                try:
                    self._terminal.type(before)
                except OahError:
                    pass  # it is being connected again, and what was typed is lost with the screen
            if not keys or found or (not self._write and _INTERRUPT in keys):
                self._detached.set()

    # -- what is shown ----------------------------------------------------------------------------------------------

    def _measure(self, terminal: Terminal) -> None:
        """A window that has another size shows everything anew; a writer's is the program's size."""
        window = _window_size()
        if window == self._window:
            return
        first, self._window = self._window == (0, 0), window
        write_text("\x1b[m\x1b[2J")
        if self._granted:
            terminal.resize(rows=window[0], columns=window[1])
        if not first:
            terminal.ask()

    @property
    def _fits(self) -> bool:
        return self._size[0] <= self._window[0] and self._size[1] <= self._window[1]

    def _take(self, terminal: Terminal, frame: Frame) -> None:
        match frame:
            case Snapshot():
                self._cleaner, self._at = Cleaner(), frame.offset
                self._paint(frame.paint, lambda: None)
            case Output():
                self._paint(frame.after(self._at), terminal.ask)
            case Note():
                self._hear(terminal, frame)

    def _paint(self, data: bytes, switched: Callable[[], None]) -> None:
        """`switched`: what to do when the program goes to its other screen, which is not kept here."""
        pieces = self._cleaner.feed(data)
        if not self._fits:
            self._dirty = True
            return
        write_text("".join(piece for piece in pieces if isinstance(piece, str)))
        if any(isinstance(piece, ModeSet) and other_screen(piece) for piece in pieces):
            switched()
        self._show_notice(self._notice)

    def _hear(self, terminal: Terminal, note: Note) -> None:
        data = note.data
        match note.type:
            case "size":
                self._size = int(data.get("rows", 0)), int(data.get("cols", 0))
                write_text("\x1b[m\x1b[r\x1b[2J")
                terminal.ask()
            case "end":
                self.status = data.get("status") or self.status
            case "writer":
                self._show_notice(f"{cell(data['by'])} types; Ctrl-] detaches" if data.get("by") else "Ctrl-] detaches")
            case "granted":
                self._granted = True
                terminal.resize(rows=self._window[0], columns=self._window[1])
            case "taken_over":
                self._write = self._granted = False
                self._show_notice(f"{cell(data.get('by'))} has taken over; Ctrl-] detaches")
            case "refused":
                self._show_notice(cell(data.get("message")))
            case "waiting":
                self._show_notice(f"no terminal yet ({cell(data.get('status'))}); Ctrl-] detaches")
            case _:
                pass

    def _show_notice(self, text: str) -> None:
        """In the last line of the window, where the program's screen leaves it free."""
        self._notice = text
        rows, columns = self._window
        if rows > self._size[0]:
            write_text(f"\x1b7\x1b[{rows};1H\x1b[0;7m{text[: columns - 1].ljust(columns - 1)}\x1b[m\x1b8")

    def _draw_part(self) -> None:
        """The part of a larger screen that holds the cursor."""
        self._dirty, self._drawn_at = False, time.monotonic()
        try:
            shown = self._client.screen(**self._what)
        except OahError:
            return
        rows, columns = self._window
        row, column = shown["cursor"]["row"], shown["cursor"]["column"]
        top, left = max(0, row - rows + 1), max(0, column - columns + 1)
        lines = [line[left : left + columns] for line in shown["lines"][top : top + rows]]
        painted = "".join(f"\x1b[{number};1H\x1b[2K{line}" for number, line in enumerate(lines, 1))
        write_text(f"\x1b[m{painted}\x1b[{row - top + 1};{column - left + 1}H")
