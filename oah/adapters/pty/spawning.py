"""What a PTY host is told to start, and why it refuses."""

from __future__ import annotations

import os
from errno import E2BIG, ENOENT, ENOTDIR

from oah.adapters.pty.connection import MAX_STRING
from oah.adapters.pty.hostside.tree import TAG_NAME
from oah.errors import AgentError
from oah.ports.terminal import SpawnSpec

FOR_MACHINES = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
}
"""What keeps the tools that an agent calls from waiting for a person. ``CI`` is not among them: with it some programs
draw no screen."""


def request_of(spec: SpawnSpec, tag: int) -> dict[str, object]:
    """The message. Raises AgentError for what cannot be started."""
    env = {
        "OAH_SESSION_ID": spec.session_id,
        "OAH_RUN_ID": spec.run_id,
        "OAH_ATTEMPT": str(spec.attempt),
        "OAH_WORKER_ID": spec.worker_id,
        **spec.env,
        TAG_NAME: str(tag),
    }
    if not spec.argv:
        raise AgentError("nothing to start: the command is empty", code="spawn_failed")
    for text in (*spec.argv, *(f"{name}={value}" for name, value in env.items()), spec.cwd):
        _check(text)
    if any(not name or "=" in name for name in env):
        raise AgentError("a name in the environment is empty or has a '='", code="spawn_failed")
    return {
        "agent_id": spec.agent_id,
        "argv": list(spec.argv),
        "env": env,
        "cwd": spec.cwd,
        "rows": spec.rows,
        "cols": spec.cols,
        "uid": spec.uid,
        "gid": spec.gid,
        "deadline": spec.deadline_boottime,
        "tag": tag,
        "limits": dict(spec.limits),
    }


def _check(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise AgentError("an argument or environment entry is not valid Unicode", code="spawn_failed") from None
    if "\0" in text:
        raise AgentError("an argument or environment entry has a NUL", code="spawn_failed")
    if size >= MAX_STRING:
        raise AgentError(
            f"an argument or environment entry of {size} bytes, more than {MAX_STRING}", code="spawn_too_large"
        )


def refusal_of(spec: SpawnSpec, step: str, errno: int) -> AgentError:
    """What the host's refusal means: the step that failed, and the system's error number."""
    why = os.strerror(errno) if errno else "unknown error"
    match step:
        case "deadline":
            return AgentError("the claim's deadline had passed before the program was started", code="deadline_passed")
        case "exec" if errno in (ENOENT, ENOTDIR):
            return AgentError(
                f"program not found: {spec.argv[0]}", code="program_not_found", hint="is it installed and on the PATH?"
            )
        case "exec" if errno == E2BIG:
            return AgentError("arguments and environment are too large", code="spawn_too_large")
        case "exec":
            return AgentError(f"cannot execute {spec.argv[0]}: {why}", code="spawn_failed")
        case "cwd":
            return AgentError(f"cannot enter {spec.cwd}: {why}", code="spawn_failed")
        case "limits":
            return AgentError(f"cannot bound the program as its profile says: {why}", code="spawn_failed")
        case _:
            return AgentError(f"cannot start a program ({step}): {why}", code="spawn_failed")
