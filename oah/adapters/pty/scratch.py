"""Directories of one agent: its home and working directory where they are its own, and the scratch directory that goes
with it. Its own user can read them, nobody else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from oah.errors import AgentError
from oah.ports.agent import AgentSpec


def make(spec: AgentSpec, scratch: Path) -> None:
    """Raises OSError."""
    home = Path(spec.home)
    home.mkdir(parents=True, exist_ok=True)
    cwd = (Path(spec.cwd),) if spec.own_cwd else ()
    for own in cwd:
        own.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(parents=True, mode=0o700)
    if spec.uid is not None:
        for own in (home, scratch, *cwd):
            own.parent.chmod(0o711)  # to be passed through, not to be read
            os.chown(own, spec.uid, -1 if spec.gid is None else spec.gid)


def write(path: Path, text: str, *, uid: int | None) -> None:
    """A file that the agent alone can read. Raises AgentError `scratch_unwritable`."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(text.encode())
        if uid is not None:
            os.chown(path, uid, -1)
    except OSError as error:
        raise AgentError(f"cannot write {path}: {error.strerror}", code="scratch_unwritable") from error


def discard(scratch: Path) -> None:
    """Whether it is there or not."""
    shutil.rmtree(scratch, ignore_errors=True)
