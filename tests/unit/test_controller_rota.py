"""Which duty of a leader is called when."""

from datetime import timedelta

import pytest

from oah.controller.duties import Acting, Duty, Rota
from oah.errors import EpochMismatch, Unavailable
from oah.runtime.leadership import Leadership
from tests.support.clock import StillClock


class Keeper:
    """Counts how often the epoch was read again."""

    refreshed = 0

    def refresh(self) -> None:
        self.refreshed += 1


class Calls(list[str]):
    """Duties that write their names here, and fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: dict[str, Exception] = {}

    def duty(self, name: str, every: float) -> Duty:
        def do() -> None:
            self.append(name)
            if name in self.fail:
                raise self.fail[name]

        return Duty(name, timedelta(seconds=every), do)

    def taken(self) -> list[str]:
        names = list(self)
        self.clear()
        return names


def _rota(calls: Calls, clock: StillClock, keeper: Keeper, leads: list[bool]) -> Rota:
    duties = [calls.duty("epoch", 0), calls.duty("sweep", 0), calls.duty("audit", 15), calls.duty("measure", 5)]
    return Rota(duties, clock, keeper, going_on=lambda: leads[0])  # type: ignore[arg-type]


def test_everything_at_first_then_as_often_as_asked() -> None:
    calls, clock = Calls(), StillClock()
    rota = _rota(calls, clock, Keeper(), [True])
    rota()
    assert calls.taken() == ["epoch", "sweep", "audit", "measure"]
    clock.seconds += 1
    rota()
    assert calls.taken() == ["epoch", "sweep"]
    clock.seconds += 4
    rota()
    assert calls.taken() == ["epoch", "sweep", "measure"]
    clock.seconds += 10
    rota()
    assert calls.taken() == ["epoch", "sweep", "audit", "measure"]


def test_a_duty_that_always_fails_starves_no_other() -> None:
    calls, clock = Calls(), StillClock()
    rota = _rota(calls, clock, Keeper(), [True])
    calls.fail["audit"] = Unavailable("away")
    with pytest.raises(Unavailable):
        rota()
    assert calls.taken() == ["epoch", "sweep", "audit"]
    clock.seconds += 1
    rota()
    assert calls.taken() == ["epoch", "sweep", "measure"]


def test_another_epoch_is_read_again_before_the_next_pass() -> None:
    calls, keeper = Calls(), Keeper()
    rota = _rota(calls, StillClock(), keeper, [True])
    calls.fail["sweep"] = EpochMismatch("other")
    with pytest.raises(EpochMismatch):
        rota()
    assert keeper.refreshed == 1


def test_leadership_is_looked_at_before_each_duty() -> None:
    calls, leads = Calls(), [True]
    rota = _rota(calls, StillClock(), Keeper(), leads)
    leads[0] = False
    rota()
    assert calls.taken() == []


def test_a_new_leadership_owes_everything() -> None:
    calls = Calls()
    rota = _rota(calls, StillClock(), Keeper(), [True])
    rota()
    calls.clear()
    rota.restart()
    rota()
    assert calls.taken() == ["epoch", "sweep", "audit", "measure"]


class Lease:
    """A leader lease that nobody contests."""

    def lead(self, holder: str, *, lease: timedelta) -> bool:
        return True

    def resign(self, holder: str) -> None: ...


def _leadership(clock: StillClock) -> Leadership:
    leadership = Leadership(Lease(), "a", clock=clock, lease=timedelta(seconds=15))
    leadership.campaign()
    assert leadership.leads()
    return leadership


@pytest.mark.parametrize("steps", [True, False])
def test_a_long_pass_keeps_the_lease_while_it_takes_steps_and_loses_it_when_it_hangs(steps: bool) -> None:
    clock = StillClock()
    leadership = _leadership(clock)
    acting = Acting(leadership)
    led: list[bool] = []

    def work() -> None:
        for _ in range(4):
            clock.seconds += 6
            if steps:
                acting.going_on()
            leadership.campaign()
            led.append(leadership.leads())

    acting.only(work)()
    assert led == ([True] * 4 if steps else [True, True, False, False])


def test_nothing_is_done_and_nothing_hangs_without_the_lease() -> None:
    clock = StillClock()
    leadership = _leadership(clock)
    acting = Acting(leadership)
    acting.only(lambda: None)()
    clock.seconds += 60
    calls: list[int] = []
    acting.only(lambda: calls.append(1))()
    assert calls == []
    leadership.campaign()
    assert leadership.leads()
