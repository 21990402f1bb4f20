"""Every route × {no key, wrong key, revoked key, key without the scope, key of another workspace}.

The routes come from the OpenAPI document, so that a new one cannot be forgotten: one that needs a body must be given
one in BODIES, or the test fails.
"""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from oah.api.app import create_app
from oah.api.auth import REMEMBERED_SECONDS
from oah.core.model.ids import SessionId, WorkerId
from oah.core.model.rollout import Member, RolloutRules
from oah.core.model.workspace import DEFAULT_WORKSPACE, Scope
from oah.ports.audit import AuditFilter
from oah.ports.dead_letters import LetterKind, NewLetter
from oah.services import keys
from oah.services.run_keys import run_key
from tests.support.api import SECRETS, Deployment

BODIES = {
    ("POST", "/v1/sessions"): {"agent": "shell", "workspace": "default"},
    ("PATCH", "/v1/sessions/{session_id}"): {"title": "taken over"},
    ("POST", "/v1/sessions/{session_id}/runs"): {"input": "echo stolen"},
    ("POST", "/v1/runs/{run_id}/input"): {"input": "y"},
    ("POST", "/v1/runs/{run_id}/cancel"): {},
    ("POST", "/v1/runs/{run_id}/requeue"): {"reason": "stolen"},
    ("POST", "/v1/runs/requeue"): {"filter": {"status": "failed"}},
    ("PATCH", "/v1/runs/{run_id}"): {"note": "read by others"},
    ("POST", "/v1/dead-letters/redrive"): {"ids": ["dl_isolation"]},
    ("POST", "/v1/runs:batch"): {"items": [{"session_id": "{session_id}", "input": "echo stolen"}]},
    ("POST", "/v1/pauses"): {"kind": "workspace", "name": "default"},
    ("POST", "/v1/pauses/resume"): {"kind": "workspace", "name": "default"},
    ("PUT", "/v1/caps"): {"kind": "all", "max_active_runs": 1},
    ("POST", "/v1/workspaces"): {"name": "another"},
    ("PATCH", "/v1/workspaces/{workspace}"): {"weight": 1000},
    ("POST", "/v1/runs/{run_id}/steps"): {"name": "x"},
    ("POST", "/v1/runs/{run_id}/progress"): {"percent": 5},
    ("POST", "/v1/runs/{run_id}/wait"): {"reason": "x"},
    ("POST", "/v1/webhooks"): {"url": "https://example.org/stolen", "workspace": "default"},
    ("PATCH", "/v1/webhooks/{webhook_id}"): {"url": "https://example.org/stolen"},
    ("POST", "/v1/schedules"): {
        "name": "stolen",
        "cron": "@daily",
        "session": {"agent": "shell"},
        "run": {"input": "echo stolen"},
        "workspace": "default",
    },
    ("PATCH", "/v1/schedules/{schedule_id}"): {"run": {"input": "echo stolen"}},
    ("POST", "/v1/schedules:preview"): {"cron": "@daily"},
    ("POST", "/v1/keys"): {"name": "mine", "workspace": "default"},
    ("POST", "/v1/sessions/{session_id}/messages"): {"text": "stolen"},
    ("POST", "/v1/sessions/{session_id}/messages/ack"): {"up_to": 1},
    ("POST", "/v1/mailboxes"): {"address": "stolen"},
    ("POST", "/v1/mailboxes/{address}/messages"): {"payload": "stolen"},
    ("POST", "/v1/mailboxes/{address}/receive"): {"limit": 10},
    ("POST", "/v1/mailboxes/leases/extend"): {"holder": "ours"},
    ("POST", "/v1/mailboxes/leases/{lease_id}/nack"): {"delay_seconds": 0},
    ("POST", "/v1/workers/{worker_id}/drain"): {"stay": True},
    ("POST", "/v1/workers/{worker_id}/cordon"): {"for_seconds": 60},
    ("POST", "/v1/pools/{pool}/cordon"): {"for_seconds": 60},
    ("POST", "/v1/queue/repair"): {"reconcile": True},
    ("POST", "/v1/pools/{pool}/drain"): {"stay": True},
    ("POST", "/v1/rollouts"): {"pool": "default"},
}
LACKS = {"run": "reader", "operate": "runner", "admin": "operator"}
"""Scope → a key of the same workspace that has it not. Every key may read."""

