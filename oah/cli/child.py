"""``python -m oah.cli.child FD COMMAND …``: an ``oah`` process that ends when its parent does.

``FD`` is the reading end of a pipe whose writing end only the parent holds: at its end the parent is gone, however it
died, and the child gets SIGTERM, as from the parent itself. Works without the help of the kernel's parent-death
signal, which is bound to a thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def _end_with_parent(fd: int) -> None:
    os.read(fd, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Watch the pipe and become the command."""
    fd = int(sys.argv[1])
    # Nobody whom this process starts shall hold the pipe.
    os.set_inheritable(fd, False)  # noqa: FBT003  # the standard library takes it by position
    threading.Thread(target=_end_with_parent, args=(fd,), name="parent-watch", daemon=True).start()
    from oah.cli.main import oah

    oah.main(args=sys.argv[2:], prog_name="oah")


if __name__ == "__main__":
    main()
