"""What is wrong between SQL and the broker about one session."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.core.model.ids import ClaimToken
from oah.core.model.session import Place
from oah.core.policy.ready_faults import LEADERS, WORDS, Fault, Owned, of_owner, of_queued, of_ready

LEASE = timedelta(seconds=6)
MINE, OTHER = ClaimToken("a" * 32), ClaimToken("b" * 32)


@pytest.mark.parametrize(
    ("age", "place", "token", "fault"),
    [
        (0.5, Place.LEASED, MINE, None),
        (0.5, Place.PARKED, MINE, None),
        (0.5, Place.LEASED, OTHER, Fault.OWNER_WITHOUT_LEASE),
        (0.5, Place.IDLE, None, Fault.OWNER_WITHOUT_LEASE),
        (0.5, Place.READY, None, Fault.READY_WHILE_OWNED),
        (7.0, Place.LEASED, MINE, Fault.STALE_OWNER),
    ],
)
def test_an_owner_against_its_lease(age: float, place: Place, token: ClaimToken | None, fault: Fault | None) -> None:
    assert of_owner(Owned(timedelta(seconds=age), MINE, place, token), lease=LEASE) is fault


@pytest.mark.parametrize(
    ("place", "eligible", "held", "fault"),
    [
        (Place.READY, True, False, None),
        (Place.HELD, True, False, None),
        (Place.IDLE, True, False, Fault.NO_PLACE),
        (Place.LEASED, True, False, Fault.LEASE_WITHOUT_OWNER),
        (Place.IDLE, False, False, None),
        (Place.IDLE, True, True, None),
        (Place.READY, True, True, Fault.READY_WHILE_HELD),
    ],
)
def test_a_waiting_session_against_its_place(place: Place, eligible: bool, held: bool, fault: Fault | None) -> None:
    assert of_queued(place, held=held, eligible=eligible) is fault


@pytest.mark.parametrize(
    ("known", "owned", "held", "eligible", "fault"),
    [
        (True, False, False, True, None),
        (True, False, False, False, Fault.STALE),
        (True, False, True, True, Fault.READY_WHILE_HELD),
        (True, True, False, True, Fault.READY_WHILE_OWNED),
        (False, False, False, False, Fault.FOREIGN),
    ],
)
def test_what_is_offered_against_sql(known: bool, owned: bool, held: bool, eligible: bool, fault: Fault | None) -> None:
    assert of_ready(known=known, eligible=eligible, held=held, owned=owned) is fault


def test_every_fault_has_words() -> None:
    assert WORDS.keys() == set(Fault) > LEADERS
