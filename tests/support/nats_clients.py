"""Clients of the NATS protocol that others wrote: nats-py beside the tests, nats.js where there is a node.

Both run the same scenario against a gateway and print what they saw as one JSON document.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.real_agents import CACHE, node_version

PACKAGE = "nats@2.29.3"
OLDEST_NODE = 18
HERE = Path(__file__).parent
SECONDS = 60


def clients() -> tuple[str, ...]:
    """Those of this run."""
    return ("nats-py", "nats.js") if node_version() >= OLDEST_NODE else ("nats-py",)


def told() -> str:
    """One line about that, for the head of a run."""
    found = clients()
    left = (
        "" if "nats.js" in found else f"; NOT in this run: nats.js (needs node {OLDEST_NODE}, found {node_version()})"
    )
    return f"NATS clients: {', '.join(found)}{left}"


def run(client: str, url: str, *, token: str | None = None, ca: Path | None = None) -> dict[str, Any]:
    """The scenario's report. Raises AssertionError with what the client said."""
    env = {**os.environ, "NATS_URL": url, "NATS_TOKEN": token or "", "NATS_CA": str(ca or "")}
    if client == "nats-py":
        command = [sys.executable, str(HERE / "nats_scenario.py")]
    else:
        command = ["node", str(HERE / "nats_scenario.js")]
        env["NODE_PATH"] = str(_install() / "node_modules")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
    assert done.returncode == 0, f"{client}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _install() -> Path:
    """nats.js at this version, from the registry that npm is configured for."""
    prefix = CACHE / "nats.js"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".nats.js.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = prefix / ".package"
        if not stamp.is_file() or stamp.read_text() != PACKAGE:
            shutil.rmtree(prefix, ignore_errors=True)
            prefix.mkdir(parents=True)
            words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(prefix), PACKAGE]
            subprocess.run(words, check=True, timeout=600, stdin=subprocess.DEVNULL)
            stamp.write_text(PACKAGE)
    return prefix
