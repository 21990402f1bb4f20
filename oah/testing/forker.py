"""``python -m oah.testing.forker FD``: the warm process of a nursery (`oah.testing.nursery`).

It imports what OAH's processes import and then forks itself whenever it is asked to over the socket FD; it ends with
that socket. Forking is safe as long as it has one thread and nothing open: it does no work of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from oah.cli import child
from oah.testing.nursery import receive, send

WARM = (
    "oah.cli.main",
    "oah.bootstrap.api",
    "oah.bootstrap.controller",
    "oah.bootstrap.gateway",
    "oah.bootstrap.worker",
    "oah.adapters.rq.queue",
)
LATER = (
    "alembic.command",
    "anyio._backends._asyncio",
    "encodings.ascii",
    "encodings.idna",
    "stringprep",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
)
"""What libraries and these import only when they need it, which for most processes is soon."""


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answer until the other end is gone: None. In each fork: what it shall become, and its descriptors."""
    while (received := receive(channel)) is not None:
        message, descriptors = received
        if "reap" in message:
            _, status = os.waitpid(message["reap"], 0)
            send(channel, {"code": os.waitstatus_to_exitcode(status)})
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            return message, descriptors
        for each in descriptors:
            os.close(each)
        send(channel, {"pid": pid})
    return None


def become(message: dict[str, Any], descriptors: Sequence[int]) -> None:
    """In a fork: everything that is a process's own, as a fresh interpreter has it."""
    output, lifeline = descriptors
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(message["cwd"])
    os.environ.clear()
    os.environ.update(message["env"])
    sys.argv = [child.__file__, str(lifeline), *message["words"]]
    gc.enable()


def main() -> None:
    """Import, serve; in a fork: be `oah.cli.child`, and end as that ends."""
    gc.disable()
    for name in WARM:
        importlib.import_module(name)
    for name in LATER:
        with contextlib.suppress(ImportError):  # not on every platform, or not in every version
            importlib.import_module(name)
    gc.freeze()
    told = serve(socket.socket(fileno=int(sys.argv[1])))
    if told is not None:
        become(*told)
        child.main()


if __name__ == "__main__":
    main()
