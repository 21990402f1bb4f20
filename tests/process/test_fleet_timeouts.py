"""Real processes, one run per reason (B36): status, error code, event and metric; agents that speak of their own run
over HTTP; hooks around runs that hang and fail."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from oah.cli.fleet import free_port
from oah.client import Client, OwnRun
from oah.errors import Conflict, Unauthorized
from oah.testing.fleet import Fleet
from tests.support import eventually
from tests.support.warm import warm

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

PROFILE = """
name = "{name}"
kind = "command"
argv = ["sh", "-c", "{{input}}"]
{more}
"""
HOOKED = """
[[hooks]]
name = "hangs"
when = ["before_run", "after_run"]
command = ["sh", "-c", "echo begun; exec sleep 60"]
timeout_seconds = 0.5
[[hooks]]
name = "writes"
when = ["before_run", "on_cancel", "on_completed", "on_failed", "on_cancelled", "on_timed_out"]
command = ["sh", "-c", "echo $OAH_HOOK_WHEN $OAH_STATUS $OAH_ERROR_CODE $OAH_STOP_REASON >> {file}.$OAH_RUN_ID"]
[[hooks]]
name = "inside"
when = "after_run"
url = "http://127.0.0.1:9/"
"""

# An agent that has no SDK at hand: curl would do the same.
CALL = """
import json, os, sys, urllib.request
def call(word, **body):
    request = urllib.request.Request(
        os.environ["OAH_API_URL"] + "/v1/runs/" + os.environ["OAH_RUN_ID"] + "/" + word, json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OAH_RUN_KEY"]})
    return json.load(urllib.request.urlopen(request, timeout=20))
"""


PORTS: dict[str, int] = {}
"""Where the processes show their figures."""


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="oah-to-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Fleet]:
    agents = directory / "d" / "agents.d"
    agents.mkdir(parents=True)
    (agents / "hooked.toml").write_text(PROFILE.format(name="hooked", more=HOOKED.format(file=directory / "hooks")))
    (agents / "watched.toml").write_text(PROFILE.format(name="watched", more="idle_timeout_seconds = 2"))
    PORTS.update({"worker-1": free_port(), "controller": free_port()})
    own = {
        "worker-1": {"OAH_WORKER__PORT": str(PORTS["worker-1"])},
        "controller": {"OAH_CONTROLLER__PORT": str(PORTS["controller"])},
    }
    with Fleet(directory / "d", workers=1, slots=12, own=own, starter=warm()) as started:
        yield started


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Client:
    return fleet.client


def submit(client: Client, text: str, *, agent: str = "exec", session: str | None = None, **more: Any) -> str:
    session = session or client.create_session(agent)["id"]
    return str(client.submit(session, text, **more)["id"])


def python(*lines: str) -> str:
    return CALL + "\n".join(lines) + "\n"


def metric(fleet: Fleet, name: str, **labels: str) -> float:
    """Summed over the processes of the fleet."""
    texts = [httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text for port in PORTS.values()]
    total = 0.0
    for text in texts:
        for line in text.splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rpartition(" ")[2])
    return total


SLEEP = "echo begun; sleep 600"


def limited(client: Client) -> dict[str, str]:
    """A run for each reason, all at once."""
    blocked = client.create_session("exec")["id"]
    submit(client, "sleep 5", session=blocked)
    stuck = 'print(call("steps", name="slow", kind="{}", timeout_seconds=1)["number"]); import time; time.sleep(600)'
    return {
        "run_timeout": submit(client, SLEEP, timeout=1),
        "deadline_exceeded": submit(client, SLEEP, deadline=datetime.now(UTC) + timedelta(seconds=3)),
        "start_timeout": submit(client, "true", session=blocked, start_timeout=1),
        "queued deadline_exceeded": submit(
            client, "true", session=blocked, deadline=datetime.now(UTC) + timedelta(seconds=2)
        ),
        "idle_timeout": submit(client, SLEEP, idle_timeout=1.5),
        "profile idle_timeout": submit(client, SLEEP, agent="watched"),
        "step_timeout": submit(client, python(stuck.format("tool")), agent="python"),
        "model_timeout": submit(client, python(stuck.format("model")), agent="python"),
    }


@pytest.fixture(scope="module")
def runs(client: Client) -> dict[str, str]:
    found = limited(client)
    for run in found.values():
        client.wait(run, timeout=60)
    return found


REASONS = (
    "run_timeout",
    "deadline_exceeded",
    "start_timeout",
    "queued deadline_exceeded",
    "idle_timeout",
    "profile idle_timeout",
    "step_timeout",
    "model_timeout",
)


@pytest.mark.parametrize("which", REASONS)
def test_b36_each_limit_has_its_reason(client: Client, runs: dict[str, str], which: str) -> None:
    code = which.rpartition(" ")[2]
    run = client.run(runs[which])
    assert (run["status"], run["error"]["code"]) == ("timed_out", code), run
    last = list(client.stream(runs[which], timeout=5))[-1]
    assert (last.type, last.data["error"]["code"]) == ("run.timed_out", code)
    queued = which in ("start_timeout", "queued deadline_exceeded")
    assert run["attempt"] == (0 if queued else 1), "and it is not tried again by itself"
    assert [one["outcome"] for one in client.attempts(runs[which])] == ([] if queued else ["timed_out"])


def test_b36_the_metric_tells_them_apart(fleet: Fleet, runs: dict[str, str]) -> None:
    for code, least in {
        "run_timeout": 1, "deadline_exceeded": 2, "start_timeout": 1, "idle_timeout": 2, "step_timeout": 1,
        "model_timeout": 1,
    }.items():  # fmt: skip
        eventually(lambda code=code, least=least: metric(fleet, "oah_timeouts_total", code=code) >= least, within=20)


def test_the_run_after_one_that_expired_goes_on(client: Client) -> None:
    session = client.create_session("exec")["id"]
    first = submit(client, "sleep 3", session=session)
    late = submit(client, "true", session=session, start_timeout=0.5)
    after = submit(client, "echo next", session=session)
    assert client.wait(after, timeout=30)["status"] == "completed"
    assert client.run(late)["error"]["code"] == "start_timeout"
    assert client.run(first)["status"] == "completed"


def test_steps_and_progress_keep_a_silent_run_alive(client: Client) -> None:
    told = python(
        "import time",
        "for n in range(12):",
        '    _ = call("progress", percent=n * 6)',
        "    time.sleep(0.4)",
        'print("done")',
    )
    run = submit(client, told, agent="python", idle_timeout=3)
    ended = client.wait(run, timeout=40)
    assert (ended["status"], client.result(run)["output"]) == ("completed", "done\n"), ended
    assert any(event.type == "run.progress" for event in client.stream(run, timeout=5))


@pytest.mark.parametrize("agent", ["python", "exec", "shell"])
def test_a_run_waits_for_a_person_and_goes_on(client: Client, agent: str, directory: Path) -> None:
    """By the key in its environment, from an agent of each kind; a run that waits is not idle."""
    idle, dwell = (3.0, 4.5) if agent == "python" else (None, 0.0)
    script = python('_ = call("wait", reason="may I?")', 'print("answer:", input())')
    if agent != "python":
        path = directory / f"waits-{agent}.py"
        path.write_text(script)
        script = f"{shutil.which('python3')} {path}"
    run = submit(client, script, agent=agent, idle_timeout=idle)
    eventually(lambda: client.run(run)["status"] == "waiting_tool", within=30)
    assert [(one["kind"], one["state"]) for one in client.steps(run)] == [("wait", "started")]
    eventually(lambda: client.run(run)["status"] != "waiting_tool" or waited(client, run) > dwell, within=20)
    assert client.run(run)["status"] == "waiting_tool", client.run(run)
    answer = client.send_input(run, "yes, you may")
    assert answer["delivery"] in ("delivered", "unverified")
    ended = client.wait(run, timeout=30)
    assert ended["status"] == "completed", ended
    assert "answer: yes, you may" in client.result(run)["output"]
    types = [event.type for event in client.stream(run, timeout=5) if event.type != "run.output"]
    assert types == ["run.queued", "run.started", "run.waiting_tool", "run.resumed", "run.completed"]
    with pytest.raises(Conflict) as over:
        client.send_input(run, "again")
    assert over.value.code == "run_not_waiting"


def waited(client: Client, run: str) -> float:
    """Seconds by the database's clock since it began to wait."""
    [step] = client.steps(run)
    at = datetime.fromisoformat(step["started_at"])
    return (datetime.now(at.tzinfo) - at).total_seconds()


def test_a_waiting_run_is_cancelled_like_any_other(client: Client) -> None:
    run = submit(client, python('_ = call("wait", reason="x")', "input()"), agent="python")
    eventually(lambda: client.run(run)["status"] == "waiting_tool", within=30)
    client.cancel(run)
    ended = client.wait(run, timeout=60)
    assert (ended["status"], ended["stop_reason"]) == ("cancelled", "cancel")
    last = list(client.stream(run, timeout=5))[-1]
    assert last.type == "run.cancelled" and last.data["by"].startswith("key:") and last.data["reason"] == "cancel"


def test_the_sdk_speaks_for_its_run_and_its_key_dies_with_the_attempt(
    client: Client, fleet: Fleet, directory: Path
) -> None:
    file = directory / "key"
    tell = f"import json, os, sys\njson.dump(dict(os.environ), open({str(file)!r}, 'w'))\ninput()\n"
    run = submit(client, tell, agent="python")
    eventually(lambda: file.exists() and file.read_text().endswith("}"), within=30)
    environment = json.loads(file.read_text())
    assert not [name for name in environment if "DATABASE" in name or "REDIS" in name]
    with OwnRun(environment) as own:
        assert own.run_id == run
        with own.step("think", kind="model") as told:
            told["tokens"] = 12
        with pytest.raises(ZeroDivisionError), own.step("fall"):
            1 / 0  # noqa: B018
        own.wait("may I?")
        client.send_input(run, "go on")
        client.wait(run, timeout=30)
        with pytest.raises(Unauthorized):
            own.progress("too late")
    assert [(one["name"], one["outcome"], one["data"]) for one in client.steps(run)[:2]] == [
        ("think", "completed", {"tokens": 12}),
        ("fall", "failed", {}),
    ]
    # A warm agent's next run has a key of its own.
    session = client.run(run)["session_id"]
    file.unlink()
    second = submit(client, tell.replace("input()", ""), session=session)
    client.wait(second, timeout=30)
    again = json.loads(file.read_text())
    assert again["OAH_RUN_ID"] == second
    assert again["OAH_RUN_KEY"] != environment["OAH_RUN_KEY"]


# --- hooks -----------------------------------------------------------------------------------------------------------


def written(directory: Path, run: str) -> list[str]:
    path = directory / f"hooks.{run}"
    return [" ".join(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def test_hooks_that_hang_or_fail_hold_up_no_run(client: Client, directory: Path) -> None:
    run = submit(client, "echo fine", agent="hooked")
    ended = client.wait(run, timeout=30)
    assert (ended["status"], client.result(run)["output"]) == ("completed", "fine\n")
    eventually(lambda: written(directory, run) == ["before_run", "on_completed completed"], within=20)
    expected = {
        ("hangs", "before_run", "timeout"),
        ("hangs", "after_run", "timeout"),
        ("inside", "after_run", "refused"),
    }
    session = ended["session_id"]
    events: dict[int, Any] = {}

    def told() -> bool:
        with contextlib.suppress(TimeoutError):
            for event in client.stream(session, after=0, timeout=1):
                if event.type == "hook.notice":
                    events[event.number] = event
        return {(e.data["hook"], e.data["when"], e.data["reason"]) for e in events.values()} == expected

    eventually(told, within=20)
    hung = next(e for e in events.values() if e.data["when"] == "before_run")
    assert hung.data["output"] == "begun\n" and 0.4 < hung.data["seconds"] < 30


def test_hooks_are_told_of_a_cancel_and_of_every_end(client: Client, directory: Path) -> None:
    cancelled = submit(client, SLEEP, agent="hooked")
    failed = submit(client, "exit 3", agent="hooked")
    slow = submit(client, SLEEP, agent="hooked", timeout=0.5)
    assert any(
        event.type == "run.output" for event in client.stream(cancelled, timeout=20) if "begun" in str(event.data)
    )
    client.cancel(cancelled)
    for run in (cancelled, failed, slow):
        client.wait(run, timeout=40)
    eventually(lambda: written(directory, failed) == ["before_run", "on_failed failed exit_nonzero"], within=20)
    eventually(lambda: written(directory, slow) == ["before_run", "on_timed_out timed_out run_timeout"], within=20)
    eventually(
        lambda: sorted(written(directory, cancelled)) == ["before_run", "on_cancel cancel", "on_cancelled cancelled"],
        within=20,
    )
