"""Cron expressions over cronsim, which treats changes of the clock as Debian's cron does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from oah.errors import InvalidRequest

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_OF_A_MACHINE = frozenset({"localtime", "posixrules", "Factory"})
"""Names that mean something else on each machine; ``right/`` counts leap seconds besides."""
HINT = "five fields, or six with seconds in front: */5 9-17 * * MON-FRI"


class CronSimTimes:
    """See ports.schedules.CronTimes. Thread safe: it keeps nothing."""

    def check(self, cron: str, timezone: str) -> None:
        """Raises InvalidRequest (``invalid_cron``, ``unknown_timezone``)."""
        now = datetime.now(UTC)
        self._sim(cron, timezone, now)
        if self.next(cron, timezone, after=now) is None:
            raise InvalidRequest(f"'{cron}' never fires", code="invalid_cron", hint=HINT)

    def next(self, cron: str, timezone: str, *, after: datetime) -> datetime | None:
        """The first one later than `after`."""
        # Within an hour that comes twice, cronsim answers with times of its first coming.
        found = (moment.astimezone(UTC) for moment in self._sim(cron, timezone, after))
        return next((moment for moment in found if moment > after), None)

    def latest(self, cron: str, timezone: str, *, at: datetime) -> datetime | None:
        """The last one up to and including `at`."""
        # Backwards cronsim begins below the moment given; of one within a second, with that second.
        later = (at if at.microsecond else at + timedelta(microseconds=1)) + _repeated(at.astimezone(zone(timezone)))
        found = (moment.astimezone(UTC) for moment in self._sim(cron, timezone, later, reverse=True))
        return next((moment for moment in found if moment <= at), None)

    def told(self, cron: str) -> str:
        """In words."""
        return str(self._sim(cron, "UTC", datetime.now(UTC)).explain())

    def _sim(self, cron: str, timezone: str, moment: datetime, *, reverse: bool = False) -> CronSim:
        try:
            return CronSim(SHORTHANDS.get(cron.strip().lower(), cron), moment.astimezone(zone(timezone)), reverse)
        except CronSimError as error:
            message = f"'{cron[:80]}' is no cron expression: {error}"
            raise InvalidRequest(message, code="invalid_cron", hint=HINT) from error


def _repeated(local: datetime) -> timedelta:
    """Within an hour that comes the second time: how far the clock was put back; all times of its first coming have
    passed."""
    before, after = local.replace(fold=0).utcoffset(), local.utcoffset()
    return timedelta(0) if not local.fold or before is None or after is None else before - after


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """A time zone by its IANA name. Raises InvalidRequest ``unknown_timezone``."""
    try:
        if name in _OF_A_MACHINE or name.startswith(("posix/", "right/")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"'{name[:80]}' is no time zone", code="unknown_timezone", hint="an IANA name such as Europe/Berlin, or UTC"
        ) from error
