"""Thousands of quarantined runs go back while the process that does it is killed: each exactly once."""

import os
import signal
from collections.abc import Callable

import pytest
import redis as library
from rq import Queue, Worker

from oah.client import Client
from oah.testing.fleet import API, CONTROLLER, Fleet
from oah.testing.processes import alive
from tests.support.pace import FULL
from tests.support.quarantine import each_was_requeued_once, quarantine
from tests.support.servers_redis import RealServer
from tests.support.store_clerk import Behind
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

FILTER = {"recovery_state": "quarantined", "error_code": "worker_lost"}


def some_done(behind: Behind, job_id: str, least: int) -> int:
    """How many are done once so many are."""

    def done() -> int:
        [(found,)] = behind.query("SELECT done FROM jobs WHERE id = ?", job_id)
        return int(found) if found >= least else 0

    return eventually(done, within=60, every=0.005, what="the job is at work")


def test_thousands_by_filter_with_the_worker_killed_in_the_middle(
    start_fleet: Callable[..., Fleet], postgres_url: str, valkey_server: RealServer
) -> None:
    valkey_server.reset()
    count = 5_000 if FULL else 2_500
    quarantine(postgres_url, count)
    behind, redis = Behind(postgres_url), valkey_server.client()
    fleet = start_fleet(workers=0, database_url=postgres_url, redis_url=valkey_server.url)
    client = fleet.client
    first = eventually(lambda: Worker.all(connection=redis), within=60, what="rq knows the worker")
    assert [worker.queue_names() for worker in first] == [["oah"]]
    assert client.requeue_many(filter=FILTER, dry_run=True)["total"] == count
    job = client.requeue_many(filter=FILTER, reason="the rack is back")["job"]
    done = some_done(behind, job["id"], 500)
    os.kill(first[0].pid, signal.SIGKILL)
    ended = wait(client, job["id"])
    assert done < count and ended["attempt"] == 2, "it was killed in the middle and taken over"
    assert (ended["total"], ended["done"], ended["failed"]) == (count, count, 0)
    each_was_requeued_once(behind, count, job["id"])
    eventually(
        lambda: client.queue()["uniqueReadySessionCount"] == count // 100, within=30, what="the broker has heard of all"
    )
    assert Queue("oah", connection=redis).count == 0
    pids = {worker.pid for worker in Worker.all(connection=redis)} - {first[0].pid}
    fleet.kill(CONTROLLER)
    eventually(lambda: not any(alive(pid) for pid in pids), within=20, what="the child has ended with its parent")


def test_a_flush_in_the_middle_loses_no_job(start_fleet: Callable[..., Fleet], postgres_url: str) -> None:
    """Asked for while nobody performs and then forgotten by Redis: the leader tells of it again."""
    count = 300
    quarantine(postgres_url, count)
    fleet = start_fleet(workers=0, database_url=postgres_url, env={"OAH_JOBS__PROCESSES": "0"})
    job = fleet.client.requeue_many(filter=FILTER)["job"]
    with library.Redis(unix_socket_path=str(fleet.data_dir / "redis" / "redis.sock")) as server:
        eventually(lambda: Queue("oah", connection=server).job_ids == [f"job-{job['id']}"], within=20)
        server.flushall()
        eventually(lambda: Queue("oah", connection=server).job_ids == [f"job-{job['id']}"], within=40)


def test_inline_on_sqlite_with_the_process_killed_in_the_middle(start_fleet: Callable[..., Fleet]) -> None:
    count = 1_000
    env = {"OAH_EMBEDDED_WORKERS": "0"}
    fleet = start_fleet(api_with_workers=True, redis_url="memory://", env=env)
    url = f"sqlite:///{fleet.data_dir / 'oah.db'}"
    quarantine(url, count)
    behind = Behind(url)
    job = fleet.client.requeue_many(filter=FILTER)["job"]
    done = some_done(behind, job["id"], 100)
    fleet.kill(API)
    fleet.restart(API)
    fleet.wait_ready(within=60)
    ended = wait(fleet.client, job["id"])
    assert done < count and ended["attempt"] == 2
    each_was_requeued_once(behind, count, job["id"])


def wait(client: Client, job_id: str) -> dict:
    """The job at its end, having gone forward only."""
    looks: list[int] = []
    ended = client.wait_job(job_id, timeout=60, on_progress=lambda job: looks.append(job["done"]))
    assert ended["state"] == "completed", ended
    assert looks == sorted(looks) and len(set(looks)) > 1
    return ended
