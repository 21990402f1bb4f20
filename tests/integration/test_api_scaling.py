"""Decisions of scaling as operators read them."""

from datetime import UTC, datetime

from oah.core.model.ids import WorkerId
from oah.core.model.scaling import Going
from oah.ports.scaling import NewDecision, Outcome
from tests.support.api import Deployment


def decide(api: Deployment, number: int, *, pool: str, outcome: Outcome = Outcome.SCALED, **more: object) -> None:
    api.store.add_decision(
        NewDecision(
            id=f"dec_{number}", pool=pool, target="processes", holder="here.1", current=3, desired=1,
            reason="scale_down", outcome=outcome, inputs={"ready": 0}, detail={"size": 1}, **more,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def test_decisions_are_listed_by_pool_and_page(api: Deployment) -> None:
    going = {"worker-2": Going(datetime(2026, 1, 2, tzinfo=UTC), WorkerId("worker-2.a"))}
    decide(api, 1, pool="default")
    decide(api, 2, pool="gpu", outcome=Outcome.DRAINING, going=going)
    decide(api, 3, pool="default", outcome=Outcome.FAILED)
    client = api.client()
    assert [each["id"] for each in client.scale_decisions()] == ["dec_3", "dec_2", "dec_1"]
    assert [each["id"] for each in client.scale_decisions(pool="default", limit=1)] == ["dec_3"]
    [found] = client.scale_decisions(pool="gpu")
    assert found.pop("at").endswith("Z")
    assert found.pop("going")["worker-2"]["worker_id"] == "worker-2.a"
    assert found == {
        "id": "dec_2",
        "pool": "gpu",
        "target": "processes",
        "holder": "here.1",
        "current": 3,
        "desired": 1,
        "reason": "scale_down",
        "outcome": "draining",
        "inputs": {"ready": 0},
        "detail": {"size": 1},
    }
    shown = client.pool("gpu")
    assert (shown["desired"], [each["id"] for each in shown["decisions"]]) == (1, ["dec_2"])
    with api.http() as http:
        assert http.get("/v1/controller/decisions", params={"cursor": "x"}).status_code == 400
        assert http.get("/v1/controller/decisions", params={"limit": 0}).status_code == 422
