"""What comes in at the edges: stores that are not there at the start, garbage under every key, senseless requests."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from oah.adapters.redis.keys import KEYS, Key
from oah.cli.fleet import free_port
from oah.cli.main import oah
from oah.core.model.lane import Lane
from tests.support import eventually
from tests.support.scenes import Act, Scene, play
from tests.support.servers_redis import RealServer, valkey_binary
from tests.support.servers_sql import PostgresServer

pytestmark = pytest.mark.chaos

PLACE = Path(tempfile.gettempdir()) / f"oah-edge-{os.getpid()}"
"""Where the programs of these agents are not, at first."""
PROGRAMS = {
    "absent": f'name = "absent"\nkind = "command"\nargv = ["{PLACE}/absent", "{{input}}"]\n',
    "forbidden": f'name = "forbidden"\nkind = "command"\nargv = ["{PLACE}/forbidden"]\n',
    "gone": f'name = "gone"\nkind = "marker"\nargv = ["{PLACE}/gone"]\ninject = "{{turn}} {{run}}"\n',
    "mute": 'name = "mute"\nkind = "marker"\nargv = ["/bin/true"]\ninject = "{turn} {run}"\n',
}
PORTS = {"worker-1": free_port(), "controller": free_port()}


@pytest.fixture(scope="module")
def scene(postgres_server: PostgresServer) -> Iterator[Scene]:
    own = {
        "worker-1": {"OAH_WORKER__PORT": str(PORTS["worker-1"])},
        "controller": {"OAH_CONTROLLER__PORT": str(PORTS["controller"])},
    }
    server = RealServer("valkey", valkey_binary())
    PLACE.mkdir()
    (PLACE / "forbidden").touch(mode=0o644)
    try:
        with play(postgres_server, server, slots=4, cold=True, own=own, profiles=PROGRAMS) as found:
            yield found
    finally:
        shutil.rmtree(PLACE)


def ask(url: str) -> httpx.Response | None:
    """An answer, or None while nobody listens."""
    try:
        return httpx.get(url, timeout=10)
    except httpx.TransportError:
        return None


def refused(scene: Scene, name: str) -> int:
    """How often this process has said that it is not ready."""
    return sum("not ready" in line for line in scene.fleet.lines(name))


def test_processes_wait_for_stores_that_are_not_there(scene: Scene) -> None:
    """Alive, not ready, saying why, at growing distances; they work once the stores are there, one after the other."""
    urls = {name: f"http://127.0.0.1:{port}" for name, port in PORTS.items()} | {"api": scene.fleet.url}
    waiting = ("worker-1", "controller", "api", "worker-2")
    for name, url in urls.items():
        eventually(lambda url=url: ask(f"{url}/healthz"), within=30, every=0.1, what=f"{name} is alive")  # type: ignore[misc]
    eventually(lambda: all(refused(scene, name) >= 3 for name in waiting), within=20, every=0.1, what="they try again")
    for name in waiting:
        told = [line for line in scene.fleet.lines(name) if "not ready" in line]
        assert "connection to server on socket" in told[0]
        assert [line.split("again in ")[1][:3] for line in told[:3]] == ["0.2", "0.4", "0.8"]
    answers = {name: ask(f"{url}/readyz") for name, url in urls.items()}
    assert {name: answer and answer.status_code for name, answer in answers.items()} == dict.fromkeys(urls, 503)
    for name in ("controller", "api"):
        text = answers[name].text  # type: ignore[union-attr]
        assert "PostgreSQL" in text and "Redis" in text

    scene.near.sql.heal()
    scene.far.sql.heal()
    eventually(lambda: (scene.fleet.data_dir / "admin.key").exists(), within=20, what="the API has its key")
    ready = ask(f"{scene.fleet.url}/readyz")
    assert ready is not None and ready.status_code == 503
    assert "Redis" in ready.text and "PostgreSQL" not in ready.text
    session = scene.client.create_session("ledger", env={"OAH_LEDGER": str(scene.fleet.data_dir / "early")})["id"]
    run = scene.client.submit(session, "0.1")["id"]  # accepted without Redis

    scene.heal()
    scene.fleet.wait_ready(within=30)
    assert scene.client.wait(run, timeout=30)["status"] == "completed"
    for name, url in urls.items():
        eventually(lambda url=url: ask(f"{url}/readyz").status_code == 200, within=20, what=f"{name} is ready")  # type: ignore[misc,union-attr]


def places(scene: Scene, session: str, lane: Lane) -> list[tuple[Key, str]]:
    """Every key there is, as it stands for this session, this lane and each worker."""
    found = []
    for key in KEYS:
        if key.kind == "channel":
            continue
        for worker in [*scene.worker_ids().values()] if "wid" in key.parts else [""]:
            parts = {"sid": session, "lane": str(lane), "class": "interactive", "ws": "default", "wid": worker}
            parts |= {"p": lane.profile, "n": "1"}
            for group in ("ws:default", f"profile:{lane.profile}", "all") if "group" in key.parts else ("",):
                found.append((key, key.at(*({**parts, "group": group}[part] for part in key.parts))))
    return sorted(found, key=lambda place: place[0].name != "poison")  # so that there is a list of the others


def test_garbage_under_any_key_is_set_aside(scene: Scene) -> None:
    """One key after the other holds something of another type, while a run is active, one waits for its time and an
    agent is warm. Work goes on each time, no process ends, nothing is interrupted."""
    scene.heal()
    scene.fleet.wait_ready(within=30)
    processes = dict(scene.fleet.pids)
    with scene.act() as act:
        warm, long = act.session("shell"), act.session()
        act.wait_terminal([act.submit(warm, "x=kept")])
        active = act.submit(long, "10")
        act.wait_running([active])
        delayed = act.submit(act.session(), "0.1", delay=3)
        redis = scene.server.client()
        took: dict[str, float] = {}
        for key, name in places(scene, long, Lane("default", "ledger")):
            begun = time.monotonic()
            redis.delete(name)
            if key.kind == "string":
                redis.rpush(name, "garbage")
            else:
                redis.set(name, "garbage")
            try:
                act.wait_terminal([act.submit(act.session(), "0.05")], within=20)
            except AssertionError as error:
                error.add_note(f"garbage under {name}")
                raise
            took[name] = time.monotonic() - begun
        slowest = max(took, key=lambda name: took[name])
        print(f"{len(took)} keys; the longest time for a run was {took[slowest]:.2f} s, with garbage under {slowest}")
        again = act.submit(warm, "echo $x")
        act.wait_terminal([delayed, again, active])
        assert "kept" in act.client.result(again)["output"]
        act.untouched(act.runs)
    assert scene.fleet.pids == processes, "a process has ended"
    listed = {name for tag in "0g" for name in scene.server.client().hvals(f"oah:{{{tag}}}:poison")}
    listed |= {row[0] for row in scene.query("SELECT payload ->> 'key' FROM dead_letters WHERE kind = 'poison'")}
    assert len(listed) > 3, "nothing was set aside"


BAD_BODIES = {
    "nul": (b'{"input": "a\\u0000b"}', 400, "invalid_text"),
    "lone surrogate": (b'{"input": "\\ud800"}', 400, "invalid_text"),
    "surrogate in metadata": (b'{"input": "x", "metadata": {"\\udfff": 1}}', 400, "invalid_text"),
    "no text": (b'{"input": ""}', 400, "empty_input"),
    "no string": (b'{"input": 5}', 422, "invalid_request"),
    "no utf-8": (b'{"input": "\xff\xfe"}', 400, "invalid_request"),
    "no json": (b"{", 422, "invalid_request"),
    "infinite": (b'{"input": "x", "delay_seconds": 1e999}', 422, "invalid_request"),
    "20 MB": (b'{"input": "' + b"x" * 20_000_000 + b'"}', 413, "payload_too_large"),
    "above the limit": (b'{"input": "' + b"x" * 1_100_000 + b'"}', 413, "payload_too_large"),
}
REASONS = {
    "absent": ("program_not_found", "/absent"),
    "gone": ("program_not_found", "/gone"),
    "forbidden": ("spawn_failed", "Permission denied"),
    "mute": ("agent_not_ready", "ended before it was ready"),
    "cwd": ("spawn_failed", "/nowhere"),
}


def failed(act: Act, run: str, code: str, words: str) -> None:
    """This run ended so."""
    document = act.client.run(run)
    assert (document["status"], document["error"]["code"]) == ("failed", code), document
    assert words in document["error"]["message"]


def test_senseless_requests_are_typed_errors_and_senseless_programs_failed_runs(scene: Scene) -> None:
    """And the workers go on after each."""
    scene.heal()
    scene.fleet.wait_ready(within=30)
    processes = dict(scene.fleet.pids)
    headers = {"authorization": f"Bearer {scene.fleet.key}", "content-type": "application/json"}
    with scene.act() as act, httpx.Client(base_url=scene.fleet.url, timeout=30, headers=headers) as http:
        session = act.session("shell")
        for name, (body, status, code) in BAD_BODIES.items():
            answer = http.post(f"/v1/sessions/{session}/runs", content=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code), f"{name}: {answer.text[:300]}"
            assert answer.headers["content-type"] == "application/problem+json"
        assert http.post("/v1/sessions/ses_none/runs", json={"input": "x"}).status_code == 404
        assert http.post("/v1/sessions", json={"agent": "none"}).json()["code"] == "unknown_agent"
        bad = {"mute": act.session("mute")}
        bad["cwd"] = http.post("/v1/sessions", json={"agent": "shell", "cwd": "/nowhere"}).json()["id"]
        runs = {name: [act.submit(bad[name], "x") for _ in range(3)] for name in bad}
        act.wait_terminal()
        for name in bad:
            for run in runs[name]:
                failed(act, run, *REASONS[name])
        for worker in scene.worker_ids():
            with scene.only(worker):
                act.wait_terminal([act.submit(act.session(), "0.05")])
        asked = act.submit(session, "echo fine")
        act.wait_terminal([asked])
        assert act.client.result(asked)["output"].strip() == "fine"
    assert scene.fleet.pids == processes, "a process has ended"


def says_why(scene: Scene, run: str, lane: str, why: str) -> None:
    """Everywhere where somebody would look: nobody serves it, and why the workers that are there do not."""
    client = scene.client
    document = client.run(run)
    assert document["status"] == "queued"
    reason = document["wait_reason"]
    assert (reason["code"], reason["lane"], reason["withdrawn"]) == ("no_worker", lane, {why: 2})
    assert f"no live worker serves lane {lane}; 2 withdrew it: {why}" in reason["message"]
    environment = {"OAH_API_URL": scene.fleet.url, "OAH_API_KEY": scene.fleet.key}
    shown = CliRunner().invoke(oah, ["run", "show", run], env=environment)
    assert shown.exit_code == 0 and f"2 withdrew it: {why}" in shown.stdout, shown.output
    found = client.diagnosis(waiting_seconds=0)
    assert {"lane": lane, "sessions": 1, "withdrawn": {why: 2}} in found["unserved_lanes"]
    [waiting] = [each for each in found["waiting"] if each["run_id"] == run]
    assert waiting["wait_reason"] == {"code": "no_worker", "message": reason["message"]}


def test_a_run_whose_program_no_worker_has_says_so_and_runs_once_one_has_it(scene: Scene) -> None:
    """What it would have failed with is for those whose program goes while a worker serves it."""
    scene.heal()
    scene.fleet.wait_ready(within=30)
    scene.fleet.wait_workers()
    programs = {name: PLACE / name for name in ("absent", "forbidden", "gone")}
    with scene.act() as act:
        sessions = {name: act.session(name) for name in programs}
        first = {name: act.submit(sessions[name], "x") for name in programs}
        for name, path in programs.items():
            says_why(scene, first[name], f"default/{name}", f"no program {str(path)!r} on the PATH")
        for path in programs.values():
            path.write_text("#!/bin/sh\nexit 0\n")
            path.chmod(0o755)
        scene.fleet.kill("worker-1", signal.SIGTERM, reap=20)
        scene.fleet.restart("worker-1")
        act.wait_terminal()
        assert {act.client.run(first[name])["status"] for name in ("absent", "forbidden")} == {"completed"}
        failed(act, first["gone"], "agent_not_ready", "ended before it was ready")
        for name, path in programs.items():
            path.chmod(0o644) if name == "forbidden" else path.unlink()
        late = {name: act.submit(sessions[name], "x") for name in programs}
        act.wait_terminal()
        for name in programs:
            failed(act, late[name], *REASONS[name])
