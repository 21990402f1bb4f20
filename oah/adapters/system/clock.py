"""The clocks of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC is the one that goes on during sleep there.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """`Clock` on the clocks of the kernel."""

    def now(self) -> datetime:
        """The moment, aware, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC in seconds."""
        return time.monotonic()

    def boottime(self) -> float:
        """CLOCK_BOOTTIME in seconds (on macOS CLOCK_MONOTONIC, which counts sleep there)."""
        return time.clock_gettime(_BOOT)
