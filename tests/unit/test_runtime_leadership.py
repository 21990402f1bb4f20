"""Leadership: two candidates, a broker that can fail, a clock that the test moves."""

from datetime import timedelta

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.errors import Unavailable
from oah.runtime.leadership import CONTEND, Leadership
from tests.support import eventually
from tests.support.clock import StillClock

LEASE = timedelta(seconds=15)


class Keeper:
    """The lease as a broker keeps it, by the test's clock."""

    def __init__(self, clock: StillClock) -> None:
        self.clock, self.holder, self.until, self.away = clock, "", 0.0, False

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        if self.away:
            raise Unavailable("away")
        if self.clock.seconds >= self.until or self.holder == holder:
            self.holder, self.until = holder, self.clock.seconds + lease.total_seconds()
        return self.holder == holder

    def resign(self, holder: str) -> None:
        if self.away:
            raise Unavailable("away")
        if self.holder == holder:
            self.holder, self.until = "", 0.0


class Candidate(Leadership):
    def __init__(self, keeper: Keeper, holder: str, telemetry: PrometheusTelemetry | None = None) -> None:
        self.journal: list[str] = []
        super().__init__(
            keeper,
            holder,
            clock=keeper.clock,
            lease=LEASE,
            telemetry=telemetry,
            on_gain=lambda: self.journal.append("gain"),
            on_loss=lambda: self.journal.append("loss"),
        )


@pytest.fixture
def keeper() -> Keeper:
    return Keeper(StillClock())


def test_one_leads_the_other_contends(keeper: Keeper) -> None:
    first, second = Candidate(keeper, "a"), Candidate(keeper, "b")
    assert first.campaign() is None
    assert second.campaign() == CONTEND
    assert (first.leads(), second.leads()) == (True, False)
    keeper.clock.seconds += 14
    assert first.campaign() is None
    keeper.clock.seconds += 14
    assert second.campaign() == CONTEND
    assert first.journal == ["gain"]


def test_the_lease_ends_by_the_clock_without_anybody_telling(keeper: Keeper) -> None:
    first, second = Candidate(keeper, "a"), Candidate(keeper, "b")
    first.campaign()
    keeper.clock.seconds += 15
    assert not first.leads()
    second.campaign()
    assert second.leads()
    first.campaign()
    assert (first.journal, first.leads()) == (["gain", "loss"], False)


def test_validity_counts_from_before_the_call(keeper: Keeper) -> None:
    class SlowKeeper(Keeper):
        def lead(self, holder: str, *, lease: timedelta) -> bool:
            answer = super().lead(holder, lease=lease)
            self.clock.seconds += 10
            return answer

    slow = SlowKeeper(keeper.clock)
    first = Candidate(slow, "a")
    first.campaign()
    assert first.leads()
    slow.clock.seconds += 5
    assert not first.leads()


def test_an_unreachable_broker_ends_it_only_with_the_lease(keeper: Keeper) -> None:
    first = Candidate(keeper, "a")
    first.campaign()
    keeper.away = True
    keeper.clock.seconds += 10
    with pytest.raises(Unavailable):
        first.campaign()
    assert first.leads()
    keeper.clock.seconds += 5
    for _ in range(2):
        with pytest.raises(Unavailable):
            first.campaign()
    assert first.journal == ["gain", "loss"]
    keeper.away = False
    first.campaign()
    assert first.journal == ["gain", "loss", "gain"]


def test_a_pass_longer_than_the_lease_gives_it_up_until_it_ends(keeper: Keeper) -> None:
    first, second = Candidate(keeper, "a"), Candidate(keeper, "b")
    first.campaign()
    with first.acting():
        for _ in range(4):
            keeper.clock.seconds += 5
            first.campaign()
        assert not first.leads()
        assert keeper.holder == ""
        second.campaign()
        assert second.leads()
        assert first.campaign() == CONTEND
    second_until = keeper.until
    assert first.campaign() == CONTEND
    assert (keeper.holder, keeper.until) == ("b", second_until)


def test_only_the_leader_works(keeper: Keeper) -> None:
    first, done = Candidate(keeper, "a"), []

    def work() -> timedelta:
        done.append(1)
        return timedelta(seconds=3)

    gated = first.only(work)
    assert gated() is None
    assert done == []
    first.campaign()
    assert gated() == timedelta(seconds=3)
    assert done == [1]


def test_a_failing_pass_is_not_taken_for_a_hanging_one(keeper: Keeper) -> None:
    first = Candidate(keeper, "a")
    first.campaign()

    def work() -> None:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        first.only(work)()
    keeper.clock.seconds += 14
    first.campaign()
    keeper.clock.seconds += 14
    first.campaign()
    assert first.leads()


@pytest.mark.parametrize("away", [False, True])
def test_who_stops_resigns(keeper: Keeper, away: bool) -> None:
    telemetry = PrometheusTelemetry(process="test", version="0")
    first = Candidate(keeper, "a", telemetry)
    first.start()
    eventually(first.leads)
    eventually(lambda: telemetry.value("oah_leader") == 1)
    keeper.away = away
    first.stop(timedelta(0))
    assert first.join(timedelta(seconds=10))
    assert first.failure is None
    assert keeper.holder == ("a" if away else "")
    assert first.journal == ["gain", "loss"]
    assert telemetry.value("oah_leader") == 0