OWNED = re.compile(
    r"\{(session_id|run_id|workspace|dead_letter|webhook_id|schedule_id|job_id|address|lease_id|message_id)\}"
)


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def bury(api: Deployment, session: str) -> str:
    """A dead letter of the default workspace."""
    kind = LetterKind.MESSAGE
    letter = NewLetter(
        id="dl_isolation", workspace_id=DEFAULT_WORKSPACE, kind=kind, subject="m1", code="lost", reason="secret words"
    )
    api.store.add_dead_letter(replace(letter, session_id=SessionId(session)))
    return letter.id


def ask_job(api: Deployment) -> str:
    """A job of the default workspace."""
    api.store.create_job(
        "job_ours", "requeue", workspace_id=DEFAULT_WORKSPACE, arguments={"reason": "secret words"}, total=0, by="ours"
    )
    return "job_ours"


def begin_rollout(api: Deployment) -> str:
    """A rolling restart of another pool."""
    member = Member(WorkerId("far.1"), "far", "away", "1.0.0", ("shell",))
    return api.store.create_rollout("ro_ours", "far", [member], RolloutRules(), by="ours", reason=None).id


def post(api: Deployment) -> dict[str, str]:
    """A mailbox of the default workspace with two messages, one of them in somebody's hands."""
    client = api.client("runner")
    address = client.create_mailbox()["address"]
    sent = client.send_message(address, "secret words")
    client.send_message(address, "secret words")
    [leased] = client.receive_messages(address, holder="ours")
    return {"address": address, "seq": sent["seq"], "message_id": sent["id"], "lease_id": leased["lease_id"]}


@pytest.fixture(scope="module")
def ids(shared_api):
    """Things of the default workspace, and what they look like before anybody touched them."""
    with shared_api.http() as http:
        session = http.post("/v1/sessions", json={"agent": "shell", "title": "ours"}).json()["id"]
        run = http.post(f"/v1/sessions/{session}/runs", json={"input": "secret words"}).json()["id"]
        webhook = http.post("/v1/webhooks", json={"url": "https://example.org/ours"}).json()["id"]
        delivery = http.post(f"/v1/webhooks/{webhook}/test").json()["id"]
        [key] = [one["id"] for one in http.get("/v1/keys").json()["items"] if one["name"] == "reader"]
        schedule = {"name": "ours", "cron": "@yearly", "session_id": session, "run": {"input": "secret words"}}
        schedule_id = http.post("/v1/schedules", json=schedule).json()["id"]
    return {
        "schedule_id": schedule_id,
        "session_id": session,
        "run_id": run,
        "workspace": "default",
        "key": key,
        "worker_id": shared_api.report_worker().name,
        "pool": "default",
        "rollout_id": begin_rollout(shared_api),
        "job_id": ask_job(shared_api),
        "webhook_id": webhook,
        "delivery_id": delivery,
        "dead_letter": bury(shared_api, session),
        **post(shared_api),
    }


@pytest.fixture(scope="module")
def routes(shared_api):
    """(method, path template, scope, body) of everything below /v1."""
    with shared_api.http(None) as http:
        document = http.get("/openapi.json").json()
    found = [one for one in operations(document) if one[1].startswith("/v1")]
    assert len(found) > 30
    bodiless = [(m, p) for m, p, operation in found if "requestBody" in operation and (m, p) not in BODIES]
    assert not bodiless, f"give a body to {bodiless}"
    unscoped = [(m, p) for m, p, operation in found if operation.get("x-oah-scope") not in {s.value for s in Scope}]
    assert not unscoped, f"no scope on {unscoped}"
    return [(m, p, operation["x-oah-scope"], BODIES.get((m, p))) for m, p, operation in found]


@pytest.fixture(scope="module")
def call(shared_api):
    """Call a route with the secret given, as raw bytes if need be."""
    with shared_api.http(None) as http:

        def send(secret, method, path, body, ids):
            filled = path.format(**ids)
            if body is not None and "items" in body:
                body = {"items": [{**body["items"][0], "session_id": ids["session_id"]}]}
            headers = {} if secret is None else {"authorization": f"Bearer {secret}".encode("latin-1").strip()}
            return http.request(method, filled, json=body, headers=headers)

        yield send


def snapshot(api: Deployment, ids):
    return (
        api.store.session(ids["session_id"], None),
        api.store.run(ids["run_id"], None),
        api.store.queue_of(ids["session_id"], limit=100),
        api.store.dead_letter(ids["dead_letter"], None),
        api.store.jobs(None).items,
        len(api.store.audit_rows(AuditFilter(subject=ids["run_id"])).items),
        api.store.webhooks(None).items,
        api.store.deliveries(ids["webhook_id"], None).items,
        _mail(api, ids["address"]),
        api.store.schedules(None).items,
        api.store.firings(ids["schedule_id"]),
        api.store.workspace("default"),
        (api.store.pauses(), api.store.caps()),
        sorted(one.name for one in api.store.workspaces()),
        [(one.id, one.revoked_at) for one in api.store.keys(DEFAULT_WORKSPACE)],
        len(api.store.sessions(DEFAULT_WORKSPACE).items),
    )


