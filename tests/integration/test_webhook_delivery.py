"""From the end of a run to a receiver: signed, repeated until it is taken, logged, and given up where that is right."""

from __future__ import annotations

from datetime import timedelta

import pytest

from oah.adapters.http.sender import HttpCoreSender
from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.core.model.run import RunStatus
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy import addresses
from oah.core.policy.webhooks import Rules
from oah.errors import InvalidRequest
from oah.ports.dead_letters import LetterFilter, LetterKind
from oah.ports.webhooks import Delivery, DeliveryState
from oah.services import webhooks
from oah.services.deliver import DeliverWebhook
from tests.support.receiver import Receiver, status
from tests.support.store_clerk import Clerk

INSIDE = addresses.Rules(allow_private=True)
QUICK = Rules(
    tries=4, first=timedelta(milliseconds=1), factor=1.0, pause=timedelta(milliseconds=1), longest_pause=timedelta(0)
)


class Desk:
    """A webhook on a store, and who delivers it."""

    def __init__(self, clerk: Clerk, url: str, *, rules: Rules = QUICK, where: addresses.Rules = INSIDE) -> None:
        self.clerk = clerk
        self.ids = SystemIds()
        self.telemetry = PrometheusTelemetry(process="test", version="1")
        made = webhooks.create(
            clerk.store,
            self.ids,
            webhooks.Limits(INSIDE, timedelta(seconds=0.3)),
            workspace_id=DEFAULT_WORKSPACE,
            url=url,
            events=None,
            description=None,
            timeout_seconds=None,
            secret=None,
            by="someone",
        )
        self.id, self.secret = made.webhook.id, made.secret
        self.deliver = DeliverWebhook(
            clerk.store, HttpCoreSender(where), SystemClock(), self.ids, self.telemetry, rules, version="1"
        )

    def end_run(self, run_id: str, status: RunStatus = RunStatus.COMPLETED) -> None:
        self.clerk.submit(run_id=run_id, input="secret input")
        self.clerk.settle(self.clerk.start(), status)

    def until_done(self) -> None:
        """As a queue would: again when it says so, at once where that is soon."""
        for _ in range(100):
            wait = self.deliver(self.id)
            if wait is None:
                return
            assert wait < timedelta(seconds=2), wait
        raise AssertionError("it goes on for ever")

    @property
    def deliveries(self) -> list[Delivery]:
        return list(self.clerk.store.deliveries(self.id, None).items)[::-1]

    def counted(self, outcome: str) -> float:
        text, _ = self.telemetry.exposition()
        name = f'oah_webhook_deliveries_total{{outcome="{outcome}"}} '
        return sum(float(line.removeprefix(name)) for line in text.decode().splitlines() if line.startswith(name))


def test_a_run_that_ended_is_told_signed(clerk: Clerk, receiver: Receiver) -> None:
    desk = Desk(clerk, receiver.url)
    desk.end_run("a")
    desk.end_run("b", RunStatus.FAILED)
    desk.until_done()
    bodies = {got.verified(desk.secret)["run"]["id"]: got.verified(desk.secret) for got in receiver.got}
    assert {run: body["type"] for run, body in bodies.items()} == {"a": "run.completed", "b": "run.failed"}
    for got in receiver.got:
        assert got.headers["content-type"] == "application/json"
        assert got.headers["user-agent"].startswith("oah-webhooks/")
        assert got.id == got.verified(desk.secret)["id"]
        assert b"secret input" not in got.body
    numbers = [bodies[run]["number"] for run in ("a", "b")]
    assert numbers == sorted(numbers), "what receivers order by"
    assert {each.state for each in desk.deliveries} == {DeliveryState.DELIVERED}
    assert desk.counted("delivered") == 2


