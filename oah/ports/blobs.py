"""Artifacts: recordings, transcripts, results too long for a row. A row in SQL holds the key; the bytes live here.

Keys are relative paths of `[A-Za-z0-9._-]` parts joined by `/`, no part starting with a dot, at most 512 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Blobs(Protocol):
    """A store of named byte strings. Any process may read what another (dead or alive) wrote.

    Errors: RequestError `invalid_key`; PayloadTooLarge `blob_too_large` when a write would pass the store's bound
    (nothing is written then); Unavailable `blobs_unavailable` when the store cannot be reached or is full.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create or replace, atomically: a reader sees the old bytes or the new ones."""

    def append(self, key: str, data: bytes) -> int:
        """Add at the end (creating it); the new size. One writer per key; a reader may see a prefix of `data`."""

    def get(self, key: str, *, limit: int | None = None) -> bytes | None:
        """The first `limit` bytes (all when None), None when there is no such key."""

    def chunks(self, key: str, *, offset: int = 0, size: int = 65536) -> Iterator[bytes]:
        """The bytes from `offset` on in pieces; nothing when there is no such key."""

    def size(self, key: str) -> int | None:
        """Bytes stored, None when there is no such key."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Keys that start with `prefix`, in no particular order."""

    def delete(self, key: str) -> bool:
        """Remove; False when there was none. Repeatable."""
