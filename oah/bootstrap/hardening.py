"""Agents are not trusted: what keeps them from the files and the memory of the processes that drive them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from oah.adapters.pty.hardening import make_undumpable
from oah.adapters.system.secrets import taken
from oah.settings import Settings

PASSABLE = 0o711
"""Others may pass through a directory, but neither list nor read it."""


def close_data_dir(settings: Settings) -> None:
    """What this process writes is its user's alone; the data directory is 0700.

    Where agents run as another user they may pass through it, to their home and scratch directory below.
    """
    os.umask(0o077)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    mode = 0o700 if settings.worker.agent_uid is None else PASSABLE
    # A directory of somebody else (a mounted volume) stays as it is; `oah doctor` says what is wrong with it.
    with contextlib.suppress(PermissionError):
        settings.data_dir.chmod(mode)


SECRETS = ("OAH_DATABASE_URL", "OAH_REDIS_URL", "OAH_JOBS_REDIS_URL", "OAH_API_KEY")
"""Settings that name passwords and keys; once read they leave the environment, which children inherit."""


def forget_secrets() -> dict[str, str]:
    """After the settings were read; the secrets that agents may be given. What /proc shows of the start is closed by
    `shield_worker`."""
    for name in SECRETS:
        os.environ.pop(name, None)
    return taken(os.environ)


def shield_worker(settings: Settings, directory: Path) -> None:
    """For a process that drives agents: no core dump, nothing of it in /proc for others; agents of another user find
    the way to what is theirs. `directory`: the worker's own, below the data directory."""
    if sys.platform == "linux":
        make_undumpable()
    if settings.worker.agent_uid is None:
        return
    homes = settings.data_dir / "homes"
    homes.mkdir(exist_ok=True)
    for folder in (homes, directory.parent, directory):
        folder.chmod(PASSABLE)
