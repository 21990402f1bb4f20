"""A lane is a session's routing key, ``<pool>/<profile>``, fixed when the session is created."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oah.errors import InvalidRequest

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
"""Names of pools, profiles and workspaces: what is safe in a Redis key, a path and a label."""


_HOST = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """Which workers can take a session. `host`: only those where its home is; a session's own lane has none."""

    pool: str
    profile: str
    host: str = ""

    def __str__(self) -> str:
        return f"{self.pool}/{self.profile}@{self.host}" if self.host else f"{self.pool}/{self.profile}"

    def at(self, host: str) -> Lane:
        """The same on one host."""
        return Lane(self.pool, self.profile, host)

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Read ``pool/profile``. Raises InvalidRequest."""
        name, at, host = text.partition("@")
        pool, slash, profile = name.partition("/")
        if not slash or not NAME.match(pool) or not NAME.match(profile) or (at and not _HOST.match(host)):
            raise InvalidRequest(f"'{text}' is no lane", hint="a lane is written pool/profile")
        return cls(pool, profile, host)
