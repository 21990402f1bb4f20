"""An agent program that proves when it lived: every 20 ms it appends a line to a file that all agents of a fleet share.

``ledger_agent.py SECONDS [grandchild] [fail=N]``: for so long it writes ``{"session", "run", "attempt", "number", "at",
"pid"}`` to the file
``OAH_LEDGER`` (`at`: CLOCK_BOOTTIME in nanoseconds, one clock for all processes of a machine), one write per line,
appending. With
``grandchild`` a process in a session of its own, forked twice, writes too and would go on for a minute: it is the one
that a
careless kill forgets. With ``fail=N`` the first N attempts end with exit status 3. Standard library only.
"""

import json
import os
import sys
import time

PERIOD_SECONDS = 0.02
GRANDCHILD_SECONDS = 60.0


def write_lines(seconds: float) -> int:
    """Write for so long; the number of lines."""
    fixed = {
        "session": os.environ["OAH_SESSION_ID"],
        "run": os.environ["OAH_RUN_ID"],
        "attempt": int(os.environ["OAH_ATTEMPT"]),
    }
    ledger = os.open(os.environ["OAH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    end, number = time.monotonic() + seconds, 0
    while True:
        number += 1
        line = {**fixed, "number": number, "at": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "pid": os.getpid()}
        os.write(ledger, json.dumps(line).encode() + b"\n")
        if time.monotonic() >= end:
            return number
        time.sleep(PERIOD_SECONDS)


def fork_grandchild() -> None:
    """Forked twice, in a session of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            write_lines(GRANDCHILD_SECONDS)
        os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    words = " ".join(sys.argv[1:]).split()
    if "OAH_LEDGER" not in os.environ:
        sys.exit("OAH_LEDGER names no file: give it in the session's env")
    try:
        seconds = float(words[0]) if words else 1.0
    except ValueError:
        sys.exit("usage: ledger_agent.py SECONDS [grandchild] [fail=N]")
    failing = max((int(word[5:]) for word in words if word.startswith("fail=")), default=0)
    if "grandchild" in words:
        fork_grandchild()
    sys.stdout.write(f"{write_lines(seconds)} lines\n")
    sys.stdout.flush()
    if int(os.environ["OAH_ATTEMPT"]) <= failing:
        sys.exit(3)


if __name__ == "__main__":
    main()
