"""Dead letters as an operator meets them: over HTTP, from the client, from the command line, and as a job."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from oah.adapters.system.clock import SystemClock
from oah.cli.main import oah
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.dead_letters import LetterKind, NewLetter
from oah.ports.jobs import JobState
from oah.ports.store import RecoveryAction, RecoveryWrite
from oah.services import redrive
from oah.services.jobs import RunJob
from tests.support.api import EPOCH, Deployment


def quarantine(api: Deployment, session: str, text: str = "echo poison") -> str:
    """A run that lost its worker once too often; its letter's id."""
    api.client().submit(session, text)
    started = api.start(session)
    write = RecoveryWrite(
        api.store.owners_of([SessionId(session)])[0],
        RecoveryAction.QUARANTINE,
        strategy="requeue_running",
        max_attempts=3,
        reason="max_attempts_exhausted",
        by="controller",
    )
    assert api.store.apply_recovery([write])[0].applied
    return f"dl_{started.run.id}.{started.run.attempt}"


def add(api: Deployment, number: int, **more: Any) -> str:
    fields: dict[str, Any] = {
        "id": f"dl_{number:05}",
        "workspace_id": DEFAULT_WORKSPACE,
        "kind": LetterKind.MESSAGE,
        "subject": f"m{number}",
        "code": "undeliverable",
        "reason": "nobody reads",
    }
    api.store.add_dead_letter(NewLetter(**{**fields, **more}))
    return str(fields["id"] if "id" not in more else more["id"])


def test_a_letter_is_listed_shown_redriven_once_and_purged(apis: Deployment) -> None:
    client = apis.client("operator")
    session = client.create_session("shell")["id"]
    name = quarantine(apis, session)
    [listed] = client.dead_letters(state="dead")
    assert (listed["id"], listed["kind"], listed["code"], listed["attempts"]) == (name, "run", "worker_lost", 1)
    assert "payload" not in listed
    shown = client.dead_letter(name)
    assert shown["payload"]["input"] == "echo poison"
    assert shown["payload"]["session"]["agent"] == "shell"
    assert shown["workspace_id"] == "default"

    dry = client.redrive([name, "dl_nothing"], dry_run=True)
    assert [(item["outcome"], item["error"] and item["error"]["code"]) for item in dry["items"]] == [
        ("redriven", None),
        ("refused", "not_found"),
    ]
    run_id = shown["subject"]
    assert client.run(run_id)["status"] == "failed", "looked at only"
    done = client.redrive([name])
    assert (done["done"], done["failed"], done["items"][0]["run_id"], done["job"]) == (1, 0, run_id, None)
    assert client.run(run_id)["status"] == "queued"
    assert apis.broker.leases(EPOCH, [SessionId(session)])[0].place == "ready", "the broker has heard of it"
    again = client.redrive([name])
    assert (again["failed"], again["items"][0]["error"]["code"]) == (1, "already_redriven")
    assert client.dead_letters(state="dead") == []
    assert client.dead_letters(state="redriven")[0]["redriven_by"].startswith("key:")

    assert client.purge(state="redriven", dry_run=True)["done"] == 1
    assert client.purge([name])["items"][0]["outcome"] == "purged"
    with pytest.raises(NotFound):
        client.dead_letter(name)
    last = apis.store.events(SessionId(session), after=0, limit=100)[-1]
    assert (last.type, last.data["dead_letter_id"]) == ("dead_letter.purged", name)


def test_a_requeue_by_hand_is_a_redrive(api: Deployment) -> None:
    client = api.client()
    session = client.create_session("shell")["id"]
    name = quarantine(api, session)
    client.requeue(client.dead_letter(name)["subject"])
    assert client.dead_letter(name)["state"] == "redriven"
    with pytest.raises(Conflict):
        client.requeue(client.dead_letter(name)["subject"])
    api.work(session)
    assert client.redrive([name])["items"][0]["error"]["code"] == "already_redriven"


def test_filters_over_http(api: Deployment) -> None:
    client = api.client()
    session = client.create_session("shell")["id"]
    for number in range(5):
        add(api, number, code="odd" if number % 2 else "even", session_id=SessionId(session) if number < 2 else None)
    name = quarantine(api, session)
    assert [item["id"] for item in client.dead_letters(kind="run")] == [name]
    assert [item["id"] for item in client.dead_letters(code="odd")] == ["dl_00003", "dl_00001"]
    assert len(client.dead_letters(session=session)) == 3
    assert client.dead_letters(since=datetime.now(UTC) + timedelta(minutes=1)) == []
    assert len(client.dead_letters(limit=2)) == 2
    redriven = client.redrive(kind="run")
    assert [item["id"] for item in redriven["items"]] == [name]
    assert client.purge(code="odd")["done"] == 2
    assert {item["id"] for item in client.dead_letters(state="dead")} == {"dl_00000", "dl_00002", "dl_00004"}
    with pytest.raises(InvalidRequest):
        client.purge()
    assert client.purge(everything=True)["done"] == 4


