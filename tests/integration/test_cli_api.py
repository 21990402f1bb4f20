"""The commands against a real `oah-api` with its worker inside: one process, `memory://`, SQLite."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oah.cli.main import oah
from oah.testing.fleet import Fleet
from tests.support import eventually
from tests.support.warm import warm


@pytest.fixture(scope="module")
def system() -> Iterator[Fleet]:
    directory = Path(tempfile.mkdtemp(prefix="oah-t-", dir="/tmp"))
    with Fleet(directory / "d", api_with_workers=True, redis_url="memory://", starter=warm()) as fleet:
        yield fleet
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def _here(system: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OAH_API_URL", system.url)
    monkeypatch.setenv("OAH_DATA_DIR", str(system.data_dir))
    monkeypatch.delenv("OAH_API_KEY", raising=False)


def call(*args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(oah, list(args), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def document(*args: str) -> dict:
    result = call(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def session() -> str:
    result = call("session", "create", "--agent", "shell", "--title", "t", "--label", "a=b", "--env", "COLOUR=blue")
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("words", "wish"),
    [
        ("/r/one", {"repo": "/r/one"}),
        ("/r/one@origin/main", {"repo": "/r/one", "ref": "origin/main"}),
        ("/r/a@b@HEAD", {"repo": "/r/a@b", "ref": "HEAD"}),
    ],
)
def test_a_session_asks_for_a_worktree(words: str, wish: dict[str, str]) -> None:
    made = document("session", "create", "--agent", "shell", "--worktree", words)
    assert document("session", "show", made["id"])["worktree"] == wish


def test_a_workspace_gives_worktrees_to_sessions_that_name_no_directory() -> None:
    wish = {"repo": "/r/one", "ref": "main"}
    assert document("workspace", "update", "default", "--worktree", "/r/one@main")["worktree"] == wish
    made = [document("session", "create", "--agent", "shell", *more) for more in ([], ["--cwd", "/"])]
    own = document("session", "create", "--agent", "shell", "--worktree", "/r/two")
    assert [each["worktree"] for each in (*made, own)] == [wish, None, {"repo": "/r/two"}]
    assert call("workspace", "update", "default", "--worktree", "relative").exit_code != 0
    assert document("workspace", "update", "default", "--worktree", "none")["worktree"] is None
    assert document("session", "create", "--agent", "shell")["worktree"] is None


def test_a_run_from_submit_to_recording(session: str, tmp_path: Path) -> None:
    waited = call("run", "submit", session, "echo sky is $COLOUR", "--wait")
    assert (waited.exit_code, waited.stdout) == (0, "sky is blue\n"), waited.stderr
    [run] = document("run", "list", "--session", session)["items"]
    assert (run["status"], run["session_id"]) == ("completed", session)
    assert document("run", "show", run["id"])["exit_code"] == 0
    assert document("run", "result", run["id"])["output"].strip() == "sky is blue"
    [attempt] = document("run", "attempts", run["id"])["items"]
    assert (attempt["attempt"], attempt["reason"], attempt["outcome"]) == (1, "first", "completed")
    types = [event["type"] for event in document("run", "logs", run["id"])["items"]]
    assert (types[0], types[1], types[-1]) == ("run.queued", "run.started", "run.completed")
    assert call("run", "logs", run["id"]).stdout == "sky is blue\n"
    cast = tmp_path / "x.cast"
    assert call("run", "recording", run["id"], "-o", str(cast)).exit_code == 0
    assert json.loads(cast.read_text().splitlines()[0])["version"] == 2
    assert call("requeue", run["id"]).stdout == f"{run['id']} queued\n"
    assert call("run", "wait", run["id"]).exit_code == 0
    assert len(document("run", "attempts", run["id"])["items"]) == 2


def test_messages_for_an_agent(session: str) -> None:
    sent = call("session", "send", session, "-", stdin="words for later")
    assert sent.exit_code == 0, sent.stderr
    message, state = sent.stdout.split()
    assert state == "queued"
    [listed] = document("session", "messages", session)["items"]
    assert (listed["id"], listed["mode"], listed["seq"]) == (message, "wait", 1)
    assert message in call("session", "messages", session, "--state", "queued").stdout
    as_run = document("session", "send", session, "echo as a run", "--run")
    assert call("run", "wait", as_run["run_id"]).exit_code == 0
    assert document("run", "show", as_run["run_id"])["kind"] == "prompt"
    shown = call("session", "wake", session)
    assert "not woken: nothing_waits" in shown.stdout, "a shell takes no messages: what waited is a dead letter"
    assert call("session", "send", "ses_nothing", "x").exit_code == 3


def test_follow_streams_and_a_failure_is_exit_1(session: str) -> None:
    followed = call("run", "submit", session, "echo one; sleep 0.3; echo two", "--follow")
    assert (followed.exit_code, followed.stdout) == (0, "one\ntwo\n")
    failed = call("run", "submit", session, "-", "--wait", stdin="echo out; (exit 3)")
    assert (failed.exit_code, failed.stdout) == (1, "out\n")
    assert "exit_nonzero" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_the_same_key_is_the_same_run(session: str) -> None:
    first = call("run", "submit", session, "echo x", "--idempotency-key", f"k-{session}")
    again = call("run", "submit", session, "echo x", "--idempotency-key", f"k-{session}")
    other = call("run", "submit", session, "echo y", "--idempotency-key", f"k-{session}")
    assert first.stdout == again.stdout
    assert (other.exit_code, other.stdout) == (4, "")


def test_pause_queue_cancel_resume_close(session: str) -> None:
    assert "paused" in call("session", "pause", session).stdout
    first = call("run", "submit", session, "echo first").stdout.strip()
    second = call("run", "submit", session, "echo second", "--class", "background").stdout.strip()
    assert [run["id"] for run in document("session", "queue", session)["items"]] == [first, second]
    inspected = document("queue", "inspect", session)
    assert inspected["session"]["queued_count"] == 2
    assert document("run", "show", first)["wait_reason"]
    assert call("run", "cancel", first).exit_code == 0
    assert document("run", "show", first)["status"] == "cancelled"
    assert call("session", "resume", session).stdout == f"{session} open\n"
    assert call("run", "wait", second).exit_code == 0
    assert call("session", "close", session).exit_code == 0
    refused = call("run", "submit", session, "echo late")
    assert refused.exit_code == 4, refused.stderr


def test_cancel_of_a_running_run_and_logs_so_far(session: str) -> None:
    run = call("run", "submit", session, "echo begun; sleep 60").stdout.strip()
    eventually(lambda: "begun" in call("run", "logs", run).stdout, within=30)
    assert call("session", "close", session).exit_code == 4
    assert call("run", "cancel", run).exit_code == 0
    assert call("run", "wait", run).exit_code == 1
    assert document("run", "show", run)["status"] == "cancelled"


def test_a_busy_session_is_spoken_to_interrupted_and_cancelled_by_force(session: str) -> None:
    reads = "echo ready; read -r line; echo heard $line; trap '' INT TERM; while :; do sleep 1; done"
    live = call("run", "submit", session, reads).stdout.strip()
    eventually(lambda: "ready" in call("run", "logs", live).stdout, within=30)
    assert call("run", "submit", session, "echo no", "--on-busy", "reject").exit_code == 4
    assert call("run", "steer", session, "you there").stdout == f"{live} delivered\n"
    eventually(lambda: "heard you there" in call("run", "logs", live).stdout, within=30)
    waiting = call("run", "submit", session, "echo second").stdout.strip()
    urgent = call("run", "submit", session, "echo first", "--on-busy", "interrupt").stdout.strip()
    assert [run["id"] for run in document("session", "queue", session)["items"]] == [live, urgent, waiting]
    begun = time.monotonic()
    answers = call("run", "cancel", live, waiting, "run_none", "--force")
    assert (answers.exit_code, answers.stdout) == (3, f"{live} signalled\n{waiting} removed\n")
    assert "run_none" in answers.stderr
    assert call("run", "wait", urgent).exit_code == 0
    assert time.monotonic() - begun < 14, "the ladder alone takes 15 s"
    assert document("run", "show", live)["stop_reason"] == "interrupt"
    items = json.loads(call("run", "cancel", live, waiting, "--json").stdout)["items"]
    assert [item["result"] for item in items] == ["too_late", "too_late"]


def test_an_agent_that_takes_no_text() -> None:
    session = call("session", "create", "--agent", "exec").stdout.strip()
    run = call("run", "submit", session, "echo begun; sleep 60").stdout.strip()
    eventually(lambda: "begun" in call("run", "logs", run).stdout, within=30)
    refused = call("run", "steer", session, "hello")
    assert refused.exit_code == 4 and "steer" not in refused.stdout
    assert call("run", "cancel", run, "--grace", "200ms").exit_code == 0
    assert call("run", "wait", run).exit_code == 1
    queued = document("run", "steer", session, "echo now a run")
    assert queued["delivery"] == "queued"
    assert call("run", "wait", queued["id"]).exit_code == 0


def test_delay_and_timeout(session: str) -> None:
    later = call("run", "submit", session, "echo later", "--delay", "1h").stdout.strip()
    assert document("run", "show", later)["deferred"]
    slow = call("run", "submit", session, "sleep 60", "--timeout", "500ms", "--wait")
    assert slow.exit_code == 1
    assert "timed_out" in slow.stderr
    assert call("run", "cancel", later).exit_code == 0


def test_fleet_and_operations() -> None:
    [worker] = document("worker", "list")["items"]
    assert document("worker", "show", worker["id"])["pid"] == worker["pid"]
    assert call("worker", "cordon", worker["id"]).exit_code == 0
    eventually(lambda: document("worker", "show", worker["id"])["cordoned"], within=20, what="cordoned")
    assert call("doctor").exit_code == 1
    assert call("worker", "uncordon", worker["id"]).exit_code == 0
    eventually(lambda: not document("worker", "show", worker["id"])["cordoned"], within=20, what="uncordoned")
    assert document("queue", "stats")["globalActiveWorkers"] == 1
    assert document("controller", "show")["leader"]
    assert {"shell", "python", "exec", "noop"} <= {agent["name"] for agent in document("agent", "list")["items"]}
    healthy = call("doctor")
    assert healthy.exit_code == 0, healthy.stdout
    shown = call("top", "--once").stdout
    assert worker["name"] in shown
    assert all(name in shown.split() for name in ("running", "waiting", "slots", "desired", "p95")), "80 columns do"


def test_what_workers_measured_reaches_whoever_asks(session: str) -> None:
    assert call("run", "submit", session, "echo hi", "--wait").exit_code == 0
    eventually(
        lambda: document("queue", "stats")["queueWait"]["interactive"]["startedCount"] > 0,
        within=20,
        what="the worker has reported how long the run had waited",
    )
    waits = document("queue", "stats")["queueWait"]["interactive"]
    assert 0 < waits["p50Ms"] <= waits["p95Ms"] < 60_000
    [pool] = document("pool", "list")["items"]
    assert (pool["pool"], pool["workers"]) == ("default", 1)
    assert pool["wait_p95_seconds"] is not None
    assert document("queue", "repair", "--dry-run")["faults"] == {}
    assert document("queue", "inspect", session)["broker"]["place"] in ("idle", "parked", "leased")


def test_keys_and_workspaces(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("workspace", "create", "blue").exit_code == 0
    assert call("workspace", "create", "blue").exit_code == 4
    assert "blue" in [one["name"] for one in document("workspace", "list")["items"]]
    made = document("key", "create", "--name", "reader", "--scope", "read", "--workspace", "blue")
    monkeypatch.setenv("OAH_API_KEY", made["secret"])
    assert call("session", "show", session).exit_code == 3
    assert document("session", "list")["items"] == []
    assert call("session", "create", "--agent", "shell").exit_code == 4
    monkeypatch.delenv("OAH_API_KEY")
    assert call("key", "revoke", made["id"]).exit_code == 0
    monkeypatch.setenv("OAH_API_KEY", made["secret"])
    assert call("session", "list").exit_code == 4


def test_bad_input(session: str) -> None:
    assert call("session", "create", "--agent", "nope").exit_code == 2
    assert call("run", "submit", "ses_nope", "x").exit_code == 3
    assert call("run", "submit", session, "").exit_code == 2
    assert call("run", "submit", session, "-", stdin="x" * 3_000_000).exit_code == 2
    assert call("run", "show", "../../healthz").exit_code == 3
    assert call("run", "recording", "run_nope").exit_code == 3
    for result in (call("run", "submit", session, "a\x00b"), call("session", "show", "\x1b[31m")):
        assert result.exit_code in (2, 3)
        assert "\x1b" not in result.stderr


def test_the_console_script_in_a_pipe(system: Fleet, session: str) -> None:
    """A reader that leaves early is no error, and a document is one document."""
    script = [sys.executable, "-c", "from oah.cli.main import main; main()"]
    listed = subprocess.run([*script, "run", "list", "--json"], capture_output=True, timeout=60, check=True)
    assert isinstance(json.loads(listed.stdout)["items"], list)
    command = f"{sys.executable} -c 'from oah.cli.main import main; main()' config show; echo $? >&2"
    # Without the variables of the tests, which mean nothing to it: said only if the reader stays long enough.
    env = {name: value for name, value in os.environ.items() if not name.startswith("OAH_TEST_")}
    piped = subprocess.run(
        ["sh", "-c", f"( {command} ) | head -1"], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    assert piped.stdout.startswith("SETTING")
    assert piped.stderr.strip() == "0"


def test_no_answer_waits_for_a_delayed_acknowledgement(system: Fleet) -> None:
    """40 ms on every request of a kept connection is what a server without TCP_NODELAY costs on Linux."""
    system.client.health()
    took = []
    for _ in range(20):
        began = time.perf_counter()
        system.client.health()
        took.append(time.perf_counter() - began)
    assert min(took) < 0.035


def test_a_failed_attempt_is_followed_by_another(session: str) -> None:
    text = 'if [ "$OAH_ATTEMPT" = 1 ]; then (exit 3); else echo second; fi'
    options = ("--max-retries", "2", "--retry-initial", "100ms", "--order", "strict", "--retry-on", "exit_nonzero")
    waited = call("run", "submit", session, text, *options, "--wait")
    assert (waited.exit_code, waited.stdout) == (0, "second\n"), waited.stderr
    [run] = document("run", "list", "--session", session)["items"]
    assert (run["failed_attempts"], run["max_retries"], run["error"]) == (1, 2, None)
    attempts = document("run", "attempts", run["id"])["items"]
    assert [(a["reason"], a["agent"], a["outcome"]) for a in attempts] == [
        ("first", "fresh", "failed"),
        ("retried", "warm", "completed"),
    ]
    shown = call("run", "submit", session, "(exit 1)", "--max-retries", "1", "--retry-initial", "10m")
    run_id = shown.stdout.strip()
    eventually(lambda: document("run", "show", run_id)["next_attempt_at"])
    lines = dict(line.split(maxsplit=1) for line in call("run", "show", run_id).stdout.splitlines())
    assert lines["retry"].startswith("1 of 1 at ")
    assert call("run", "cancel", run_id).stdout == f"{run_id} removed\n"
    assert call("run", "submit", session, "echo next", "--wait").stdout == "next\n"
