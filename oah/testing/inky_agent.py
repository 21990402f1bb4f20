"""A full-screen agent that misbehaves on order: what a driver of screens is tested against.

Run as ``python -I -S inky_agent.py``; needs nothing but Python. It draws a framed composer, a spinner and dialogs with
moves of the cursor, asks its terminal questions, takes bracketed pastes, and takes a burst of keys for a paste (then a
return key in it is a line end, as in the programs that are written with Ink). Every text that is submitted is written
to ``$OAH_SUBMITS`` as one JSON line before anything is done with it, so a test can say what arrived, and how often.

``$INKY``, JSON: ``blank`` (seconds of a start that shows nothing and loses all keys), ``trust`` (asks at the start),
``query`` (asks where the cursor is and waits for it), ``bracketed`` (default true), ``burst`` (64), ``eat`` (return
keys that are ignored), ``alternate``, ``draft`` (what a person has left in the composer), ``stuck`` (texts are shown
and never taken), ``hold`` (seconds before keys are looked at), ``loud`` (bytes written before the first screen).

Lines ``[[name arguments]]`` of a text are orders, others are answered: say TEXT | lines N | len N | sleep S (with a
spinner) | silent S | dead S (the spinner moves, nothing happens) | permission | trust | question | unknown (a dialog
that nobody knows) | login | draft TEXT (a person begins to type) | status TEXT (redraws) | flood N | exit N | kill |
ask (asks the terminal, says what it answered) |
countdown N S FORM (a dialog that answers itself after N times S seconds, and says so in a line of that form: ``{}`` the
times that are left, ``{seconds}`` the seconds) |
grandchild S | no-read (reads no more).
"""

import hashlib
import json
import math
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from typing import Any

RULE = "─" * 60
PASTE = re.compile(rb"\x1b\[200~(.*?)\x1b\[201~", re.DOTALL)
KEY = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z~]|\x1b\].*?(?:\x07|\x1b\\)|\x1bP.*?\x1b\\", re.DOTALL)
DIALOGS = {
    "permission": ("Do you want to proceed?", ("Yes", "Yes, and do not ask again", "No, and say why")),
    "trust": ("Do you trust the files in this folder?", ("Yes, I trust this folder", "No, exit")),
    "question": ("Which colour shall it be?", ()),
    "unknown": ("Hmm, something that nobody has ever asked. (y/n)", ()),
    "login": ("Select login method", ()),
}


def out(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]


