"""Cordons that outlive a worker, on both databases: by host and name, with the commands for who is alive."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from oah.core.model.ids import WorkerId
from oah.core.model.worker import WorkerReport, WorkerState
from oah.ports.commands import CommandKind
from tests.support.store_clerk import Clerk

W1 = WorkerReport(
    id=WorkerId("w.1"), name="w", host="ant", pid=1, pool="default", profiles=("shell",), state=WorkerState.BUSY,
    slots=4, busy=1, parked=0, cordoned=False, draining=False, version="1", started_at=datetime(2030, 1, 1, tzinfo=UTC),
)  # fmt: skip
V1 = replace(W1, id=WorkerId("v.1"), name="v", pool="gpu")
ELSEWHERE = replace(W1, id=WorkerId("w.7"), host="bee")
HOUR = timedelta(hours=1)


def audited(clerk: Clerk) -> list[str]:
    return [" ".join(row) for row in clerk.behind.query("SELECT action, subject FROM audit ORDER BY id")]


def test_a_name_stays_cordoned_until_it_is_taken_back(clerk: Clerk) -> None:
    store = clerk.store
    store.cordon_workers([W1, V1], lasting=None, by="op")
    kept = store.cordon_of("ant", "w")
    assert kept is not None and (kept.worker_id, kept.by, kept.until, kept.left) == ("w.1", "op", None, None)
    assert store.cordon_of("bee", "w") is None, "the same name on another host is another worker"
    assert ([each.name for each in store.cordons()], [each.name for each in store.cordons("gpu")]) == (
        ["v", "w"],
        ["v"],
    )
    [command] = store.take_commands(W1.id)
    assert (command.kind, dict(command.data)) == (CommandKind.CORDON, {"kept": True})
    store.cordon_workers([replace(W1, id=WorkerId("w.2"))], lasting=HOUR, by="other")
    again = store.cordon_of("ant", "w")
    assert again is not None and again.until is not None and again.left is not None
    assert (again.worker_id, again.by) == ("w.2", "other") and HOUR - again.left < timedelta(minutes=1)
    store.uncordon_workers([ELSEWHERE], by="op")
    assert store.cordon_of("ant", "w") is not None
    store.uncordon_workers([W1], [kept for kept in store.cordons() if kept.name == "v"], by="op")
    assert store.cordons() == []
    assert [each.kind for each in store.take_commands(W1.id)] == [CommandKind.UNCORDON]
    assert [each.kind for each in store.take_commands(V1.id)] == [CommandKind.CORDON], "nobody is there to be told"
    assert audited(clerk) == [
        "worker.cordon v.1",
        "worker.cordon w.1",
        "worker.cordon w.2",
        "worker.uncordon w.7",
        "worker.uncordon w.1",
        "worker.uncordon v.1",
    ]


def test_one_whose_time_is_over_is_none(clerk: Clerk) -> None:
    clerk.store.cordon_workers([W1], lasting=HOUR, by="op")
    clerk.store.cordon_workers([V1], lasting=timedelta(0), by="op")
    assert clerk.store.cordon_of("ant", "v") is None
    assert [each.name for each in clerk.store.cordons()] == ["w"]
    clerk.store.cordon_workers([ELSEWHERE], lasting=None, by="op")
    assert len(clerk.behind.query("SELECT name FROM worker_cordons")) == 2, "its row is gone"


def test_what_the_fleet_tells_a_worker_is_kept_for_nobody(clerk: Clerk) -> None:
    """Neither a drain nor a cordon by a rollout; and an uncordon by who scales takes nothing back that is kept."""
    clerk.store.cordon_workers([W1], lasting=None, by="op")
    for kind in (CommandKind.CORDON, CommandKind.DRAIN, CommandKind.UNCORDON):
        clerk.store.command_worker(V1.id, kind, by="rollout:ro_1")
    clerk.store.command_worker(W1.id, CommandKind.UNCORDON, by="scale")
    assert [each.name for each in clerk.store.cordons()] == ["w"]
