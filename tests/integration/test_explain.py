"""What has not moved for too long, as the services, the API's document and the leader's figures tell it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.api.looks import Looks
from oah.core.model.lane import Lane
from oah.core.model.run import RunStatus
from oah.core.model.session import HoldReason
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.services.explain import diagnose, told, wait_reasons
from oah.services.measure import MeasureQueues
from tests.model.world import LEASE, SECOND, World
from tests.support.worlds import MakeWorld

SERVED = Lane("default", "shell")


def _told(world: World, **more: Any) -> dict[str, Any]:
    return told(diagnose(world.store, world.broker, None, lease=LEASE, **more))


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    made = make_world(sessions=2)
    made.broker.lead("somebody", lease=timedelta(minutes=5))
    return made


def test_a_quiet_deployment_has_nothing_to_tell(world: World) -> None:
    document = _told(world)
    lists = ("silent", "unheeded", "unkillable", "undelivered", "waiting", "unplaced", "unserved_lanes", "truncated")
    assert {name: document[name] for name in lists} == {name: [] for name in lists}
    assert (document["leader"], document["broker_away"], document["waiting_reasons"]) == (True, False, {})


def test_runs_that_wait_for_long_say_why(world: World) -> None:
    lone, behind = (world.submit(world.sessions[0]).run for _ in range(2))
    paused = world.submit(world.sessions[1]).run
    world.store.hold_session(world.sessions[1], None, HoldReason.PAUSED, until_in=None)
    world.advance(100)
    document = _told(world)
    codes = {each["run_id"]: each["wait_reason"]["code"] for each in document["waiting"]}
    assert codes == {lone.id: "no_worker", behind.id: "behind_run", paused.id: "session_held"}
    assert document["waiting_reasons"] == {"no_worker": 1, "behind_run": 1, "session_held": 1}
    assert document["oldest_waiting_seconds"] >= 99
    assert document["unserved_lanes"] == [{"lane": str(SERVED), "sessions": 2, "withdrawn": {}}]
    assert document["unplaced"] == []
    assert _told(world, waiting_for=timedelta(hours=1))["waiting"] == []
    assert _told(world, limit=1)["truncated"] == ["waiting"]


def test_sessions_that_the_broker_forgot(world: World) -> None:
    run = world.submit(world.sessions[0], heard=False).run
    world.advance(100)
    assert _told(world)["unplaced"] == [run.session_id]
    world.lead(0, "relay")
    assert _told(world)["unplaced"] == []


def test_a_dead_owner_and_an_unheeded_cancel(world: World) -> None:
    run = world.submit(world.sessions[0]).run
    world.workers["w1"].claim()
    world.workers["w1"].start()
    worker_id = world.workers["w1"].id
    world.store.cancel(run.id, None, by="somebody")
    world.workers["w1"].entries.clear()
    world.sql.execute(_long_ago(world))
    world.advance(LEASE / SECOND + 1)
    document = _told(world)
    for name in ("silent", "unheeded"):
        assert [(each["run_id"], each["worker_id"]) for each in document[name]] == [(run.id, worker_id)], name
    world.lead(0, "sweep")
    document = _told(world)
    assert (document["silent"], document["unheeded"]) == ([], [])
    assert world.store.run(run.id, None).status is RunStatus.CANCELLED


def _long_ago(world: World) -> str:
    sqlite = type(world.sql).__name__.startswith("Sqlite")
    hour = "3600000000" if sqlite else "interval '1 hour'"
    return f"UPDATE runs SET cancel_requested_at = cancel_requested_at - {hour}"


def test_without_the_broker_sql_alone_is_asked(world: World) -> None:
    run = world.submit(world.sessions[0]).run
    world.advance(100)
    leader = world.leaders[0]
    leader.broker.fails.add("view")
    document = told(diagnose(leader.store, leader.broker, None, lease=LEASE))  # type: ignore[arg-type]
    assert (document["broker_away"], document["waiting_reasons"]) == (True, {"broker_away": 1})
    leader.broker.fails.add("view")
    reasons = wait_reasons(leader.store, Looks(leader.broker), [run])  # type: ignore[arg-type]
    assert reasons[run.id].code == "broker_away"


def test_while_the_queues_are_rebuilt(world: World) -> None:
    run = world.submit(world.sessions[0]).run
    world.flush()
    assert wait_reasons(world.store, Looks(world.broker), [run])[run.id].code == "rebuilding"
    world.lead(0, "epoch")
    assert wait_reasons(world.store, Looks(world.broker), [run])[run.id].code == "no_worker"


def test_a_workspace_at_its_cap(world: World) -> None:
    world.store.update_workspace(DEFAULT_WORKSPACE, {"max_active_runs": 1})
    for session in world.sessions:
        world.submit(session)
    world.workers["w1"].claim(want=1)
    world.workers["w1"].start()
    [waiting] = [run for run in (world.store.run(name, None) for name in world.accepted) if run.status == "queued"]
    assert wait_reasons(world.store, Looks(world.broker), [waiting])[waiting.id].code == "no_worker", "first of all"
    facts = world.store.waits([waiting.id])[waiting.id]
    assert [(cap.active, cap.most) for cap in facts.caps] == [(1, 1)]


def test_the_leader_shows_it_as_figures(world: World) -> None:
    telemetry = PrometheusTelemetry(process="test", version="0")
    measure = MeasureQueues(world.store, world.broker, telemetry, LEASE, world.clock)
    for session in world.sessions:
        world.submit(session)
    world.store.hold_session(world.sessions[1], None, HoldReason.UNKILLABLE, until_in=None)
    world.advance(100)
    measure()
    text = telemetry.exposition()[0].decode()
    for line in (
        "oah_unkillable_sessions 1.0",
        "oah_cancels_unheeded 0.0",
        'oah_long_waiting_runs{reason="no_worker"} 1.0',
        'oah_long_waiting_runs{reason="session_held"} 1.0',
        'oah_long_waiting_runs{reason="behind_run"} 0.0',
        'oah_lane_without_worker_sessions{lane="default/shell"} 2.0',
        "oah_sessions_without_place 0.0",
    ):
        assert line in text, f"{line}\n{text}"
    assert "oah_oldest_waiting_age_seconds 10" in text
    world.workers["w1"].claim()
    measure()
    assert 'oah_lane_without_worker_sessions{lane="default/shell"}' not in telemetry.exposition()[0].decode()
    measure.clear()
    assert "oah_unkillable_sessions 1.0" not in telemetry.exposition()[0].decode()