def test_senseless_requests_are_refused(api: Deployment) -> None:
    with api.http() as http:
        for body in ({}, {"ids": ["a"], "filter": {}}, {"ids": 5}, {"filter": {"kind": "ghost"}}, {"filter": {"x": 1}}):
            assert http.post("/v1/dead-letters/redrive", json=body).status_code in (400, 422), body
        assert http.delete("/v1/dead-letters").status_code == 400
        assert http.delete("/v1/dead-letters", params={"id": "a", "kind": "run"}).status_code == 400
        assert http.get("/v1/dead-letters", params={"cursor": "bm9uZQ"}).status_code == 400
        assert http.get("/v1/dead-letters", params={"workspace": "nowhere"}).status_code == 404
        assert http.post("/v1/dead-letters/redrive", json={"ids": []}).json()["items"] == []


def test_poison_is_shown_as_it_was_and_only_to_those_who_see_all(api: Deployment) -> None:
    value = b"\x00garbage \xff"
    name = add(api, 1, kind=LetterKind.POISON, workspace_id=WorkspaceId(""), payload_bytes=value, payload={"key": "k"})
    shown = api.client().dead_letter(name)
    assert base64.b64decode(shown["bytes"]) == value
    assert (shown["text"], shown["workspace_id"]) == ("\x00garbage \\xff", None)
    [refused] = api.client().redrive([name])["items"]
    assert refused["error"]["code"] == "not_redrivable"
    assert api.client("operator").dead_letters() == []
    with pytest.raises(NotFound):
        api.client("operator").dead_letter(name)


def test_many_become_a_job_that_survives_its_worker(apis: Deployment) -> None:
    client = apis.client()
    sessions = [client.create_session("shell")["id"] for _ in range(3)]
    runs = [quarantine(apis, sessions[0])]
    for number in range(redrive.INLINE):
        add(apis, number)
    runs += [quarantine(apis, session) for session in sessions[1:]]
    answer = client.redrive()
    assert answer["items"] == []
    job_id = answer["job"]["id"]
    assert answer["job"]["total"] == redrive.INLINE + 3
    work = redrive.work_of(apis.store, apis.broker, redrive.Act.REDRIVE, epoch=lambda: EPOCH)
    dead = RunJob(apis.store, {"redrive": work}, SystemClock(), apis.ids, "first", timedelta(0), _once())
    dead(job_id)  # stops after its first chunk, as a worker that is told to
    half = apis.store.job(job_id, None)
    assert (half.state, half.done + half.failed) == (JobState.RUNNING, redrive.CHUNK)
    other = RunJob(apis.store, {"redrive": work}, SystemClock(), apis.ids, "second", timedelta(0))
    other(job_id)
    job = apis.store.job(job_id, None)
    assert (job.state, job.done, job.failed) == (JobState.COMPLETED, 3, redrive.INLINE)
    items = apis.store.job_items(job_id)
    assert len({item.subject for item in items}) == len(items) == redrive.INLINE + 3
    assert {item.subject for item in items if item.outcome == "redriven"} == set(runs)
    for session in sessions:
        assert [run["status"] for run in client.runs(session=session)] == ["queued"]
    purged = client.purge(kind="message")
    assert purged["job"] is None or purged["job"]["total"] == redrive.INLINE


def _once() -> Any:
    return lambda: False


@pytest.fixture
def call(api: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The command line against this API."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", api.url)
    monkeypatch.setenv("OAH_API_KEY", api.secrets["admin"])

    def run(*args: str, stdin: str | None = None) -> Any:
        return CliRunner().invoke(oah, list(args), input=stdin)

    return run


def test_the_command_line_at_night(api: Deployment, call: Any) -> None:
    client = api.client()
    session = client.create_session("shell")["id"]
    name = quarantine(api, session)
    run_id = client.dead_letter(name)["subject"]

    [run] = json.loads(call("quarantine", "list", "--json").stdout)["items"]
    assert run["id"] == run_id
    assert call("quarantine", "note", run_id, "looks like the disk").exit_code == 0
    assert "looks like the disk" in call("quarantine", "list").stdout

    listed = call("dead-letter", "list")
    assert name in listed.stdout and "worker_lost" in listed.stdout
    assert json.loads(call("dead-letter", "show", name, "--json").stdout)["payload"]["input"] == "echo poison"
    assert call("dead-letter", "show", "dl_nothing").exit_code == 3
    assert call("dead-letter", "redrive").exit_code == 2
    assert call("dead-letter", "redrive", name, "--all").exit_code == 2

    dry = call("dead-letter", "redrive", "--kind", "run", "--dry-run")
    assert (dry.exit_code, dry.stdout) == (0, f"{name} would be redriven\n")
    declined = call("dead-letter", "redrive", "--kind", "run", stdin="n\n")
    assert declined.exit_code != 0 and client.run(run_id)["status"] == "failed"
    done = call("dead-letter", "redrive", "--kind", "run", "--since", "1h", stdin="y\n")
    assert (done.exit_code, client.run(run_id)["status"]) == (0, "queued"), done.output
    again = call("dead-letter", "redrive", name)
    assert again.exit_code == 4 and "was redriven by" in again.stderr

    assert "no dead letter fits" in call("dead-letter", "purge", "--all", "--yes").stderr
    asked = call("dead-letter", "purge", name, stdin="n\n")
    assert asked.exit_code != 0 and client.dead_letter(name)
    gone = call("dead-letter", "purge", "--state", "all", "--all", "--yes", "--json")
    assert (gone.exit_code, json.loads(gone.stdout)["done"]) == (0, 1)
    assert call("dead-letter", "purge", name, "--yes").exit_code == 3
