"""A worker process that tests kill and stop: a PTY host, agents, and witnesses that extend and mark until told to be
silent.

``python -m tests.support.pty_worker STATE_DIR MARGIN LIFE`` then one JSON list per line on stdin: ``["spawn", id,
argv…]``, ``["silent"]``,
``["host"]``. Each is answered by one line of JSON.
"""

import json
import sys
import threading
from datetime import timedelta
from pathlib import Path

from oah.adapters.pty.connection import boottime
from oah.adapters.pty.host import PtyHost
from tests.support.terminals import spec


def main() -> None:
    state_dir, margin, life = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    enabled = "deadman-off" not in sys.argv
    host = PtyHost(state_dir=state_dir, worker_id="w.1", margin=timedelta(seconds=margin), deadman_enabled=enabled)
    swept = host.sweep()
    silent = threading.Event()
    host.start()

    def witness() -> None:
        while not silent.wait(margin / 4):
            begun = boottime()
            host.extend(dict.fromkeys(host.live(), begun + life))
            host.marked(begun_boottime=begun)

    threading.Thread(target=witness, daemon=True).start()
    print(json.dumps({"host": host.host_pid, "killed": swept.killed, "clean": swept.clean}), flush=True)
    for line in sys.stdin:
        kind, *arguments = json.loads(line)
        answer: object = None
        if kind == "spawn":
            answer = host.spawn(spec(*arguments[1:], agent_id=arguments[0], life=life)).pid
        elif kind == "silent":
            silent.set()
        elif kind == "host":
            answer = host.host_pid
        print(json.dumps(answer), flush=True)
    host.stop()


if __name__ == "__main__":
    main()
