"""Blobs as files below one directory, which all processes of a deployment share. Replacing is atomic, keys cannot
leave it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from oah.errors import PayloadTooLarge, RequestError, Unavailable

MAX_BYTES = 128 * 1024 * 1024
_KEY = re.compile(r"(?!.*(?:\A|/)\.)[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*\Z")
_PARTIAL = ".partial-"


class DirectoryBlobs:
    """ports.blobs.Blobs. `max_bytes` bounds each blob."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._root = directory
        self._max_bytes = max_bytes

    def put(self, key: str, data: bytes) -> None:
        """See ports.blobs.Blobs."""
        path = self._path(key)
        self._check(key, len(data))
        with _translated(key):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = path.parent / f"{_PARTIAL}{secrets.token_hex(8)}"
            try:
                partial.write_bytes(data)
                partial.chmod(0o600)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def append(self, key: str, data: bytes) -> int:
        """See ports.blobs.Blobs."""
        path = self._path(key)
        size = (self.size(key) or 0) + len(data)
        self._check(key, size)
        with _translated(key):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
        return size

    def get(self, key: str, *, limit: int | None = None) -> bytes | None:
        """See ports.blobs.Blobs."""
        with _translated(key):
            try:
                with self._path(key).open("rb") as file:
                    return file.read(-1 if limit is None else limit)
            except FileNotFoundError:
                return None

    def chunks(self, key: str, *, offset: int = 0, size: int = 65536) -> Iterator[bytes]:
        """See ports.blobs.Blobs."""
        with _translated(key):
            try:
                file = self._path(key).open("rb")
            except FileNotFoundError:
                return
            with file:
                file.seek(offset)
                while data := file.read(size):
                    yield data

    def size(self, key: str) -> int | None:
        """See ports.blobs.Blobs."""
        with _translated(key):
            try:
                return self._path(key).stat().st_size
            except FileNotFoundError:
                return None

    def keys(self, prefix: str = "") -> Iterator[str]:
        """See ports.blobs.Blobs."""
        start = self._root / prefix.rpartition("/")[0] if prefix else self._root
        for directory, _, names in os.walk(start):
            for name in names:
                key = str(Path(directory, name).relative_to(self._root))
                if key.startswith(prefix) and not name.startswith("."):
                    yield key

    def delete(self, key: str) -> bool:
        """See ports.blobs.Blobs."""
        with _translated(key):
            try:
                path = self._path(key)
                path.unlink()
            except FileNotFoundError:
                return False
        with contextlib.suppress(OSError):  # others lie in it, mostly
            path.parent.rmdir()
        return True

    def _path(self, key: str) -> Path:
        if len(key) > 512 or not _KEY.match(key):
            raise RequestError(f"not a blob key: {key[:80]!r}", code="invalid_key")
        return self._root / key

    def _check(self, key: str, size: int) -> None:
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"blob {key} would have {size} bytes, more than {self._max_bytes}", code="blob_too_large"
            )


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"blob {key}: {error.strerror or error}", code="blobs_unavailable") from error
