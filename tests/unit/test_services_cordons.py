"""Who is meant when a worker is gone, or has a successor."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.cordon import Cordon
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport, WorkerState
from oah.errors import Conflict, NotFound, Unavailable
from oah.services import cordons
from tests.support.worker_doubles import Scripted

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
W1 = WorkerReport(
    id=WorkerId("w.1"), name="w", host="ant", pid=1, pool="default", profiles=("shell",), state=WorkerState.BUSY,
    slots=4, busy=1, parked=0, cordoned=False, draining=False, version="1", started_at=BEGIN,
)  # fmt: skip
W2 = replace(W1, id=WorkerId("w.2"), started_at=BEGIN + timedelta(minutes=1))
KEPT = Cordon(host="ant", name="w", pool="default", worker_id=W1.id, by="op", at=BEGIN)
ELSEWHERE = replace(KEPT, host="bee", worker_id=WorkerId("w.7"))


def stores(*kept: Cordon, alive: list[WorkerReport]) -> tuple[Scripted, Scripted]:
    store = Scripted(cordons=[list(kept)], cordon_workers=[None], uncordon_workers=[None])
    return store, Scripted(workers=[alive], look=[Unavailable("away")])


def test_it_is_kept_for_the_latest_life_and_the_hint_may_be_lost() -> None:
    store, broker = stores(alive=[W1, W2])
    assert cordons.cordon(store, broker, "w", lasting=timedelta(hours=1), by="op") == cordons.Told(W2.id, "w")
    assert store.calls[-1] == ("cordon_workers", ([W2],), {"lasting": timedelta(hours=1), "by": "op"})


def test_one_that_is_gone_is_uncordoned_for_its_successor() -> None:
    for named in ("w", "w.1"):
        store, broker = stores(KEPT, alive=[])
        assert cordons.uncordon(store, broker, named, by="op") == cordons.Told(W1.id, "w", alive=False)
        assert store.calls[-1] == ("uncordon_workers", ([], [KEPT]), {"by": "op"})
    with pytest.raises(NotFound):
        cordons.uncordon(*stores(KEPT, alive=[]), "nobody", by="op")
    with pytest.raises(Conflict) as caught:
        cordons.uncordon(*stores(KEPT, ELSEWHERE, alive=[]), "w", by="op")
    assert caught.value.code == "ambiguous_worker"
    assert cordons.uncordon(*stores(KEPT, ELSEWHERE, alive=[]), "w.7", by="op").worker_id == "w.7"


def test_a_successor_that_is_named_by_an_earlier_life_is_told() -> None:
    store, broker = stores(KEPT, alive=[W2])
    assert cordons.uncordon(store, broker, "w.1", by="op") == cordons.Told(W2.id, "w")
    assert store.calls[-1][1] == ([W2], [])


def test_a_pool_is_told_and_what_is_kept_for_those_that_are_gone_is_taken_back() -> None:
    store, broker = stores(KEPT, ELSEWHERE, alive=[W2])
    told = cordons.uncordon_pool(store, broker, "default", by="op")
    assert [(each.worker_id, each.alive) for each in told] == [("w.2", True), ("w.7", False)]
    assert [each.alive for each in cordons.uncordon_pool(*stores(KEPT, alive=[]), "default", by="op")] == [False]
    with pytest.raises(NotFound):
        cordons.uncordon_pool(*stores(alive=[W2]), "gpu", by="op")
    assert [alive for _, alive in cordons.listed(*stores(KEPT, ELSEWHERE, alive=[W2]))] == [True, False]
