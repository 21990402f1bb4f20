"""Ids, nonces and chance.

An id is 48 bits of milliseconds and 80 bits that are random at the start of each millisecond and counted up inside it,
written in Crockford's base 32 (lower case): ids of one process sort in the order they were made, ids of several by the
millisecond. A clock that steps back does not break the order; the last millisecond is kept until it is reached again.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_LENGTH = 26


class SystemIds:
    """`Ids` from the operating system's randomness. Thread safe."""

    def __init__(self, *, milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._milliseconds = milliseconds
        self._lock = threading.Lock()
        self._last_ms = -1
        self._tail = 0
        self._chance = random.SystemRandom()

    def new(self, kind: str) -> str:
        """A unique, sortable id `<kind>_<26 characters>`."""
        with self._lock:
            now_ms = self._milliseconds()
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                # The top bit stays free, so that counting up inside a millisecond cannot overflow.
                self._tail = secrets.randbits(_RANDOM_BITS - 1)
            else:
                self._tail += 1
            number = (self._last_ms << _RANDOM_BITS) | self._tail
        return f"{kind}_{_base32(number)}"

    def nonce(self) -> str:
        """128 random bits as 32 hex digits."""
        return secrets.token_hex(16)

    def chance(self) -> float:
        """A random number in [0, 1)."""
        return self._chance.random()


def _base32(number: int) -> str:
    digits = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
