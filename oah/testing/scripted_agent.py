"""An agent program that does what its input says. Standard library only; stands for the real ones in tests.

It speaks the marker protocol: told ``turn run attempt`` on a line, it runs the file ``$OAH_SCRATCH/input`` line by
line and says when it
begins and ends. Lines that are no directive are answered with ``said: <line>``. Directives, one per line, ``[[name
arguments]]``:

say TEXT | len N (N characters) | flood N (N bytes, fast) | bytes HEX (as they are, broken UTF-8 too) | sleep S | hang |
spinner S (redraws a line) | dialog TEXT (asks and waits for a line from the terminal) | echo on/off | raw | cooked |
ignore INT,TERM,HUP | exit N | status N (of this turn) | no-marker (never end this turn) | unread (never read again) |
grandchild S (a child in a session of its own, double fork, without our environment) | ledger S (write the ledger) |
stop (SIGSTOP
itself) | leave (give the terminal up and live on)
"""

import os
import signal
import sys
import termios
import time
from collections.abc import Callable


class Turn:
    """Runs one input; `status` is what it ends with."""

    def __init__(self) -> None:
        self.status = 0
        self.marker = True

    def run(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("[[") and line.endswith("]]"):
                name, _, arguments = line[2:-2].partition(" ")
                self.obey(name.replace("-", "_"), arguments)
            elif line:
                put(f"said: {line}\n")

    def obey(self, name: str, arguments: str) -> None:
        directive: Callable[[str], None] | None = getattr(self, f"do_{name}", None)
        if directive is None:
            put(f"unknown directive {name}\n")
            self.status = 2
        else:
            directive(arguments)

    def do_say(self, arguments: str) -> None:
        put(arguments + "\n")

    def do_len(self, arguments: str) -> None:
        put("x" * int(arguments) + "\n")

    def do_flood(self, arguments: str) -> None:
        left, piece = int(arguments), b"0123456789abcde\n" * 4096
        while left > 0:
            left -= os.write(1, piece[:left])

    def do_bytes(self, arguments: str) -> None:
        data = bytes.fromhex(arguments)
        for index in range(len(data)):  # one by one: characters arrive in pieces
            os.write(1, data[index : index + 1])

    def do_sleep(self, arguments: str) -> None:
        time.sleep(float(arguments))

    def do_hang(self, arguments: str) -> None:
        while True:
            time.sleep(3600)

    def do_spinner(self, arguments: str) -> None:
        end, step = time.monotonic() + float(arguments), 0
        while time.monotonic() < end:
            put(f"\r\x1b[2K{'|/-'[step % 3]} working")
            step += 1
            time.sleep(0.02)
        put("\r\x1b[2Kdone\n")

    def do_dialog(self, arguments: str) -> None:
        put(f"{arguments} [y/n] ")
        put(f"\nanswered: {sys.stdin.readline().strip()}\n")

    def do_echo(self, arguments: str) -> None:
        set_modes(termios.ECHO, on=arguments == "on")

    def do_raw(self, arguments: str) -> None:
        set_modes(termios.ICANON | termios.ECHO | termios.ISIG, on=False)

    def do_cooked(self, arguments: str) -> None:
        set_modes(termios.ICANON | termios.ISIG, on=True)

    def do_ignore(self, arguments: str) -> None:
        for name in arguments.split(","):
            signal.signal(getattr(signal, f"SIG{name.strip()}"), signal.SIG_IGN)

    def do_exit(self, arguments: str) -> None:
        sys.stdout.flush()
        os._exit(int(arguments or 0))

    def do_status(self, arguments: str) -> None:
        self.status = int(arguments)

    def do_no_marker(self, arguments: str) -> None:
        self.marker = False

    def do_unread(self, arguments: str) -> None:
        self.do_hang("")

    def do_grandchild(self, arguments: str) -> None:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve("/bin/sleep", ["sleep", arguments], {})
            os._exit(0)
        os.waitpid(pid, 0)

    def do_ledger(self, arguments: str) -> None:
        ledger = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ledger_agent.py")
        os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-I", "-S", ledger, arguments])

    def do_stop(self, arguments: str) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_leave(self, arguments: str) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        self.do_hang("")


def put(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def set_modes(modes: int, *, on: bool) -> None:
    attributes = termios.tcgetattr(0)
    attributes[3] = attributes[3] | modes if on else attributes[3] & ~modes
    termios.tcsetattr(0, termios.TCSANOW, attributes)


def main() -> None:
    """Serve turns until the terminal ends or a line says ``quit``."""
    nonce, scratch = os.environ.pop("OAH_NONCE", ""), os.environ.get("OAH_SCRATCH", ".")
    put(f"\x1b]7337;{nonce};0;0\x07")
    while True:
        words = sys.stdin.readline().split()
        if not words or words == ["quit"]:
            return
        number, run, attempt = words
        os.environ.update(OAH_RUN_ID=run, OAH_ATTEMPT=attempt)
        put(f"\x1b]7337;{nonce};{number};begin\x07")
        with open(os.path.join(scratch, "input"), encoding="utf-8") as file:
            text = file.read()
        turn = Turn()
        try:
            turn.run(text)
        except KeyboardInterrupt:
            put("interrupted\n")
            turn.status = 130
        termios.tcflush(0, termios.TCIFLUSH)
        if turn.marker:
            put(f"\x1b]7337;{nonce};{number};{turn.status}\x07")


if __name__ == "__main__":
    main()
