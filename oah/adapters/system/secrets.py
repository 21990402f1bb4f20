"""Secrets of a worker's own: from its environment (`OAH_SECRET_NAME`), or files of a directory as clusters mount them.

Read when they are asked for, so that a file that was replaced is the new secret for the next agent.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from oah.core.model.ids import WorkspaceId
from oah.core.model.session import is_secret_name

PREFIX = "OAH_SECRET_"
MAX_BYTES = 64 * 1024


class WorkerSecrets:
    """ports.secrets.Secrets. In the directory `<workspace>/NAME` goes before `NAME`, both before the environment."""

    def __init__(self, directory: Path | None = None, told: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._told = dict(told or {})

    def secret(self, name: str, workspace_id: WorkspaceId) -> str | None:
        """See ports.secrets.Secrets."""
        if not is_secret_name(name) or not is_secret_name(workspace_id):
            return None
        if self._directory is not None:
            for path in (self._directory / workspace_id / name, self._directory / name):
                found = _read(path)
                if found is not None:
                    return found
        return self._told.get(name)


def taken(environment: MutableMapping[str, str]) -> dict[str, str]:
    """The secrets of an environment, which has them no longer: children inherit it."""
    names = [name for name in environment if name.startswith(PREFIX) and len(name) > len(PREFIX)]
    return {name.removeprefix(PREFIX): environment.pop(name) for name in names}


def _read(path: Path) -> str | None:
    """A file without its last newline; None where there is none, or none that may be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(data) > MAX_BYTES:
        return None
    return data.decode("utf-8", "replace").removesuffix("\n")