def test_failures_are_repeated_until_one_is_taken(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [status(500, "busy"), status(302, location="/"), receiver.hang_up, status(200, "thanks")]
    desk = Desk(clerk, receiver.url)
    desk.end_run("a")
    desk.until_done()
    assert len({(got.id, got.body) for got in receiver.got}) == 1, "one message, four times"
    [delivery] = desk.deliveries
    assert delivery.state is DeliveryState.DELIVERED
    outcomes = [(entry["try"], entry["outcome"], entry.get("status")) for entry in delivery.log]
    assert outcomes == [(1, "failed", 500), (2, "failed", 302), (3, "failed", None), (4, "delivered", 200)]
    assert delivery.log[0]["excerpt"] == "busy"
    assert delivery.log[2]["error"].startswith("protocol:")
    assert all(entry["duration_ms"] >= 0 and entry["at"].endswith("Z") for entry in delivery.log)
    assert (desk.counted("retried"), desk.counted("delivered")) == (3, 1)


def test_a_receiver_that_takes_too_long_is_a_failure(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [receiver.silence, status(204)]
    desk = Desk(clerk, receiver.url)
    desk.end_run("a")
    desk.until_done()
    [delivery] = desk.deliveries
    assert [entry["outcome"] for entry in delivery.log] == ["failed", "delivered"]
    assert delivery.log[0]["error"].startswith("timeout:")
    assert 250 <= delivery.log[0]["duration_ms"] < 5_000


def test_what_is_not_taken_at_last_is_a_dead_letter(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [status(500)]
    desk = Desk(clerk, receiver.url)
    desk.end_run("a")
    desk.until_done()
    [delivery] = desk.deliveries
    assert (delivery.state, len(delivery.log), len(receiver.got)) == (DeliveryState.FAILED, 4, 4)
    [letter] = clerk.store.dead_letters(LetterFilter(kind=LetterKind.OUTBOX)).items
    assert (letter.subject, letter.attempts) == (delivery.id, 4)
    assert (desk.counted("retried"), desk.counted("failed")) == (3, 1)

    receiver.answers = [status(204)]
    clerk.store.redeliver(desk.id, delivery.id, None, by="someone")
    desk.until_done()
    assert desk.deliveries[0].state is DeliveryState.DELIVERED
    assert len({(got.id, got.body) for got in receiver.got}) == 1, "a receiver knows it again"
    clerk.audit()


def test_gone_switches_the_webhook_off(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [status(410)]
    desk = Desk(clerk, receiver.url)
    for name in "abc":
        desk.end_run(name)
    desk.until_done()
    found = clerk.store.webhook(desk.id, None)
    assert (found.active, found.off_reason) == (False, "gone")
    desk.end_run("d")
    desk.until_done()
    assert len(desk.deliveries) == 3


def test_failing_for_long_switches_the_webhook_off(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [status(500)]
    desk = Desk(clerk, receiver.url, rules=Rules(tries=50, first=timedelta(0), longest_pause=timedelta(0), rounds=10))
    for name in "ab":
        desk.end_run(name)
    desk.until_done()
    found = clerk.store.webhook(desk.id, None)
    assert (found.active, found.off_reason, found.failures) == (False, "failing", 10)
    assert len(receiver.got) == 2 + 9, "both once, then one at a time"
    assert {each.state for each in desk.deliveries} == {DeliveryState.PENDING}, "nothing is lost"
    receiver.answers = [status(204)]
    clerk.store.update_webhook(desk.id, None, {"active": True}, by="someone")
    desk.until_done()
    assert {each.state for each in desk.deliveries} == {DeliveryState.DELIVERED}


def test_a_private_address_is_refused_at_delivery_whatever_was_allowed_before(clerk: Clerk, receiver: Receiver) -> None:
    desk = Desk(clerk, receiver.url, where=addresses.Rules())
    desk.end_run("a")
    desk.until_done()
    [delivery] = desk.deliveries
    assert delivery.state is DeliveryState.FAILED
    assert {entry["error"] for entry in delivery.log} == {"refused: 127.0.0.1 is a loopback address"}
    assert receiver.got == []


def test_a_try_that_its_process_did_not_live_to_record_is_made_again_and_logged(
    clerk: Clerk, receiver: Receiver
) -> None:
    desk = Desk(clerk, receiver.url)
    desk.end_run("a")
    taken = clerk.store.take_deliveries(desk.id, limit=16, hold=timedelta(0))  # and then the power went
    clerk.behind.query("UPDATE webhook_deliveries SET next_at = created_at")
    desk.until_done()
    [delivery] = desk.deliveries
    assert [entry["outcome"] for entry in delivery.log] == ["interrupted", "delivered"]
    assert receiver.got[0].id == taken.sendings[0].id


def test_a_test_delivery_is_tried_once(clerk: Clerk, receiver: Receiver) -> None:
    receiver.answers = [status(500), status(204)]
    desk = Desk(clerk, receiver.url)
    for state in (DeliveryState.FAILED, DeliveryState.DELIVERED):
        made = clerk.store.add_test_delivery(desk.id, None, by="someone")
        desk.until_done()
        found = clerk.store.delivery(desk.id, made.id, None)
        assert (found.state, len(found.log)) == (state, 1)
        body = receiver.got[-1].verified(desk.secret)
        assert (body["type"], body["run"], body["session_id"]) == ("webhook.test", None, None)
    assert clerk.store.webhook(desk.id, None).failures == 0


def test_many_are_delivered_in_rounds(clerk: Clerk, receiver: Receiver) -> None:
    desk = Desk(clerk, receiver.url)
    webhooks.change(clerk.store, webhooks.Limits(INSIDE), desk.id, None, {"timeout_seconds": 20}, by="someone")
    for number in range(50):
        desk.end_run(f"r{number}")
    desk.until_done()
    assert len(receiver.got) == len({got.id for got in receiver.got}) == 50


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"url": "http://user:pw@example.org/"}, "invalid_url"),
        ({"url": "gopher://example.org/"}, "invalid_url"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "address_refused"),
        ({"events": ["run.output"]}, "unknown_event"),
        ({"secret": "secret"}, "invalid_secret"),
        ({"timeout_seconds": 31}, "invalid_request"),
        ({"timeout_seconds": None}, "invalid_request"),
        ({"description": "\0"}, "invalid_text"),
    ],
)
def test_what_cannot_be_is_refused_at_once(clerk: Clerk, receiver: Receiver, change: dict, code: str) -> None:
    desk = Desk(clerk, receiver.url)
    with pytest.raises(InvalidRequest) as refused:
        webhooks.change(clerk.store, webhooks.Limits(INSIDE), desk.id, None, change, by="someone")
    assert refused.value.code == code
    assert clerk.store.webhook(desk.id, None).url == receiver.url