def _mail(api: Deployment, address):
    mailbox = api.store.mailbox(DEFAULT_WORKSPACE, address)
    [held] = api.store.trace_message(api.store.list_messages(mailbox.id).items[0].id, None).groups
    return mailbox, api.store.list_messages(mailbox.id).items, held, api.store.mailboxes(DEFAULT_WORKSPACE).items


GUARDED = (
    # The first line that matches says the scope: what the description says of itself must be what was decided.
    (r"(POST|PATCH) /v1/workspaces", "admin"),
    (r"\w+ /v1/keys", "admin"),
    (r"PUT /v1/caps", "admin"),
    (r"\w+ /v1/(pauses|caps)", "operate"),
    (r"POST /v1/(workers|pools|rollouts)|\w+ /v1/queue/(faults|repair)", "admin"),
    (r"GET /v1/(workers|cordons|pools|rollouts|queue|controller|jobs|audit)", "operate"),
    (r"POST /v1/(jobs/|runs/requeue)", "operate"),
    (r"PATCH /v1/runs/|POST /v1/runs/\{run_id\}/requeue", "operate"),
    (r"(POST|DELETE) /v1/dead-letters|\w+ /v1/webhooks", "operate"),
    (r"GET |POST /v1/schedules:preview", "read"),
    (r"(POST|PATCH|DELETE) /v1/(sessions|runs|mailboxes|schedules)", "run"),
)


def test_every_route_asks_for_the_scope_that_was_decided(routes):
    for method, path, scope, _ in routes:
        decided = next(scope for pattern, scope in GUARDED if re.match(pattern, f"{method} {path}"))
        assert scope == decided, (method, path)


def test_only_health_metrics_and_the_description_are_open(shared_api):
    with shared_api.http(None) as http:
        document = http.get("/openapi.json").json()
        open_paths = sorted(path for _, path, _ in operations(document) if not path.startswith("/v1"))
        assert open_paths == ["/healthz", "/metrics", "/readyz"]
        for path in (*open_paths, "/openapi.json"):
            assert http.get(path).status_code == 200


@pytest.mark.parametrize("secret", [None, "", "wrong", "oahk_" + "0" * 32, "x" * 300, "ünïcode", "a\tb"])
def test_without_a_key_nothing_is_answered(shared_api, call, ids, routes, secret):
    before = snapshot(shared_api, ids)
    for method, path, _, body in routes:
        answer = call(secret, method, path, body, ids)
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "unauthorized"
    assert snapshot(shared_api, ids) == before


def test_a_revoked_and_an_expired_key_open_nothing(shared_api, call, ids, routes):
    scopes = frozenset({Scope.ADMIN})
    revoked = keys.create(shared_api.store, shared_api.ids, name="gone", workspace_id=None, scopes=scopes)
    keys.revoke(shared_api.store, revoked.key.id)
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = keys.create(
        shared_api.store, shared_api.ids, name="old", workspace_id=None, scopes=scopes, expires_at=past
    )
    for secret in (revoked.secret, expired.secret):
        for method, path, _, body in routes:
            assert call(secret, method, path, body, ids).status_code == 401, (method, path)


def test_a_key_without_the_scope_changes_nothing(shared_api, call, ids, routes):
    before = snapshot(shared_api, ids)
    tried = 0
    for method, path, scope, body in routes:
        if scope not in LACKS:
            continue
        tried += 1
        answer = call(shared_api.secrets[LACKS[scope]], method, path, body, ids)
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.json()["code"] == "forbidden"
    assert tried > 15
    assert snapshot(shared_api, ids) == before


def test_another_workspaces_ids_are_the_ids_of_nothing(shared_api, call, ids, routes):
    before = snapshot(shared_api, ids)
    tried = 0
    for method, path, scope, body in routes:
        if not OWNED.search(path) or scope == "admin":
            continue
        tried += 1
        answer = call(shared_api.secrets["foreigner"], method, path, body, ids)
        assert answer.status_code == 404, (method, path, answer.text)
        nothing = {
            **ids,
            "session_id": "ses_nothing",
            "run_id": "run_nothing",
            "dead_letter": "dl_nothing",
            "job_id": "job_nothing",
            "address": "m-nothing",
            "lease_id": "lease_nothing",
            "message_id": "msg_nothing",
            "workspace": "nothing",
        }
        never = call(shared_api.secrets["foreigner"], method, path, body, nothing)
        assert never.status_code == 404
        assert sorted(answer.json()) == sorted(never.json()), "a foreign id looks like one that never was"
    assert tried >= 19
    assert snapshot(shared_api, ids) == before


