"""A lane is a session's routing key, ``<pool>/<profile>``, fixed when the session is created."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oah.errors import InvalidRequest

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
"""Names of pools, profiles and workspaces: what is safe in a Redis key, a path and a label."""


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """Which workers can take a session."""

    pool: str
    profile: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.profile}"

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Read ``pool/profile``. Raises InvalidRequest."""
        pool, slash, profile = text.partition("/")
        if not slash or not NAME.match(pool) or not NAME.match(profile):
            raise InvalidRequest(f"'{text}' is no lane", hint="a lane is written pool/profile")
        return cls(pool, profile)