class Inky:
    """The program: `keys` in, frames out."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.draft: str = options.get("draft", "")
        self.placeholder = ""
        self.eat = options.get("eat", 0)
        self.height = 0
        self.dialog: str | None = None
        self.history: list[str] = []
        self.queue: list[str] = []
        self.interrupted = False
        self.typed = ""
        self.busy = ""
        self.waiting = b""
        self.tick = 0
        self.asked: str = ""
        self.clock = ""

    # --- drawing ---

    def frame(self) -> list[str]:
        if self.dialog:
            title, choices = DIALOGS[self.dialog]
            lines = [f"╭{'─' * 50}╮", f"│ {title:<48} │"]
            lines += [f"│ {self.clock:<48} │"] if self.clock else []
            lines += [f"│ {'❯' if n == 1 else ' '} {n}. {words:<44} │" for n, words in enumerate(choices, 1)]
            if self.dialog == "question":
                lines.append(f"│ answer: {self.typed:<40} │")
            return [*lines, f"╰{'─' * 50}╯"]
        spinner = (
            [f"{'✻✽✶✢'[self.tick % 4]} {self.busy}… ({self.tick // 10}s · esc to interrupt)", ""] if self.busy else []
        )
        shown = self.placeholder or self.draft
        width = os.get_terminal_size(1).columns - 4
        rows = [line[at : at + width] for line in shown.split("\n") for at in range(0, max(len(line), 1), width)][-8:]
        return [*spinner, RULE, *[("> " if n == 0 else "  ") + row for n, row in enumerate(rows)], RULE, "  ? for help"]

    def draw(self, above: Sequence[str] = ()) -> None:
        lines = self.frame()
        if self.options.get("alternate"):
            self.history = [*self.history, *above]
            room = os.get_terminal_size(1).lines - len(lines)
            out("\x1b[?2026h\x1b[H\x1b[2J" + "\r\n".join([*self.history[-room:], *lines]) + "\x1b[?2026l")
            return
        up = f"\x1b[{self.height - 1}A" if self.height > 1 else ""
        out(
            "\x1b[?2026h"
            + up
            + "\r\x1b[J"
            + "".join(line + "\r\n" for line in above)
            + "\r\n".join(lines)
            + "\x1b[?2026l"
        )
        self.height = len(lines)

    # --- keys ---

    def read(self, seconds: float) -> bytes:
        """What was typed within this time, as one read."""
        ready, _, _ = select.select([0], [], [], seconds)
        return os.read(0, 65536) if ready else b""

    def take(self, data: bytes) -> str | None:
        """Keys of one read; the text that is submitted by them, or None."""
        data = self.waiting + data
        begun = data.rfind(b"\x1b[200~")
        if begun >= 0 and b"\x1b[201~" not in data[begun:]:
            self.waiting = data
            return None
        self.waiting = b""
        at = 0
        submitted: str | None = None
        for found in PASTE.finditer(data):
            submitted = self.plain(data[at : found.start()]) or submitted
            self.paste(found.group(1).decode("utf-8", "replace"))
            at = found.end()
        rest = self.plain(data[at:])
        return rest or submitted

    def plain(self, data: bytes) -> str | None:
        burst = len(data) > self.options.get("burst", 64)
        text, submitted = KEY.sub(b"", data).decode("utf-8", "replace"), None
        if burst:
            self.paste(text.replace("\r", "\n"))
            return None
        for char in text:
            if self.dialog:
                self.choose(char)
            elif char == "\r":
                submitted = self.enter() or submitted
            else:
                self.key(char)
        return submitted

    def key(self, char: str) -> None:
        if char == "\x15":
            self.draft, self.placeholder = "", ""
        elif char == "\x1b":
            self.interrupted = True
        elif char == "\x03":
            sys.exit(0)
        elif char >= " " or char in "\n\t":
            self.draft += char

    def paste(self, text: str) -> None:
        if self.dialog:
            return
        self.draft += text.replace("\r\n", "\n").replace("\r", "\n")
        if text.count("\n") > 8 or len(text) > 2000:
            self.placeholder = f"[Pasted text #1 +{text.count(chr(10))} lines]"

    def enter(self) -> str | None:
        if self.eat > 0:
            self.eat -= 1
            return None
        if not self.draft.strip() or self.options.get("stuck"):
            return None
        text, self.draft, self.placeholder = self.draft, "", ""
        record(text)
        return text

    def choose(self, char: str) -> None:
        if not self.dialog:
            return
        _, choices = DIALOGS[self.dialog]
        if self.dialog == "question" and char not in "\r\x15":
            self.typed += char
        elif self.dialog in ("question", "unknown") and (char == "\r" or self.dialog == "unknown"):
            self.asked, self.dialog = self.typed or char, None
        elif char.isdigit() and 0 < int(char) <= len(choices):
            self.asked, self.dialog = char, None
        if not self.dialog:
            record(self.asked, dialog=True)
            self.typed = ""

    # --- time ---

    def pass_time(self, seconds: float, *, moves: bool = True) -> bool:
        """Let time pass at work; what is typed meanwhile is queued. False: interrupted."""
        end, self.interrupted = time.monotonic() + seconds, False
        while time.monotonic() < end:
            data = self.read(min(0.1, max(end - time.monotonic(), 0)))
            text = self.take(data) if data else None
            if text is not None:
                self.draw([f"> {line}" for line in text.split("\n")])
                self.queue.append(text)
            if self.interrupted:
                return False
            if moves or data:
                self.tick += 1
                self.draw()
        return True

    def ask(self, name: str, *, count: int = 0, tick: float = 0.2, form: str = "") -> str:
        """A dialog until it is answered, or has counted down; the answer."""
        self.dialog, self.asked, busy, self.busy = name, "", self.busy, ""
        self.clock = form.format(count, seconds=math.ceil(count * tick))
        self.draw()
        while self.dialog:
            data = self.read(tick)
            if data:
                self.take(data)
            elif count:
                count -= 1
                self.clock = form.format(count, seconds=math.ceil(count * tick))
                self.asked, self.dialog = ("", name) if count else ("by itself", None)
            if data or form:
                self.draw()
        self.busy, self.clock = busy, ""
        return self.asked

    # --- turns ---

    def serve(self) -> None:
        """For ever."""
        self.draw()
        while True:
            if self.queue:
                self.work(self.queue.pop(0))
                continue
            data = self.read(3600)
            if not data:
                continue
            if self.options.get("hold"):
                time.sleep(self.options["hold"])
            text = self.take(data)
            if text is None:
                self.draw()
            elif text in ("/quit", "/exit"):
                return
            elif text.lstrip().startswith(("/", "!")):
                record(text, command=True)
                self.draw(["command not found"])
            else:
                self.draw([f"> {line}" for line in text.split("\n")])
                self.work(text)

    def work(self, text: str) -> None:
        said: list[str] = []
        self.busy = "Thinking"
        self.draw()
        interrupted = not self.pass_time(0.15)
        if interrupted:
            said.append("Interrupted")
        for line in [] if interrupted else text.split("\n"):
            order = re.fullmatch(r"\[\[([a-z-]+) ?(.*)\]\]", line)
            if order is None:
                continue
            obey: Callable[[str], str | list[str] | None] = getattr(self, "do_" + order.group(1).replace("-", "_"))
            made = obey(order.group(2))
            said.extend([made] if isinstance(made, str) else made or [])
        plain = [line for line in text.split("\n") if line.strip() and not line.startswith("[[")]
        if plain:
            said.append(f"heard {len(text)} characters, {hashlib.sha256(text.encode()).hexdigest()[:12]}")
        self.busy = ""
        self.draw(["", *[("● " if n == 0 else "  ") + line for n, line in enumerate(said)], ""])

    def do_say(self, text: str) -> str | list[str] | None:
        return text

    def do_lines(self, count: str) -> None:
        """One by one, the first of a reply of its own."""
        for n in range(int(count)):
            self.draw([("● " if n == 0 else "  ") + f"line {n} of a long answer"])
            self.pass_time(0.02)

    def do_len(self, count: str) -> str | list[str] | None:
        return ["word" * 20] * (int(count) // 80)

    def do_sleep(self, seconds: str) -> str | list[str] | None:
        return None if self.pass_time(float(seconds)) else "Interrupted"

    def do_dead(self, seconds: str) -> str | list[str] | None:
        return self.do_sleep(seconds)

    def do_silent(self, seconds: str) -> str | list[str] | None:
        return None if self.pass_time(float(seconds), moves=False) else "Interrupted"

    def do_permission(self, _: str) -> str | list[str] | None:
        return f"answered {self.ask('permission')}"

    def do_countdown(self, arguments: str) -> str | list[str] | None:
        count, tick, form = arguments.split(" ", 2)
        return f"answered {self.ask('permission', count=int(count), tick=float(tick), form=form)}"

    def do_trust(self, _: str) -> str | list[str] | None:
        return f"answered {self.ask('trust')}"

    def do_question(self, _: str) -> str | list[str] | None:
        return f"answered {self.ask('question')}"

    def do_unknown(self, _: str) -> str | list[str] | None:
        return f"answered {self.ask('unknown')}"

    def do_login(self, _: str) -> str | list[str] | None:
        return f"answered {self.ask('login')}"

    def do_draft(self, text: str) -> None:
        self.draft = text

    def do_flood(self, count: str) -> None:
        left, piece = int(count), ("0123456789abcdef" * 5 + "\r\n") * 200
        while left > 0:
            out(piece)
            left -= len(piece)
        self.height = 0

    def do_exit(self, status: str) -> str | list[str] | None:
        out("\r\nlast words\r\n")
        os._exit(int(status or 0))

    def do_kill(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def do_ask(self, _: str) -> str | list[str] | None:
        return f"cursor {cursor() is not None}"

    def do_grandchild(self, seconds: str) -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", seconds], {})
            os._exit(0)

    def do_no_read(self, _: str) -> None:
        time.sleep(3600)


def cursor() -> tuple[int, int] | None:
    """Where the terminal says that it is; asked a byte at a time."""
    for byte in b"\x1b[6n":
        os.write(1, bytes([byte]))
        time.sleep(0.002)
    seen, end = b"", time.monotonic() + 2.0
    while time.monotonic() < end:
        if select.select([0], [], [], 0.1)[0]:
            seen += os.read(0, 1024)
        found = re.search(rb"\x1b\[(\d+);(\d+)R", seen)
        if found:
            return int(found.group(1)), int(found.group(2))
    return None


def record(text: str, **more: bool) -> None:
    path = os.environ.get("OAH_SUBMITS")
    if path:
        with open(path, "a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(json.dumps({"text": text, **more}) + "\n")


def main() -> None:
    options = json.loads(os.environ.get("INKY", "{}"))
    tty.setraw(0, termios.TCSANOW)
    if options.get("blank"):
        time.sleep(options["blank"])
        termios.tcflush(0, termios.TCIFLUSH)
    if options.get("loud"):
        Inky(options).do_flood(options["loud"])
    if options.get("query"):
        out("\x1b[?u\x1b]11;?\x1b\\\x1b[>0q\x1b[c")
        if cursor() is None:
            out("the cursor position could not be read\r\n")
            sys.exit(1)
    if options.get("alternate"):
        out("\x1b[?1049h")
    if options.get("bracketed", True):
        out("\x1b[?2004h")
    out("\x1b[>4;1m\x1b[>1u inky 1.0\r\n\r\n" if options.get("query") else "inky 1.0\r\n\r\n")
    inky = Inky(options)
    if options.get("trust") and inky.ask("trust") != "1":
        sys.exit(0)
    inky.serve()


if __name__ == "__main__":
    main()
