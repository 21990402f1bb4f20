"""Pauses and caps."""

from __future__ import annotations

from oah.client.calls import Calls, given
from oah.client.transport import Json


class PauseCalls(Calls):
    """What takes no new runs, or only so many. ``kind``: ``workspace``, ``pool``, ``profile``, ``all``."""

    def pauses(self) -> list[Json]:
        """What is paused."""
        return self._list("/v1/pauses", {})

    def pause(self, kind: str, name: str | None = None, *, reason: str | None = None) -> Json:
        """Start no run of it; what runs goes on. Raises NotFound, Forbidden."""
        return self._one("POST", "/v1/pauses", body=given(kind=kind, name=name, reason=reason))

    def resume(self, kind: str, name: str | None = None) -> Json:
        """Undo ``pause``."""
        return self._one("POST", "/v1/pauses/resume", body=given(kind=kind, name=name))

    def caps(self) -> list[Json]:
        """Caps of profiles and of all."""
        return self._list("/v1/caps", {})

    def set_cap(self, kind: str, name: str | None = None, *, max_active_runs: int | None) -> Json:
        """Of ``profile`` or ``all``; None lifts it. A workspace's: ``update_workspace``."""
        return self._one("PUT", "/v1/caps", body={**given(kind=kind, name=name), "max_active_runs": max_active_runs})
