"""Requeue, jobs, audit and recovery's figures over HTTP and from the command line, jobs performed by a thread."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oah.adapters.inprocess.jobs import InlineJobQueue
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.cli.main import oah
from oah.core.model.run import RecoveryState
from oah.errors import Conflict, InvalidRequest, NotFound
from oah.ports.store import RecoveryAction, RecoveryWrite
from oah.runtime.loop import Loop
from oah.services import requeue
from oah.services.jobs import TASK, RunJob, TellAgain
from tests.support.api import Deployment, deploy
from tests.support.servers_redis import FakeServer
from tests.support.waiting import eventually

LONG = timedelta(minutes=1)


def performer(api: Deployment, queue: InlineJobQueue) -> Loop:
    work = requeue.RequeueWork(api.store, api.broker, api.store.current_epoch)
    handlers = {TASK: RunJob(api.store, {requeue.KIND: work}, SystemClock(), SystemIds(), "here", LONG)}
    loop = Loop("jobs", lambda: queue.perform(handlers, lambda: True), interval=LONG, clock=SystemClock())
    queue.on_work = loop.wake
    return loop


@pytest.fixture(params=["sqlite+memory", "postgresql+valkey"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """An API whose jobs a thread performs."""
    embedded = request.param == "sqlite+memory"
    server = FakeServer() if embedded else request.getfixturevalue("valkey_server")
    server.reset()
    broker, queue = server.broker(), InlineJobQueue(SystemClock())
    url = request.getfixturevalue("sqlite_url" if embedded else "postgres_url")
    with deploy(url, broker, tmp_path, jobs=queue) as made:
        loop = performer(made, queue)
        loop.start()
        yield made
        loop.stop(timedelta(0))
        assert loop.join(timedelta(seconds=20)) and loop.failure is None
    broker.close()


@pytest.fixture
def call(system: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The command line against it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", system.url)
    monkeypatch.setenv("OAH_API_KEY", system.secrets["admin"])

    def invoke(*args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(oah, list(args), input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def failed(api: Deployment, count: int, session: str | None = None) -> list[str]:
    """So many failed runs of one session."""
    client = api.client()
    session = session or client.create_session("shell")["id"]
    sent = client.submit_many([{"session_id": session, "input": f"{number}"} for number in range(count)])
    for _ in sent:
        api.work(session, error="it_broke")
    return [each["id"] for each in sent]


def test_some_by_id_are_answered_one_by_one(system: Deployment) -> None:
    client = system.client()
    first, second, third = failed(system, 3)
    planned = client.requeue_many([second, "run_nothing", first], dry_run=True)
    assert [item["outcome"] for item in planned["items"]] == ["requeued", "not_found", "requeued"]
    assert (planned["total"], client.run(first)["status"]) == (2, "failed")
    done = client.requeue_many([second, "run_nothing", first], reason="fixed")
    assert [(item["id"], item["outcome"], item["position"]) for item in done["items"]] == [
        (second, "requeued", 5),
        ("run_nothing", "not_found", None),
        (first, "requeued", 4),
    ]
    session = client.run(first)["session_id"]
    assert [run["id"] for run in client.session_queue(session)] == [first, second]
    assert system.start(session).run.id == first
    with pytest.raises(Conflict):
        client.requeue(second)
    client.requeue(third, reason="me too")
    assert client.audit(subject=third)[0]["data"]["reason"] == "me too"
    assert [row["subject"] for row in client.audit(action="run.requeued")] == [third, second, first]


def test_another_workspaces_runs_are_not_touched(system: Deployment) -> None:
    client, foreign = system.client(), system.client("foreigner")
    [run] = failed(system, 1)
    assert foreign.requeue_many([run])["items"][0]["outcome"] == "not_found"
    assert foreign.requeue_many(filter={"status": "failed"}, dry_run=True)["total"] == 0
    job = foreign.requeue_many(filter={"status": "failed"})["job"]
    ended = foreign.wait_job(job["id"], timeout=20)
    assert (ended["state"], ended["total"]) == ("completed", 0)
    with pytest.raises(NotFound):
        foreign.requeue_many(filter={"workspace": "default", "status": "failed"})
    assert client.run(run)["status"] == "failed"
    ours = client.requeue_many(filter={"status": "failed"})["job"]
    for see in (foreign.job, foreign.job_items, foreign.cancel_job):
        with pytest.raises(NotFound):
            see(ours["id"])
    assert [each["id"] for each in foreign.jobs()] == [job["id"]]
    client.wait_job(ours["id"], timeout=20)
    assert foreign.audit(subject=run) == []


def test_a_filter_is_a_job_with_an_answer_for_each(system: Deployment) -> None:
    client = system.client()
    runs = failed(system, 12)
    hour = timedelta(hours=1)
    which = {"status": ["failed"], "error_code": "it_broke", "agent": "shell", "since": datetime.now(UTC) - hour}
    planned = client.requeue_many(filter=which, dry_run=True)
    assert planned["total"] == 12 and [run["id"] for run in planned["sample"]] == runs
    with system.http() as http:
        raw = http.post("/v1/runs/requeue", json={"filter": {"error_code": "it_broke"}, "reason": "host was down"})
        assert raw.status_code == 202 and raw.headers["location"] == f"/v1/jobs/{raw.json()['job']['id']}"
    looks = []
    job = client.wait_job(raw.json()["job"]["id"], timeout=20, on_progress=looks.append)
    assert (job["state"], job["total"], job["done"], job["failed"]) == ("completed", 12, 12, 0)
    assert job["outcomes"] == {"requeued": 12} and looks[-1] == job
    assert [item["subject"] for item in client.job_items(job["id"])] == runs
    session = client.run(runs[0])["session_id"]
    assert [run["id"] for run in client.session_queue(session)] == runs
    assert [run["status"] for run in client.runs(status="failed")] == []
    audited = client.audit(action="run.requeued")
    assert {row["data"]["job_id"] for row in audited} == {job["id"]} and len(audited) == 12
    assert sum(lane.sessions for lane in system.broker.figures().ready) == 1, "the broker has heard"
    assert client.jobs(kind="requeue", state="completed")[0]["id"] == job["id"]


def test_many_by_id_are_a_job(system: Deployment) -> None:
    client = system.client()
    runs = failed(system, 3)
    job = client.requeue_many([*runs, *(f"run_{number}" for number in range(200))])["job"]
    ended = client.wait_job(job["id"], timeout=20)
    assert ended["outcomes"] == {"requeued": 3, "not_found": 200}
    assert (ended["done"], ended["failed"], ended["total"]) == (3, 200, 203)
    assert len(client.job_items(job["id"])) == 203


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"run_ids": ["r"], "filter": {"status": "failed"}},
        {"filter": {}},
        {"filter": {"workspace": "default"}},
        {"filter": {"status": "completed"}},
        {"filter": {"status": "queued"}},
        {"filter": {"status": []}},
        {"filter": {"statuses": "failed"}},
        {"filter": {"since": "yesterday"}},
        {"run_ids": [f"r{number}" for number in range(10_001)]},
        {"run_ids": ["a\0b"]},
    ],
)
def test_senseless_wishes_are_refused(api: Deployment, body: dict) -> None:
    with api.http() as http:
        answer = http.post("/v1/runs/requeue", json=body)
    assert answer.status_code in (400, 422) or answer.json()["items"][0]["outcome"] == "not_found", answer.text
    assert api.store.jobs(None).items == ()


def test_the_recovery_overview_counts_all(system: Deployment) -> None:
    client = system.client()
    session = client.create_session("shell")["id"]
    reasons = ["worker_lost"] * 3 + ["host_lost"] * 2
    for reason in reasons:
        client.submit(session, "x")
        system.start(session)
        [owner] = system.store.owners_of([session])
        write = RecoveryWrite(owner, RecoveryAction.QUARANTINE, "requeue_running", 3, reason, "leader")
        assert system.store.apply_recovery([write])[0].applied
    [first, *_] = client.runs(recovery_state="quarantined", limit=1)
    client.note(first["id"], "the disk was full")
    found = client.recovery()
    assert found["counts"] == {"requeued": 0, "failed": 0, "quarantined": 5}
    assert found["reasons"] == [{"reason": "worker_lost", "count": 3}, {"reason": "host_lost", "count": 2}]
    assert found["quarantined"][0]["note"] == "the disk was full" and len(found["quarantined"]) == 5
    assert found["oldest_quarantined_at"] < found["newest_quarantined_at"]
    assert system.client("foreigner").recovery()["counts"]["quarantined"] == 0
    figures = system.store.recovery_figures(None)
    assert figures.counts[RecoveryState.QUARANTINED] == 5
    assert client.audit(subject=first["id"], action="run.noted")[0]["data"]["note"] == "the disk was full"


def test_a_job_that_the_queue_lost_is_told_again(api: Deployment) -> None:
    client = api.client()
    runs = failed(api, 2)
    job = client.requeue_many(filter={"status": "failed"})["job"]  # this API tells nobody
    queue = InlineJobQueue(SystemClock())
    tell = TellAgain(queue, {TASK: lambda: api.store.waiting_jobs(stale_for=timedelta(0), limit=10)})
    assert tell() == 1
    loop = performer(api, queue)
    loop.start()
    try:
        assert client.wait_job(job["id"], timeout=20)["done"] == len(runs)
        assert tell() == 0
    finally:
        loop.stop(timedelta(0))
        loop.join(timedelta(seconds=10))


def test_a_cancelled_job_stops(api: Deployment) -> None:
    client = api.client()
    failed(api, 2)
    job = client.requeue_many(filter={"status": "failed"})["job"]
    assert client.cancel_job(job["id"])["state"] == "cancelled"
    assert client.wait_job(job["id"])["done"] == 0
    with pytest.raises(InvalidRequest):
        client.requeue_many()


# --- the command line -----------------------------------------------------------------------------------------------


def test_requeue_from_the_command_line(system: Deployment, call) -> None:
    first, second, third = failed(system, 3)
    dry = call("requeue", first, second, "run_nope", "--dry-run")
    assert dry.exit_code == 1 and [line.split()[1] for line in dry.stdout.splitlines()] == [
        "requeued", "requeued", "not_found"
    ]  # fmt: skip
    some = call("requeue", first, second, "--json", "--reason", "x")
    assert some.exit_code == 0 and json.loads(some.stdout)["total"] == 2
    again = call("requeue", first, third)
    assert (again.exit_code, "invalid_status (queued)" in again.stdout) == (1, True)
    assert call("requeue", first).exit_code == 4 and call("requeue", "run_nope").exit_code == 3
    assert call("requeue").exit_code == 2 and call("requeue", first, "--status", "failed").exit_code == 2


def test_requeue_by_filter_from_the_command_line(system: Deployment, call) -> None:
    runs = failed(system, 3)
    dry = call("requeue", "--status", "failed", "--since", "1h", "--dry-run")
    assert dry.exit_code == 0 and "3 would be requeued" in dry.stdout
    asked = call("requeue", "--status", "failed", stdin="n\n")
    assert asked.exit_code == 1 and "Requeue 3 runs?" in asked.stderr
    assert system.client().run(runs[0])["status"] == "failed"
    done = call("requeue", "--error-code", "it_broke", "--yes", "--wait", "--reason", "fixed")
    assert done.exit_code == 0, done.stderr
    job = done.stdout.split()[0]
    assert done.stdout == f"{job} completed: 3 requeued\n"
    shown = json.loads(call("job", "show", job, "--json").stdout)
    assert shown["outcomes"] == {"requeued": 3}
    assert call("job", "show", job, "--items").stdout.count(" requeued") == 3
    assert job in call("job", "list").stdout and "requeue" in call("job", "show", job).stdout
    assert call("job", "wait", job).exit_code == 0 and call("job", "show", "job_nope").exit_code == 3
    assert "completed" in call("job", "cancel", job).stdout
    trail = json.loads(call("audit", "list", "--action", "run.", "--since", "1h", "--json").stdout)["items"]
    assert {row["data"]["reason"] for row in trail} == {"fixed"}
    assert "run.requeued" in call("audit", "list").stdout
    assert call("requeue", "--status", "failed", "--yes").stdout == "there is nothing to requeue\n"
    failed(system, 1)
    second = call("requeue", "--status", "failed", "--yes", "--json")
    name = json.loads(second.stdout)["id"]
    eventually(lambda: json.loads(call("job", "show", name, "--json").stdout)["state"] == "completed")
    assert call("recovery").exit_code == 0 and "counts" in call("recovery", "--json").stdout
