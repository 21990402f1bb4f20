"""Clients of the NATS protocol that others wrote: nats-py beside the tests, nats.js on their node.

Both run the same scenario against a gateway and print what they saw as one JSON document.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from tests.support.real_agents import CACHE, node, npm

PACKAGE = "nats@2.29.3"
HERE = Path(__file__).parent
SECONDS = 60

_MISSED = "OAH_TEST_NATS_MISSED"
_NPM_SECONDS = 20


def clients() -> tuple[str, ...]:
    """Those of this run."""
    return ("nats-py",) if os.environ.get(_MISSED) else ("nats-py", "nats.js")


def settle(env: MutableMapping[str, str]) -> None:
    """Decide once for all processes of a run of the tests: without npm's registry nats.js is left out, and said so."""
    if _MISSED in env:
        return
    env[_MISSED] = "" if _installed() or _published() else "nats.js"


def _published() -> bool:
    try:
        npm("view", "--fetch-retries=0", PACKAGE, "version", seconds=_NPM_SECONDS)
    except RuntimeError:
        return False
    return True


def told() -> str:
    """One line about that, for the head of a run."""
    left = "" if "nats.js" in clients() else "; NPM COULD NOT BE REACHED FOR: nats.js"
    return f"NATS clients: {', '.join(clients())}{left}"


def run(client: str, url: str, *, token: str | None = None, ca: Path | None = None) -> dict[str, Any]:
    """The scenario's report. Raises AssertionError with what the client said."""
    env = {**os.environ, "NATS_URL": url, "NATS_TOKEN": token or "", "NATS_CA": str(ca or "")}
    if client == "nats-py":
        command = [sys.executable, str(HERE / "nats_scenario.py")]
    else:
        command = [str(node()), str(HERE / "nats_scenario.js")]
        env["NODE_PATH"] = str(_install() / "node_modules")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    assert done.returncode == 0, f"{client}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _prefix() -> Path:
    return CACHE / "nats.js"


def _installed() -> bool:
    stamp = _prefix() / ".package"
    return stamp.is_file() and stamp.read_text() == PACKAGE


def _install() -> Path:
    """nats.js at this version, from the registry that npm is configured for."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".nats.js.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _installed():
            shutil.rmtree(_prefix(), ignore_errors=True)
            _prefix().mkdir(parents=True)
            npm("install", "--silent", "--no-audit", "--no-fund", "--prefix", str(_prefix()), PACKAGE)
            (_prefix() / ".package").write_text(PACKAGE)
    return _prefix()
