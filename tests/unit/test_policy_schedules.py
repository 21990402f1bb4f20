"""What becomes of a fire time: at most one run, the latest, and never twice what stands for a miss."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oah.adapters.cron.times import CronSimTimes
from oah.core.model.run import RunStatus
from oah.core.model.schedule import Overlap
from oah.core.policy.schedules import Plan, Rules, View, plan
from oah.errors import InvalidRequest

DUE = datetime(2030, 1, 1, tzinfo=UTC)
RULES = Rules(timedelta(seconds=60))
TIMES = CronSimTimes()


def view(late: float, behind: float = 0, overlap: Overlap = Overlap.SKIP, previous: RunStatus | None = None) -> View:
    latest = DUE + timedelta(seconds=behind)
    return View(DUE, latest, latest + timedelta(seconds=late), overlap, previous)


@pytest.mark.parametrize(
    ("given_view", "wanted"),
    [
        (view(0), Plan(fire=DUE)),
        (view(60), Plan(fire=DUE)),
        (view(61), Plan(missed=DUE)),
        (view(1, behind=600), Plan(missed=DUE, fire=DUE + timedelta(seconds=600))),
        (view(0, previous=RunStatus.RUNNING), Plan(skip=DUE)),
        (view(0, previous=RunStatus.QUEUED), Plan(skip=DUE)),
        (view(0, previous=RunStatus.COMPLETED), Plan(fire=DUE)),
        (view(0, overlap=Overlap.QUEUE, previous=RunStatus.RUNNING), Plan(fire=DUE)),
        (view(0, overlap=Overlap.CANCEL_PREVIOUS, previous=RunStatus.RUNNING), Plan(fire=DUE, cancel=True)),
        (view(0, overlap=Overlap.CANCEL_PREVIOUS, previous=RunStatus.FAILED), Plan(fire=DUE)),
        (view(61, overlap=Overlap.CANCEL_PREVIOUS, previous=RunStatus.RUNNING), Plan(missed=DUE)),
    ],
)
def test_a_table(given_view: View, wanted: Plan) -> None:
    assert plan(given_view, RULES) == wanted


@given(
    st.floats(0, 10_000),
    st.floats(0, 10_000),
    st.sampled_from(list(Overlap)),
    st.one_of(st.none(), st.sampled_from(list(RunStatus))),
)
def test_at_most_one_run_and_everything_is_told(
    late: float, behind: float, overlap: Overlap, previous: RunStatus | None
) -> None:
    given_view = view(late, behind, overlap, previous)
    decided = plan(given_view, RULES)
    assert not (decided.fire and decided.skip)
    assert decided.fire or decided.skip or decided.missed, "nothing passes in silence"
    for moment in (decided.fire, decided.skip):
        assert moment in (None, given_view.latest)
    assert not decided.cancel or decided.fire
    if given_view.latest > DUE:
        assert decided.missed == DUE


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2031, 1, 1)),
    st.sampled_from(["Europe/Berlin", "UTC", "America/New_York"]),
)
def test_next_and_latest_agree(naive: datetime, zone: str) -> None:
    """Whatever the clock of a zone does, the latest time up to the next one is the next one."""
    at = naive.replace(tzinfo=UTC)
    for cron in ("*/7 * * * *", "0 9 * * MON-FRI", "*/10 * * * * *"):
        following = TIMES.next(cron, zone, after=at)
        assert following is not None and following > at
        assert TIMES.latest(cron, zone, at=following) == following
        assert TIMES.latest(cron, zone, at=following + timedelta(microseconds=5)) == following


def test_the_hours_of_the_clock_change() -> None:
    def times(cron: str, after: datetime, count: int) -> list[str]:
        found = []
        while len(found) < count:
            following = TIMES.next(cron, "Europe/Berlin", after=after)
            assert following is not None
            found.append(following.isoformat())
            after = following
        return found

    spring = times("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 2)
    assert spring == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"], "not left out: it comes after the gap"
    autumn = times("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    assert autumn == ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"], "once, although there are two 02:30"
    assert len(set(times("*/30 * * * *", datetime(2026, 10, 24, 23, 55, tzinfo=UTC), 6))) == 6


@pytest.mark.parametrize(
    ("zone", "day"),
    [("Europe/Berlin", (2026, 10, 25)), ("Europe/London", (2026, 10, 25)), ("Australia/Lord_Howe", (2026, 4, 4)),
     ("Africa/Cairo", (2026, 4, 23)), ("Europe/Berlin", (2026, 3, 29))],
)  # fmt: skip
def test_inside_an_hour_that_comes_twice_the_next_is_later_and_the_latest_is_the_last(
    zone: str, day: tuple[int, int, int]
) -> None:
    """A schedule that is made, or a controller that comes back, in its second coming."""
    begin = datetime(*day, tzinfo=UTC) - timedelta(hours=6)
    for cron in ("30 2 * * *", "30 1 * * *", "0,15,30,45 0-4 * * *", "*/30 2 * * *", "15 0 2 * * *"):
        for minute in range(0, 24 * 60, 7):
            at = begin + timedelta(minutes=minute, seconds=3)
            latest, following = TIMES.latest(cron, zone, at=at), TIMES.next(cron, zone, after=at)
            assert latest is not None and following is not None and latest <= at < following, (cron, at)
            assert TIMES.next(cron, zone, after=latest) == following, (cron, at, "nothing between them")


@pytest.mark.parametrize("cron", ["", "x", "* * * *", "61 * * * *", "0 0 31 2 *", "@never", "* * * * * * *"])
def test_what_is_no_expression(cron: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TIMES.check(cron, "UTC")
    assert caught.value.code == "invalid_cron"


@pytest.mark.parametrize(
    "zone", ["", "localtime", "right/UTC", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe"]
)
def test_what_is_no_time_zone(zone: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TIMES.check("* * * * *", zone)
    assert caught.value.code == "unknown_timezone"