def test_lists_and_bodies_do_not_reach_into_another_workspace(shared_api, ids, routes):
    before = snapshot(shared_api, ids)
    with shared_api.http("foreigner") as http:
        for method, path, scope, _ in routes:
            if method != "GET" or "{" in path or scope == "admin":
                continue
            answer = http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            for ours in (ids["session_id"], ids["run_id"], "secret words", '"ours"', DEFAULT_WORKSPACE + '"'):
                if path in ("/v1/workers", "/v1/queue", "/v1/pools"):
                    continue  # fleet: pools and lanes of all, checked below
                assert ours not in answer.text, (path, ours)
        for path in ("/v1/workers", "/v1/queue", f"/v1/workers/{ids['worker_id']}", f"/v1/pools/{ids['pool']}"):
            text = http.get(path).text
            assert ids["session_id"] not in text
            assert ids["run_id"] not in text
        assert http.get("/v1/runs", params={"session": ids["session_id"]}).json()["items"] == []
        for path in ("/v1/runs", "/v1/sessions"):
            assert http.get(path, params={"workspace": "default"}).status_code == 404
        made = http.post("/v1/sessions", json={"agent": "shell", "workspace": "default"})
        assert made.status_code == 404
        for path in ("/v1/pauses", "/v1/pauses/resume"):
            assert http.post(path, json={"kind": "workspace", "name": "default"}).status_code in (403, 404)
            assert http.post(path, json={"kind": "all"}).status_code == 403
        [item] = http.post("/v1/runs:batch", json={"items": [{"session_id": ids["session_id"], "input": "x"}]}).json()[
            "items"
        ]
        assert item["error"]["code"] == "not_found"
        mine = http.post("/v1/sessions", json={"agent": "shell"}).json()
        assert mine["workspace_id"] not in ("default", None)
        stolen = http.post(f"/v1/sessions/{mine['id']}/runs", json={"input": "x", "parent_run_id": ids["run_id"]})
        assert stolen.status_code == 404
    assert snapshot(shared_api, ids) == before


def test_the_key_of_a_run_opens_nothing_of_other_runs(shared_api, call, ids, routes):
    """Neither in its own workspace nor in another one. (Mailboxes have rules of their own.)"""
    for who in ("runner", "foreigner"):
        with shared_api.http(who) as http:
            session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
            http.post(f"/v1/sessions/{session}/runs", json={"input": "x"})
        secret = run_key(shared_api.fence(shared_api.start(session)))
        before = snapshot(shared_api, ids)
        tried = 0
        for method, path, _, body in routes:
            if not re.search(r"\{(session_id|run_id)\}", path) or "messages" in path:
                continue
            tried += 1
            answer = call(secret, method, path, body, ids)
            assert answer.status_code in (403, 404), (method, path, answer.text)
            nothing = {**ids, "session_id": "ses_nothing", "run_id": "run_nothing"}
            never = call(secret, method, path, body, nothing)
            assert (never.status_code, sorted(never.json())) == (answer.status_code, sorted(answer.json()))
        assert tried >= 19
        [item] = call(secret, "POST", "/v1/runs:batch", BODIES["POST", "/v1/runs:batch"], ids).json()["items"]
        assert item["error"]["code"] == "not_found"
        assert call(secret, "GET", "/v1/runs", None, ids).json()["items"] == []
        assert snapshot(shared_api, ids) == before


def test_what_workers_execute_is_shown_to_admins_only(shared_api):
    shared_api.report_worker(name="busy", sessions={"ses_a": "run_a"})
    with shared_api.http("operator") as http:
        assert http.get("/v1/workers/busy").json()["sessions"] is None
    with shared_api.http() as http:
        assert http.get("/v1/workers/busy").json()["sessions"] == {"ses_a": "run_a"}


def test_each_key_may_do_what_its_scope_says(shared_api, ids):
    with shared_api.http("reader") as http:
        assert http.get(f"/v1/runs/{ids['run_id']}").status_code == 200
    with shared_api.http("runner") as http:
        session = http.post("/v1/sessions", json={"agent": "shell"}).json()["id"]
        run = http.post(f"/v1/sessions/{session}/runs", json={"input": "x"}).json()["id"]
        assert http.post(f"/v1/runs/{run}/cancel").status_code == 202
    with shared_api.http("operator") as http:
        assert http.post(f"/v1/runs/{run}/requeue").status_code == 202
        assert http.get("/v1/queue").status_code == 200


