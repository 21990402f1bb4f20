"""A clock that the test moves."""

from datetime import UTC, datetime


class StillClock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def boottime(self) -> float:
        return self.seconds
