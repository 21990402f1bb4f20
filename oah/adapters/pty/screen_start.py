"""What must lie in an agent's home before its program starts, so that it asks nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from oah.core.dialogue.screen_profile import StartFile
from oah.errors import AgentError
from oah.ports.agent import AgentSpec


def place_files(spec: AgentSpec, files: Sequence[StartFile]) -> None:
    """Write those that are not there. Raises AgentError `spawn_failed`."""
    home = Path(spec.home)
    for file in files:
        path = home / file.path
        if path.exists():
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text.replace("{cwd}", spec.cwd).replace("{home}", spec.home), encoding="utf-8")
            if spec.uid is not None:
                for own in (path, *path.parents):
                    if own == home:
                        break
                    os.chown(own, spec.uid, -1 if spec.gid is None else spec.gid)
        except OSError as error:
            raise AgentError(f"cannot write {path}: {error.strerror}", code="spawn_failed") from error
