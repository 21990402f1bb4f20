"""The admin key of a lone API on this machine: made at the first start, kept in a file that only its user can read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from oah.errors import OahError
from oah.ports.clock import Clock, Ids
from oah.ports.store import Store
from oah.services import keys

FILE = "admin.key"


def ensure_admin_key(store: Store, clock: Clock, ids: Ids, data_dir: Path) -> Path | None:
    """`<data>/admin.key` with a key that the store knows; None when keys exist and the file was never made here.

    A file whose key the store does not know (another database) is replaced only if the store has no keys at all. The
    directory must exist. Raises Unavailable.
    """
    path = data_dir / FILE
    if _known(store, clock, path):
        return path
    if store.keys(None):
        return None
    made = keys.create_admin(store, ids, name="admin of this machine")
    _write(path, made.secret)
    return path


def _known(store: Store, clock: Clock, path: Path) -> bool:
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    try:
        keys.known(store, clock, secret)
    except OahError as error:
        if error.retryable:
            raise
        return False
    return True


def _write(path: Path, secret: str) -> None:
    """In one step: who reads it finds all of it or the old one. mkstemp makes it 0600 from the start."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".admin-key-")
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secret + "\n")
    os.replace(temporary, path)