def test_keys_over_http(shared_api):
    with shared_api.http() as http:
        made = http.post("/v1/keys", json={"name": "k", "workspace": "foreign", "scopes": ["read"]})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        secret, key_id = made.json()["secret"], made.json()["id"]
        listed = http.get("/v1/keys", params={"workspace": "foreign"})
        assert key_id in listed.text
        assert secret not in http.get("/v1/keys").text
        with shared_api.http(
            None,
        ) as other:
            headers = {"authorization": f"bearer {secret}"}
            assert other.get("/v1/runs", headers=headers).status_code == 200
            assert http.delete(f"/v1/keys/{key_id}").json()["revoked_at"]
            assert other.get("/v1/runs", headers=headers).status_code == 401, "at once where it was revoked"
        for body in (
            {"name": "k", "workspace": "foreign", "scopes": ["admin"]},
            {"name": "k", "workspace": "foreign", "scopes": []},
            {"name": "", "workspace": "foreign"},
            {"name": "a\0", "workspace": "foreign"},
        ):
            assert http.post("/v1/keys", json=body).status_code == 400, body
        admin = http.post("/v1/keys", json={"name": "a", "scopes": ["admin"]}).json()
        assert admin["workspace_id"] is None


def test_secrets_are_stored_as_digests(shared_api):
    stored = repr(shared_api.store.keys(None))
    for secret in shared_api.secrets.values():
        assert secret not in stored
        assert shared_api.store.key_by_digest(secret) is None
        assert shared_api.store.key_by_digest(keys.digest(secret)) is not None


def test_a_key_revoked_elsewhere_works_for_a_bounded_time(shared_api):
    """Keys are remembered for a moment; the bound is part of the promise."""
    assert REMEMBERED_SECONDS <= 2
    made = keys.create(
        shared_api.store, shared_api.ids, name="b", workspace_id=DEFAULT_WORKSPACE, scopes=frozenset({Scope.READ})
    )
    keyring = shared_api.state.keyring
    assert keyring.remembered(made.secret) is None
    keyring.look_up(made.secret)
    assert keyring.remembered(made.secret).id == made.key.id
    keys.revoke(shared_api.store, made.key.id)
    digest = keys.digest(made.secret)
    key, until = keyring._seen[digest]
    keyring._seen[digest] = (key, until - REMEMBERED_SECONDS - 0.001)
    assert keyring.remembered(made.secret) is None, "after that SQL is asked again"


def test_workspaces_over_http(shared_api):
    with shared_api.http() as http:
        made = http.post("/v1/workspaces", json={"name": "third", "weight": 3, "max_queued_runs": 1})
        assert made.status_code == 201
        assert http.post("/v1/workspaces", json={"name": "third"}).status_code == 409
        for name in ("", "A", "a b", "x" * 64, "a\n"):
            assert http.post("/v1/workspaces", json={"name": name}).status_code == 400, name
        assert http.post("/v1/workspaces", json={"name": "w", "weight": 0}).status_code == 400
        changed = http.patch("/v1/workspaces/third", json={"weight": 5}).json()
        assert changed["weight"] == 5
        assert changed["max_queued_runs"] == 1, "what is absent stays"
        assert http.get(f"/v1/workspaces/{made.json()['id']}").json()["name"] == "third"
        session = http.post("/v1/sessions", json={"agent": "shell", "workspace": "third"}).json()
        assert session["workspace_id"] == made.json()["id"]
    with shared_api.http("foreigner") as http:
        assert [one["name"] for one in http.get("/v1/workspaces").json()["items"]] == ["foreign"]
        assert http.get("/v1/workspaces/foreign").status_code == 200


def test_every_key_of_the_matrix_exists(shared_api):
    assert set(SECRETS) | {"admin"} == set(shared_api.secrets)


def test_a_route_below_v1_cannot_be_added_without_a_guard(shared_api):
    """The middleware guards the prefix, not the single route."""
    app = create_app(shared_api.context)
    guarded = [layer.cls.__name__ for layer in app.user_middleware]
    assert guarded.index("Authenticate") < guarded.index("BodyLimit"), "nothing is read before the key is known"
    with shared_api.http(None) as http:
        for path in ("/v1", "/v1/", "/v1/nothing", "/v1/../v1/runs", "//v1/runs"):
            assert http.get(path).status_code in (401, 404), path
            assert "items" not in http.get(path).text
