"""Rolling restarts over HTTP, driven by leaders that follow each other, with workers that do as they are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oah.core.model.drain import AtDeadline, Drain, drain_from
from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.commands import CommandKind
from oah.ports.telemetry import NullTelemetry
from oah.services.decisions import Decisions
from oah.services.rollouts import DriveRollouts
from tests.support.api import Deployment
from tests.support.clock import StillClock


class Crew:
    """Workers of a pool: what is drained ends, and its supervisor starts the next one at once."""

    def __init__(self, api: Deployment, *names: str) -> None:
        self.api = api
        self.heard: list[tuple[str, CommandKind, Drain]] = []
        self.lives = dict.fromkeys(names, 0)
        self.alive = {name: self.born(name) for name in names}

    def born(self, name: str, **more: object) -> WorkerReport:
        self.lives[name] += 1
        life = self.lives[name]
        worker_id = WorkerId(f"{name}.{life:032x}")
        begun = datetime.now(UTC) + timedelta(seconds=life)
        return self.api.report_worker(name=name, id=worker_id, version=f"{life}.0", started_at=begun, **more)

    def obeys(self, *, ends: bool = True) -> None:
        """All take their commands."""
        for name, report in list(self.alive.items()):
            for command in self.api.store.take_commands(report.id):
                self.heard.append((report.id.partition(".")[0], command.kind, drain_from(command.data)))
                drains = command.kind is CommandKind.DRAIN
                if drains and ends:
                    self.api.broker.forget(report.id)
                    self.alive[name] = self.born(name)
                else:
                    said = replace(report, draining=drains, cordoned=command.kind is not CommandKind.UNCORDON)
                    self.api.broker.report(said, ttl=timedelta(seconds=60))


def leader(api: Deployment) -> DriveRollouts:
    return DriveRollouts(api.store, api.broker, NullTelemetry(), Decisions(StillClock()))


def test_leaders_that_follow_each_other_drain_each_worker_once(api: Deployment) -> None:
    client, crew = api.client(), Crew(api, "a", "b", "c")
    made = client.restart_pool(
        "default", batch=2, deadline_seconds=9.5, then="wait", settle_seconds=0, version="2.0", reason="new image"
    )
    assert (made["state"], made["workers"], made["done"]) == ("running", 3, 0)
    with pytest.raises(Conflict) as caught:
        client.restart_pool("default")
    assert caught.value.code == "rollout_open"
    leaders = [leader(api), leader(api)]
    for number in range(12):
        leaders[number % 2]()
        crew.obeys()
    ended = client.wait_rollout(made["id"], timeout=5)
    assert (ended["state"], ended["done"], ended["error"]) == ("completed", 3, None)
    assert [(m["name"], m["stage"], m["version"], m["successor_version"]) for m in ended["members"]] == [
        (name, "done", "1.0", "2.0") for name in "abc"
    ]
    wish = Drain(timedelta(seconds=9.5), AtDeadline.WAIT)
    assert crew.heard == [(name, CommandKind.DRAIN, wish) for name in "abc"]
    assert client.rollouts(pool="default")[0]["id"] == made["id"] and client.rollouts(pool="gpu") == []
    actions = {row["action"]: row["actor"] for row in client.audit(action="rollout.")}
    assert actions["rollout.completed"] == f"rollout:{made['id']}" and actions["rollout.started"].startswith("key:")


def test_an_abort_lets_who_drains_serve_again(api: Deployment) -> None:
    client, crew = api.client(), Crew(api, "a", "b")
    made = client.restart_pool("default")
    drive = leader(api)
    drive()
    crew.obeys(ends=False)
    ended = client.abort_rollout(made["id"])
    assert (ended["state"], [m["stage"] for m in ended["members"]]) == ("aborted", ["released", "pending"])
    drive()
    crew.obeys(ends=False)
    assert [(name, kind) for name, kind, _ in crew.heard] == [("a", CommandKind.DRAIN), ("a", CommandKind.UNCORDON)]
    with pytest.raises(Conflict) as caught:
        client.abort_rollout(made["id"])
    assert caught.value.code == "rollout_ended"


def test_what_cannot_be_restarted_is_said_at_once(api: Deployment) -> None:
    client = api.client()
    with pytest.raises(NotFound):
        client.restart_pool("default")
    with pytest.raises(NotFound):
        client.rollout("ro_none")
    api.report_worker(name="inside", embedded=True)
    with pytest.raises(Conflict) as caught:
        client.restart_pool("default")
    assert caught.value.code == "workers_embedded"
    for wrong in ({"batch": 0}, {"then": "explode"}, {"version": "a\0b"}, {"health_seconds": 0}):
        with pytest.raises(InvalidRequest):
            client.restart_pool("default", **wrong)
