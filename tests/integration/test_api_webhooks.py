"""Webhooks over HTTP: what is answered, what is never answered again, and what is refused."""

from __future__ import annotations

import pytest

from oah.core.policy.signatures import key_of, secret_of
from oah.core.policy.webhooks import DEFAULT
from oah.errors import Conflict, InvalidRequest, NotFound
from tests.support.api import Deployment

URL = "https://hooks.example.org/oah?x=1"


def test_a_secret_is_shown_once(api: Deployment) -> None:
    with api.http("operator") as http:
        answer = http.post("/v1/webhooks", json={"url": URL})
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["location"] == f"/v1/webhooks/{made['id']}"
        assert len(key_of(made["secret"])) == 32
        assert (made["url"], made["active"], made["timeout_seconds"]) == (URL, True, 10)
        assert made["events"] == [str(event) for event in DEFAULT]
        secret = made.pop("secret")
        assert http.get(f"/v1/webhooks/{made['id']}").json() == made
        given = secret_of(b"k" * 24)
        other = http.post("/v1/webhooks", json={"url": URL, "secret": given, "events": ["run.*"]}).json()
        assert other["secret"] == given
        changed = http.patch(f"/v1/webhooks/{other['id']}", json={"secret": secret, "active": False})
        assert changed.json()["active"] is False
        http.post(f"/v1/webhooks/{made['id']}/test")
        for path in (
            "/v1/webhooks",
            f"/v1/webhooks/{other['id']}",
            f"/v1/webhooks/{made['id']}/deliveries",
            "/v1/audit",
        ):
            text = http.get(path).text
            assert secret not in text
            assert given not in text
        assert [one["id"] for one in http.get("/v1/webhooks").json()["items"]] == [other["id"], made["id"]]
        assert http.delete(f"/v1/webhooks/{made['id']}").json()["id"] == made["id"]
        assert http.get(f"/v1/webhooks/{made['id']}").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"url": None}, 422, "invalid_request"),
        ({"url": URL, "event": ["run.*"]}, 422, "invalid_request"),
        ({"url": "hooks.example.org"}, 400, "invalid_url"),
        ({"url": "https://key@hooks.example.org/"}, 400, "invalid_url"),
        ({"url": "http://localhost:8787/v1/keys"}, 400, "address_refused"),
        ({"url": "http://[::ffff:10.0.0.1]/"}, 400, "address_refused"),
        ({"url": URL, "events": []}, 400, "invalid_request"),
        ({"url": URL, "events": ["run.output"]}, 400, "unknown_event"),
        ({"url": URL, "events": ["run.*"] * 51}, 422, "invalid_request"),
        ({"url": URL, "secret": "whsec_short"}, 400, "invalid_secret"),
        ({"url": URL, "timeout_seconds": 31}, 400, "invalid_request"),
        ({"url": URL, "description": "x" * 3000}, 413, "payload_too_large"),
        ({"url": URL, "workspace": "nowhere"}, 404, "not_found"),
    ],
)
def test_what_cannot_be_is_refused(api: Deployment, body: dict, status: int, code: str) -> None:
    with api.http("operator") as http:
        answer = http.post("/v1/webhooks", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        made = http.post("/v1/webhooks", json={"url": URL}).json()
        if body and "workspace" not in body:
            answer = http.patch(f"/v1/webhooks/{made['id']}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert http.get(f"/v1/webhooks/{made['id']}").json()["url"] == URL


def test_deliveries_of_a_workspace_through_the_client(api: Deployment) -> None:
    client = api.client("operator")
    webhook = client.create_webhook(URL, timeout=3, description="ours")["id"]
    foreign = api.client("foreigner")
    theirs = foreign.create_webhook(URL)["id"]
    session = client.create_session("shell")["id"]
    runs = []
    for _ in range(3):
        runs.append(client.submit(session, "x")["id"])
        api.work(session)
    found = client.webhook_deliveries(webhook)
    assert [each["run_id"] for each in found] == runs[::-1]
    assert {(each["state"], each["tries"], each["type"]) for each in found} == {("pending", 0, "run.completed")}
    assert found[0]["next_at"] is not None
    assert client.webhook_deliveries(webhook, state="failed") == []
    assert len(client.webhook_deliveries(webhook, limit=2)) == 2
    assert client.webhook_delivery(webhook, found[0]["id"]) == found[0]
    assert foreign.webhook_deliveries(theirs) == [], "of the other workspace nothing is told"
    for call in (foreign.webhook, foreign.webhook_deliveries, foreign.test_webhook, foreign.delete_webhook):
        with pytest.raises(NotFound):
            call(webhook)
    with pytest.raises(NotFound):
        client.redeliver(webhook, "whd_nothing")
    client.update_webhook(webhook, active=False)
    for refused in (lambda: client.redeliver(webhook, found[0]["id"]), lambda: client.test_webhook(webhook)):
        with pytest.raises(Conflict) as conflict:
            refused()
        assert conflict.value.code == "webhook_inactive"
    with pytest.raises(InvalidRequest):
        client.update_webhook(webhook, active=None)
    assert [row["action"] for row in client.audit(subject=webhook)] == ["webhook.changed", "webhook.created"]
    admin = api.client()
    assert {each["id"] for each in admin.webhooks()} == {webhook, theirs}
    assert [each["id"] for each in admin.webhooks(workspace="foreign")] == [theirs]
