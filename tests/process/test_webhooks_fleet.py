"""Webhooks across processes: whoever is killed in between, a receiver hears of the run, and the log says all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from oah.cli.main import oah
from oah.testing import processes
from oah.testing.fleet import API, CONTROLLER, Fleet
from tests.support.receiver import Receiver, status
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SETTINGS = {
    "OAH_WEBHOOKS__ALLOW_PRIVATE": "true",
    "OAH_WEBHOOKS__RETRY_SECONDS": "0.2",
    "OAH_WEBHOOKS__LONGEST_RETRY_SECONDS": "0.5",
    "OAH_WEBHOOKS__LONGEST_PAUSE_SECONDS": "0.5",
    "OAH_CONTROLLER__LEADER_LEASE_SECONDS": "3",
    "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1",
}


def performer(fleet: Fleet) -> int:
    """The child process that performs maintenance jobs."""

    def look() -> list[int]:
        found = processes.children(fleet.pids.get(CONTROLLER, 0))
        return [pid for pid in found if "job run" in processes.command(pid)]

    return eventually(look, within=30)[0]


def delivered(fleet: Fleet, webhook: str, count: int, *, within: float = 60) -> list[dict[str, Any]]:
    """Its deliveries once so many have arrived."""

    def look() -> list[dict[str, Any]] | None:
        found = fleet.client.webhook_deliveries(webhook, state="delivered")
        return found if len(found) >= count else None

    return eventually(look, within=within)


def test_killed_in_between_a_receiver_hears_of_every_run(start_fleet: Callable[..., Fleet], receiver: Receiver) -> None:
    fleet = start_fleet(workers=1, env=SETTINGS)
    made = fleet.client.create_webhook(receiver.url, timeout=1)
    webhook, secret = made["id"], made["secret"]
    session = fleet.client.create_session("noop")["id"]

    receiver.answers = [receiver.silence, status(500), status(204)]
    first = fleet.client.submit(session, "one")["id"]
    eventually(lambda: receiver.got, within=30, what="the first try is on its way")
    os.kill(performer(fleet), signal.SIGKILL)
    fleet.kill(API)
    fleet.restart(API)
    fleet.wait_ready()
    [delivery] = delivered(fleet, webhook, 1)
    assert delivery["run_id"] == first
    assert [entry["outcome"] for entry in delivery["log"]] == ["interrupted", "failed", "delivered"]
    assert len({(got.id, got.body) for got in receiver.got}) == 1
    assert receiver.got[-1].verified(secret)["run"]["id"] == first

    fleet.kill(CONTROLLER)
    runs = {first, *(fleet.client.submit(session, f"further {number}")["id"] for number in range(5))}
    for run in runs:
        assert fleet.client.wait(run, timeout=30)["status"] == "completed"
    assert len(receiver.got) == 3, "nobody is there who would deliver"
    fleet.restart(CONTROLLER)
    found = delivered(fleet, webhook, len(runs))
    assert {each["run_id"] for each in found} == runs
    assert {got.verified(secret)["run"]["id"] for got in receiver.got} == runs

    receiver.released.set()
    again = fleet.client.redeliver(webhook, delivery["id"])
    assert again["state"] == "pending"
    eventually(lambda: [got.id for got in receiver.got].count(delivery["id"]) == 4, within=30)


def test_one_process_delivers_too_and_the_command_line_shows_it(
    start_fleet: Callable[..., Fleet], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = start_fleet(workers=0, controller=False, api_with_workers=True, redis_url="memory://", env=SETTINGS)
    for name, value in (("OAH_API_URL", fleet.url), ("OAH_API_KEY", fleet.key)):
        monkeypatch.setenv(name, value)

    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(oah, ["webhook", *words])
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    secret = call("create", receiver.url, "--event", "run.completed", "--description", "ours").strip()
    [webhook] = [each["id"] for each in fleet.client.webhooks()]
    assert webhook in call("list")
    assert "secret" not in call("show", webhook, "--json")
    assert "delivered 204" in call("test", webhook)
    assert receiver.got[0].verified(secret)["type"] == "webhook.test"
    receiver.answers = [status(503)]
    assert "failed 503" in call("test", webhook, code=1)
    receiver.answers = [status(204)]
    call("update", webhook, "--event", "run.*", "--timeout", "3s", "--json")
    call("update", webhook, code=2)
    session = fleet.client.create_session("noop")["id"]
    run = fleet.client.submit(session, "x")["id"]
    found = delivered(fleet, webhook, 2, within=30)
    [delivery] = [each for each in found if each["run_id"] == run]
    assert run in call("deliveries", webhook)
    assert call("redeliver", webhook, delivery["id"]) == f"{delivery['id']} pending\n"
    eventually(lambda: [got.id for got in receiver.got].count(delivery["id"]) == 2, within=20)
    eventually(lambda: "oah_webhook_deliveries_pending 0.0" in fleet.client.metrics(), within=30)
    assert 'oah_webhook_deliveries_total{outcome="delivered"}' in fleet.client.metrics()
    call("delete", webhook)
    call("show", webhook, code=3)
    call("create", "http://user@example.org/", code=2)
