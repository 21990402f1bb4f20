"""Commands against a scripted API: what is asked over HTTP, what is printed, and the exit code."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from oah.cli.connection import Connection
from oah.cli.main import oah
from oah.client import Client, governance

RUN: dict[str, Any] = {
    "id": "run_1",
    "session_id": "ses_1",
    "status": "completed",
    "class": "interactive",
    "position": 1,
    "attempt": 1,
    "input": "echo hi",
    "created_at": "2026-01-02T03:04:05Z",
    "error": None,
}
FAILED = {**RUN, "status": "failed", "error": {"code": "exit_nonzero", "message": "exit code 3"}}

Route = Any  # a document, a (status, document) pair, or a function of the request


class Api:
    """Answers what it was told, remembers what it was asked."""

    def __init__(self, routes: dict[str, Route]) -> None:
        self.routes = routes
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        route = self.routes.get(f"{request.method} {request.url.path}")
        if route is None:
            return httpx.Response(404, json={"code": "not_found", "detail": f"no {request.url.path}"})
        if callable(route):
            answer = route(request)
            assert isinstance(answer, httpx.Response)
            return answer
        status, document = route if isinstance(route, tuple) else (200, route)
        # Escaped, so that a document may hold a lone surrogate, as JSON can.
        return httpx.Response(status, content=json.dumps(document), headers={"content-type": "application/json"})

    def body(self, index: int = -1) -> Any:
        return json.loads(self.asked[index].content)


Oah = Callable[..., tuple[Result, Api]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Oah:
    """Runs `oah ARGS` against routes; nothing of the caller's settings is seen."""
    monkeypatch.chdir(tmp_path)
    for name in ("OAH_API_URL", "OAH_API_KEY", "OAH_DATA_DIR", "OAH_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str, routes: dict[str, Route] | None = None, stdin: str | bytes | None = None) -> Any:
        api = Api(routes or {})
        connection = Connection(
            open_client=lambda url, key: Client(url, key, retries=0, transport=httpx.MockTransport(api))
        )
        result = CliRunner().invoke(oah, list(args), obj=connection, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result, api

    return run


def sse(*events: dict[str, Any]) -> Callable[[httpx.Request], httpx.Response]:
    text = "".join(f"id: {e['number']}\nevent: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return lambda request: httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def event(number: int, kind: str, **data: Any) -> dict[str, Any]:
    return {
        "number": number,
        "type": kind,
        "data": data,
        "session_id": "ses_1",
        "run_id": "run_1",
        "attempt": 1,
        "at": "2026-01-02T03:04:05Z",
    }


STREAM = sse(
    event(1, "run.queued"),
    event(2, "run.started"),
    event(3, "run.output", text="hel"),
    event(4, "run.output", text="lo\n"),
    event(5, "run.completed"),
)


# --- sessions -------------------------------------------------------------------------------------------------------


def test_session_create_prints_the_id_alone(call: Oah) -> None:
    result, api = call(
        "session", "create", "--agent", "shell", "--label", "team=a", "--env", "X=1=2", "--title", "t",
        routes={"POST /v1/sessions": (201, {"id": "ses_1"})},
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "ses_1\n")
    assert api.body() == {"agent": "shell", "labels": {"team": "a"}, "env": {"X": "1=2"}, "title": "t"}


def test_session_create_of_an_unknown_agent_is_bad_input(call: Oah) -> None:
    problem = (422, {"code": "unknown_agent", "detail": "no agent 'x'", "hint": "oah agent list"})
    result, _ = call("session", "create", "--agent", "x", routes={"POST /v1/sessions": problem})
    assert result.exit_code == 2
    assert result.stderr == "error: no agent 'x' (hint: oah agent list)\n"


def test_session_list_as_json_is_one_document(call: Oah) -> None:
    page = {"items": [{"id": "ses_1", "agent": "shell", "state": "open"}], "next_cursor": None}
    result, _ = call("session", "list", "--json", routes={"GET /v1/sessions": page})
    assert json.loads(result.stdout) == {"items": page["items"], "more": False}


def test_a_list_says_when_there_is_more(call: Oah) -> None:
    page = {"items": [{"id": f"ses_{n}", "agent": "shell", "state": "open"} for n in range(3)], "next_cursor": "c"}
    result, api = call("session", "list", "--limit", "2", routes={"GET /v1/sessions": page})
    assert result.exit_code == 0
    assert "ses_1" in result.stdout
    assert "ses_2" not in result.stdout
    assert "--limit" in result.stderr
    assert api.asked[0].url.params["limit"] == "3"


def test_control_characters_of_a_title_do_not_reach_the_terminal(call: Oah) -> None:
    page = {"items": [{"id": "ses_1", "agent": "shell", "state": "open", "title": "\x1b[31mred\nline"}]}
    result, _ = call("session", "list", routes={"GET /v1/sessions": {**page, "next_cursor": None}})
    assert "\x1b" not in result.stdout
    assert len(result.stdout.splitlines()) == 2


def test_closing_a_busy_session_is_a_conflict(call: Oah) -> None:
    problem = (409, {"code": "session_busy", "detail": "a run is active", "hint": "--cancel"})
    result, _ = call("session", "close", "ses_1", routes={"DELETE /v1/sessions/ses_1": problem})
    assert (result.exit_code, result.stderr) == (4, "error: a run is active (hint: --cancel)\n")


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_and_resume(call: Oah, verb: str) -> None:
    routes = {
        f"POST /v1/sessions/ses_1/{verb}": {
            "id": "ses_1",
            "state": "open",
            "holds": [{"reason": "paused", "until": None}],
        }
    }
    result, _ = call("session", verb, "ses_1", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "ses_1 open held: paused\n")


# --- runs -----------------------------------------------------------------------------------------------------------

ACCEPT = {"POST /v1/sessions/ses_1/runs": (202, {"id": "run_1", "status": "queued", "position": 1})}


def test_submit_prints_the_id_and_sends_a_key(call: Oah) -> None:
    result, api = call("run", "submit", "ses_1", "echo hi", "--class", "background", "--delay", "1m30s", routes=ACCEPT)
    assert (result.exit_code, result.stdout) == (0, "run_1\n")
    assert api.body() == {"input": "echo hi", "class": "background", "delay_seconds": 90.0}
    assert api.asked[0].headers["idempotency-key"]


def test_submit_passes_everything_on(call: Oah) -> None:
    result, api = call(
        "run", "submit", "ses_1", "-", "--idempotency-key", "k", "--on-busy", "reject", "--timeout", "5",
        routes=ACCEPT, stdin="from a pipe\n",
    )  # fmt: skip
    assert result.exit_code == 0
    assert api.body() == {"input": "from a pipe\n", "on_busy": "reject", "timeout_seconds": 5.0}
    assert api.asked[0].headers["idempotency-key"] == "k"


def test_submit_passes_limits_on(call: Oah) -> None:
    limits = ("--start-timeout", "1m", "--idle-timeout", "30", "--step-timeout", "500ms")
    result, api = call("run", "submit", "ses_1", "x", *limits, routes=ACCEPT)
    assert result.exit_code == 0
    assert api.body() == {
        "input": "x",
        "start_timeout_seconds": 60.0,
        "idle_timeout_seconds": 30.0,
        "step_timeout_seconds": 0.5,
    }


def test_input_for_a_run_that_waits(call: Oah) -> None:
    answer = {"id": "run_1", "status": "running", "delivery": "delivered"}
    result, api = call("run", "input", "run_1", "-", routes={"POST /v1/runs/run_1/input": answer}, stdin="yes\n")
    assert (result.exit_code, result.stdout) == (0, "run_1 delivered\n")
    assert api.body() == {"input": "yes\n"}


def test_steps(call: Oah) -> None:
    step = {"number": 1, "attempt": 1, "kind": "tool", "name": "make", "state": "started", "outcome": None}
    page = {"items": [{**step, "started_at": "2026-01-02T03:04:05Z", "ended_at": None}], "next_cursor": None}
    result, _ = call("run", "steps", "run_1", routes={"GET /v1/runs/run_1/steps": page})
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:5] == ["1", "1", "tool", "make", "started"]


def test_submit_of_bytes_that_are_no_text_is_a_usage_error(call: Oah) -> None:
    result, api = call("run", "submit", "ses_1", "-", routes=ACCEPT, stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert "not UTF-8" in result.stderr
    assert not api.asked


def test_submit_to_an_unknown_session_is_not_found(call: Oah) -> None:
    result, _ = call("run", "submit", "nope", "x")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_wait_prints_the_answer(call: Oah) -> None:
    routes = {
        **ACCEPT,
        "GET /v1/runs/run_1": RUN,
        "GET /v1/runs/run_1/result": {"status": "completed", "output": "hi", "exit_code": 0},
    }
    result, _ = call("run", "submit", "ses_1", "echo hi", "--wait", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "hi\n")


def test_wait_for_a_run_that_fails_exits_1_and_says_why(call: Oah) -> None:
    routes = {
        **ACCEPT,
        "GET /v1/runs/run_1": FAILED,
        "GET /v1/runs/run_1/result": {"status": "failed", "output": "oops\n", "exit_code": 3},
    }
    result, _ = call("run", "submit", "ses_1", "exit 3", "--wait", routes=routes)
    assert (result.exit_code, result.stdout) == (1, "oops\n")
    assert result.stderr == "error: run run_1 failed: exit_nonzero: exit code 3 (hint: oah run logs run_1)\n"
    result, _ = call("run", "submit", "ses_1", "exit 3", "--wait", "--json", routes=routes)
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {**FAILED, "output": "oops\n", "exit_code": 3}


def test_follow_prints_output_as_it_comes(call: Oah) -> None:
    routes = {
        **ACCEPT,
        "GET /v1/runs/run_1/events": STREAM,
        "GET /v1/runs/run_1": RUN,
        "GET /v1/runs/run_1/result": {"status": "completed", "output": "hello\n"},
    }
    result, _ = call("run", "submit", "ses_1", "x", "--follow", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "hello\n")


def test_follow_and_json_exclude_each_other(call: Oah) -> None:
    result, api = call("run", "submit", "ses_1", "x", "--follow", "--json", routes=ACCEPT)
    assert result.exit_code == 2
    assert not api.asked


def test_logs(call: Oah) -> None:
    routes = {"GET /v1/runs/run_1": RUN, "GET /v1/runs/run_1/events": STREAM}
    result, _ = call("run", "logs", "run_1", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    result, _ = call("run", "logs", "run_1", "--events", routes=routes)
    assert [line.split()[2] for line in result.stdout.splitlines()] == [
        "run.queued", "run.started", "run.output", "run.output", "run.completed",
    ]  # fmt: skip
    result, _ = call("run", "logs", "run_1", "--json", routes=routes)
    assert [item["number"] for item in json.loads(result.stdout)["items"]] == [1, 2, 3, 4, 5]
    result, _ = call("run", "logs", "run_1", "--json", "--follow", routes=routes)
    assert [json.loads(line)["number"] for line in result.stdout.splitlines()] == [1, 2, 3, 4, 5]


def test_list_passes_filters(call: Oah) -> None:
    routes = {"GET /v1/runs": {"items": [FAILED], "next_cursor": None}}
    result, api = call(
        "run", "list", "--status", "failed", "--status", "timed_out", "--session", "ses_1", "--error-code", "e",
        "--recovery-state", "requeued", "--class", "subagent", routes=routes,
    )  # fmt: skip
    assert result.exit_code == 0
    assert "exit_nonzero" in result.stdout
    asked = api.asked[0].url.params
    assert asked.get_list("status") == ["failed", "timed_out"]
    assert (asked["session"], asked["error_code"], asked["recovery_state"]) == ("ses_1", "e", "requeued")
    assert asked["class"] == "subagent"


def test_show_result_attempts(call: Oah) -> None:
    attempt = {"attempt": 1, "reason": "first", "worker_id": "w.1", "outcome": "failed"}
    routes = {
        "GET /v1/runs/run_1": FAILED,
        "GET /v1/runs/run_1/result": {"status": "failed", "output": "\ud800x"},
        "GET /v1/runs/run_1/attempts": {"items": [attempt], "next_cursor": None},
    }
    result, _ = call("run", "show", "run_1", "--json", routes=routes)
    assert json.loads(result.stdout) == FAILED
    result, _ = call("run", "show", "run_1", routes=routes)
    assert "error.code" in result.stdout
    result, _ = call("run", "attempts", "run_1", "--json", routes=routes)
    assert json.loads(result.stdout)["items"] == [attempt]
    result, _ = call("run", "result", "run_1", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "?x\n")


def test_recording_is_saved_or_printed(call: Oah, tmp_path) -> None:
    cast = b'{"version": 2}\n[0.1, "o", "\\u0000"]\n'
    routes = {"GET /v1/runs/run_1/transcript": lambda request: httpx.Response(200, content=cast)}
    result, api = call("run", "recording", "run_1", "--attempt", "2", "-o", str(tmp_path / "a.cast"), routes=routes)
    assert result.exit_code == 0
    assert (tmp_path / "a.cast").read_bytes() == cast
    assert api.asked[0].url.params["attempt"] == "2"
    result, _ = call("run", "recording", "run_1", routes=routes)
    assert result.stdout_bytes == cast


@pytest.mark.parametrize("command", [("run", "requeue", "run_1"), ("requeue", "run_1")])
def test_requeue(call: Oah, command: tuple[str, ...]) -> None:
    routes = {"POST /v1/runs/run_1/requeue": (202, {"id": "run_1", "status": "queued"})}
    result, _ = call(*command, routes=routes)
    assert (result.exit_code, result.stdout) == (0, "run_1 queued\n")
    problem = (409, {"code": "run_requeue_invalid_status", "detail": "it runs"})
    result, _ = call(*command, routes={"POST /v1/runs/run_1/requeue": problem})
    assert result.exit_code == 4


def test_cancel(call: Oah) -> None:
    routes = {"POST /v1/runs/run_1/cancel": (202, {"id": "run_1", "status": "cancelled"})}
    result, _ = call("run", "cancel", "run_1", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "run_1 cancelled\n")


# --- fleet, tenancy -------------------------------------------------------------------------------------------------


def test_workers(call: Oah, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = {"id": "w.1", "name": "w", "host": "h", "pid": 7, "state": "busy", "slots": 8, "busy": 3}
    routes = {
        "GET /v1/workers": {"items": [worker], "next_cursor": None},
        "GET /v1/workers/w.1": worker,
        "POST /v1/workers/w.1/drain": (202, {"id": "w.1"}),
        "POST /v1/workers/w.1/cordon": (202, {"id": "w.1"}),
        "POST /v1/workers/w.1/uncordon": (202, {"id": "w.1"}),
        "POST /v1/pools/gpu/drain": (202, {"pool": "gpu", "workers": ["w.1", "w.2"], "command": "drain"}),
    }
    result, _ = call("worker", "list", routes=routes)
    assert "3/8" in result.stdout
    result, _ = call("worker", "show", "w.1", "--json", routes=routes)
    assert json.loads(result.stdout) == worker
    for verb in ("drain", "cordon", "uncordon"):
        result, _ = call("worker", verb, "w.1", routes=routes)
        assert (result.exit_code, result.stdout) == (0, f"w.1 {verb} asked for\n")
    result, api = call("worker", "cordon", "w.1", "--for", "2h", routes=routes)
    assert (result.exit_code, api.body()) == (0, {"for_seconds": 7200.0})
    kept = {"by": "key:1", "at": "2030-01-01T00:00:00.000000Z", "until": "2030-01-01T02:00:00.000000Z"}
    cordoned = {"items": [{**worker, "cordoned": True, "cordon": kept}], "next_cursor": None}
    result, _ = call("worker", "list", routes={**routes, "GET /v1/workers": cordoned})
    assert "by key:1 until 2030-01-01T02:00Z" in result.stdout
    gone = {"items": [{"name": "v", "host": "ant", "pool": "gpu", "alive": False, **kept}], "next_cursor": None}
    result, _ = call("worker", "cordons", routes={**routes, "GET /v1/cordons": gone})
    assert "ant" in result.stdout and "by key:1 until" in result.stdout
    monkeypatch.setattr(governance, "LOOK_SECONDS", 0)
    looks = [{**worker, "draining": d, "busy": b, "parked": 0} for d, b in ((False, 3), (True, 1), (True, 0))]
    for seen, code in ((looks, 0), (looks[1::-1], 4)):
        pages = iter([httpx.Response(200, json={"items": [each], "next_cursor": None}) for each in seen])
        result, _ = call(
            "worker", "drain", "w.1", "--wait", routes={**routes, "GET /v1/workers": lambda _, p=pages: next(p)}
        )
        assert result.exit_code == code and next(pages, None) is None, "until it was empty, or serves again"
    wish = ("--deadline", "90", "--then", "wait", "--stay")
    result, api = call("worker", "drain", "--pool", "gpu", *wish, routes=routes)
    assert result.stdout == "w.1 drain asked for\nw.2 drain asked for\n"
    assert api.body() == {"deadline_seconds": 90.0, "then": "wait", "stay": True}
    for neither_or_both in ((), ("w.1", "--pool", "gpu")):
        result, _ = call("worker", "cordon", *neither_or_both, routes=routes)
        assert result.exit_code == 2 and "--pool POOL" in result.stderr


def test_rollouts(call: Oah) -> None:
    member = {"worker_id": "w.1", "name": "w", "host": "h", "stage": "done", "version": "1", "successor_version": "2"}
    ended = {"id": "ro_1", "pool": "gpu", "state": "completed", "batch": 2, "workers": 2, "done": 2, "error": None}
    ended |= {"members": [member, {**member, "worker_id": "v.1", "name": "v", "successor_version": None}]}
    failed = {**ended, "id": "ro_2", "state": "failed", "done": 0, "error": "w on h: it does not end"}
    routes = {
        "POST /v1/rollouts": (201, {**ended, "state": "running", "done": 0}),
        "GET /v1/rollouts": {"items": [failed, ended], "next_cursor": None},
        "GET /v1/rollouts/ro_1": ended,
        "GET /v1/rollouts/ro_2": failed,
        "POST /v1/rollouts/ro_1/abort": {**ended, "state": "aborted", "done": 1},
    }
    wish = ("--batch", "2", "--deadline", "5m", "--then", "fail", "--health", "90s", "--version", "2")
    result, api = call("rollout", "restart", "gpu", *wish, routes=routes)
    assert result.stdout == "ro_1 restarts 2 workers of gpu, 2 at a time\n"
    assert api.body() == {
        "pool": "gpu", "batch": 2, "deadline_seconds": 300.0, "then": "fail", "health_seconds": 90.0, "version": "2",
    }  # fmt: skip
    result, _ = call("rollout", "restart", "gpu", "--wait", routes=routes)
    assert (result.exit_code, result.stdout) == (0, "ro_1 completed: 2 of 2\n")
    assert "w on h done" in result.stderr
    result, _ = call("rollout", "wait", "ro_2", routes=routes)
    assert result.exit_code == 1 and "w on h: it does not end" in result.stderr
    result, _ = call("rollout", "list", routes=routes)
    assert "0/2" in result.stdout and "it does not end" in result.stdout
    result, _ = call("rollout", "status", "ro_1", routes=routes)
    assert "1 -> 2" in result.stdout
    result, _ = call("rollout", "abort", "ro_1", routes=routes)
    assert result.stdout == "ro_1 aborted: 1 of 2 were restarted\n"


@pytest.mark.parametrize(
    ("command", "path"), [(("queue", "stats"), "/v1/queue"), (("controller", "show"), "/v1/controller")]
)
def test_snapshots(call: Oah, command: tuple[str, ...], path: str) -> None:
    result, _ = call(*command, "--json", routes={f"GET {path}": {"readySessionCount": 3}})
    assert json.loads(result.stdout) == {"readySessionCount": 3}
    result, _ = call(*command, routes={f"GET {path}": {"readySessionCount": 3}})
    assert result.stdout == "readySessionCount  3\n"


POOL = {
    "pool": "gpu", "load": 7, "ready": 3, "capped": 2, "running": 4, "waiting": 1, "workers": 2, "slots": 8,
    "idle_slots": 4, "desired": None, "oldest_wait_seconds": 12.5, "wait_p50_seconds": None, "wait_p95_seconds": 0.25,
    "sure": True, "doubts": [],
}  # fmt: skip
MEMBER = {"id": "w.1", "host": "h", "state": "busy", "busy": 4, "slots": 4, "slots_max": 8, "pressure": ["memory"]}
DECISION = {"at": "2026-01-02T03:04:05Z", "current": 2, "desired": 1, "reason": "scale_down", "outcome": "draining",
            "target": "processes", "going": {"worker-2": {}}}  # fmt: skip


def test_pools(call: Oah) -> None:
    found = {**POOL, "members": [MEMBER], "decisions": [DECISION]}
    routes = {
        "GET /v1/pools": {"items": [POOL], "next_cursor": None},
        "GET /v1/pools/gpu": found,
        "GET /v1/pools/gpu/metric": {"pool": "gpu", "value": 7},
    }
    result, _ = call("pool", "list", routes=routes)
    head, line = (each.split() for each in result.stdout.splitlines())
    assert dict(zip(head, line, strict=True)) | {"P50": "-", "LOAD": "7", "OLDEST": "12s", "P95": "250ms"} == dict(
        zip(head, line, strict=True)
    )
    result, _ = call("pool", "list", "--json", routes=routes)
    assert json.loads(result.stdout) == {"items": [POOL], "more": False}
    result, _ = call("pool", "show", "gpu", routes=routes)
    assert "4/4 of 8" in result.stdout and "memory" in result.stdout and "worker-2" in result.stdout
    result, _ = call("pool", "show", "gpu", "--json", routes=routes)
    assert json.loads(result.stdout) == found
    result, _ = call("pool", "metric", "gpu", routes=routes)
    assert result.stdout == "7\n"
    result, _ = call("pool", "show", "none", routes=routes)
    assert result.exit_code == 3


def test_what_was_decided_about_sizes(call: Oah) -> None:
    decision = {**DECISION, "pool": "gpu", "inputs": {"staying": 3, "ready": 0}, "detail": {"error": "quota"}}
    routes = {"GET /v1/controller/decisions": {"items": [decision, decision], "next_cursor": None}}
    result, api = call("controller", "decisions", "--pool", "gpu", "--limit", "1", routes=routes)
    head, line = (each.split() for each in result.stdout.splitlines())
    shown = dict(zip(head, line, strict=True))
    assert (shown["FROM"], shown["TO"], shown["GOING"], shown["WHY"]) == ("3", "1", "worker-2", "quota")
    assert "--limit shows more" in result.stderr
    assert dict(api.asked[0].url.params) == {"pool": "gpu", "limit": "2"}
    result, _ = call("controller", "decisions", "--json", routes=routes)
    assert json.loads(result.stdout) == {"items": [decision, decision], "more": False}


LANE = {"lane": "default/shell", "class": "interactive", "sessions": 3, "capped": 1, "oldest_seconds": 2.0}


def test_the_queue_by_lane_and_pool(call: Oah) -> None:
    routes = {"GET /v1/queue": {"readySessionCount": 3, "lanes": [LANE], "pools": [POOL]}}
    result, _ = call("queue", "stats", routes=routes)
    assert "default/shell  interactive  3" in result.stdout and "gpu" in result.stdout


def test_the_queue_is_repaired_page_by_page(call: Oah) -> None:
    def page(part: str, cursor: str | None, **more: Any) -> dict[str, Any]:
        return {"part": part, "looked": 2, "faults": {}, "repaired": [], "next_cursor": cursor, **more}

    pages = [
        page("sessions", "sessions,b", faults={"no_place": ["a"]}, repaired=["a"]),
        page("owners", "ready,", faults={"stale_owner": ["c"]}),
        page("ready", None, faults={"stray": ["a"], "torn": ["d"]}, repaired=["a", "d"]),
    ]

    def serve(request: httpx.Request) -> httpx.Response:
        given = request.url.params.get("cursor") or json.loads(request.content or b"{}").get("cursor")
        return httpx.Response(200, json=pages[[None, "sessions,b", "ready,"].index(given)])

    routes = {"POST /v1/queue/repair": serve, "GET /v1/queue/faults": serve}
    result, _ = call("queue", "repair", "--json", routes=routes)
    assert (result.exit_code, json.loads(result.stdout)) == (
        1,
        {
            "queued_sessions": 2,
            "owners": 2,
            "entries": 2,
            "faults": {"no_place": ["a"], "stale_owner": ["c"], "stray": ["a"], "torn": ["d"]},
            "repaired": ["a", "d"],
            "left": 1,
        },
    )
    result, api = call("queue", "repair", "--reconcile", routes=routes)
    assert result.stdout.endswith("repaired 2, left 1\n") and "1 owner(s) are stale" in result.stdout
    assert api.body()["reconcile"] is True
    result, _ = call("queue", "repair", "--dry-run", routes=routes)
    assert result.exit_code == 1


def test_workspaces_and_agents(call: Oah) -> None:
    routes = {
        "GET /v1/workspaces": {"items": [{"id": "default", "name": "default"}], "next_cursor": None},
        "POST /v1/workspaces": (201, {"id": "wks_1", "name": "a"}),
        "GET /v1/agents": {"items": [{"name": "shell"}], "next_cursor": None},
    }
    assert call("workspace", "list", routes=routes)[0].exit_code == 0
    result, api = call("workspace", "create", "a", "--max-active-runs", "3", routes=routes)
    assert (result.stdout, api.body()) == ("wks_1\n", {"name": "a", "max_active_runs": 3})
    assert "shell" in call("agent", "list", routes=routes)[0].stdout


def test_a_workspace_is_changed_and_told_to_say_nothing_again(call: Oah) -> None:
    routes = {"PATCH /v1/workspaces/a": {"id": "wks_1", "name": "a"}, "GET /v1/workspaces/a": {"id": "wks_1"}}
    asked = ("--recovery-strategy", "requeue_all", "--recovery-max-attempts", "0", "--max-active-runs", "none")
    result, api = call("workspace", "update", "a", *asked, routes=routes)
    assert result.exit_code == 0
    assert api.body() == {"recovery_strategy": "requeue_all", "recovery_max_attempts": 0, "max_active_runs": None}
    _, api = call("workspace", "update", "a", "--recovery-strategy", "none", routes=routes)
    assert api.body() == {"recovery_strategy": None}
    assert call("workspace", "update", "a", routes=routes)[0].exit_code == 2
    assert call("workspace", "update", "a", "--recovery-strategy", "pray", routes=routes)[0].exit_code == 2
    refused = call("workspace", "update", "a", "--rate", "abc", routes=routes)[0]
    assert (refused.exit_code, "'abc' is neither a number nor none" in refused.stderr) == (2, True)
    assert call("workspace", "show", "a", routes=routes)[0].stdout == "id  wks_1\n"


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "invalid_request", 2),
        (401, "unauthorized", 4),
        (403, "forbidden", 4),
        (404, "not_found", 3),
        (409, "conflict", 4),
        (413, "payload_too_large", 2),
        (422, "invalid_request", 2),
        (429, "queue_full", 4),
        (500, "broken", 1),
        (503, "unavailable", 5),
    ],
)
def test_exit_codes(call: Oah, status: int, code: str, exit_code: int) -> None:
    problem = {"code": code, "detail": "two\nlines", "hint": "do this"}
    result, _ = call("run", "show", "run_1", routes={"GET /v1/runs/run_1": (status, problem)})
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr == "error: two lines (hint: do this)\n"


def test_nobody_answers(call: Oah) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    result, _ = call("run", "show", "run_1", routes={"GET /v1/runs/run_1": refuse})
    assert result.exit_code == 5
    assert "oah up" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("run", "submit"),
        ("run", "nonsense"),
        ("run", "submit", "s", "t", "--delay", "soon"),
        ("run", "submit", "s", "t", "--delay", "-1"),
        ("session", "create", "--agent", "a", "--env", "X"),
        ("run", "list", "--status", "fine"),
        ("--url", "ftp://x", "session", "list"),
    ],
)
def test_usage_errors_are_one_line_with_a_hint(call: Oah, args: tuple[str, ...]) -> None:
    result, api = call(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "(hint: " in result.stderr
    assert result.stderr.count("\n") == 1
    assert not api.asked


def test_a_run_may_say_what_becomes_of_it_when_its_worker_is_lost(call: Oah) -> None:
    asked = ("--recovery-strategy", "fail", "--recovery-max-attempts", "0")
    result, api = call("run", "submit", "ses_1", "x", *asked, routes=ACCEPT)
    assert result.exit_code == 0
    assert api.body()["recovery"] == {"strategy": "fail", "max_attempts": 0}
    _, api = call("run", "submit", "ses_1", "x", routes=ACCEPT)
    assert "recovery" not in api.body()


# --- pauses and caps ------------------------------------------------------------------------------------------------

PAUSE = {"kind": "pool", "name": "gpu", "reason": "night", "by": "key:1", "at": "2026-01-02T03:04:05Z"}


def test_pause_and_resume_name_what_they_mean(call: Oah) -> None:
    result, api = call("pause", "pool", "gpu", "--reason", "night", routes={"POST /v1/pauses": (201, PAUSE)})
    assert (result.exit_code, result.stdout) == (0, "pool gpu paused\n")
    assert api.body() == {"kind": "pool", "name": "gpu", "reason": "night"}
    was = {"kind": "all", "name": None, "was_paused": False}
    result, api = call("resume", "all", routes={"POST /v1/pauses/resume": was})
    assert (result.exit_code, result.stdout) == (0, "all was not paused\n")
    result, _ = call("pause", "session", "ses_1", routes={"POST /v1/sessions/ses_1/pause": {"id": "ses_1"}})
    assert (result.exit_code, result.stdout) == (0, "session ses_1 paused\n")
    result, _ = call("pauses", routes={"GET /v1/pauses": {"items": [PAUSE]}})
    assert "gpu" in result.stdout and "night" in result.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("pause", "all", "gpu"),
        ("pause", "pool"),
        ("resume", "workspace"),
        ("pause", "session", "ses_1", "--reason", "x"),
        ("cap", "set", "all", "profile", "3"),
        ("cap", "set", "profile", "3"),
        ("cap", "set", "profile", "shell", "0"),
    ],
)
def test_pauses_and_caps_that_say_too_much_or_too_little(call: Oah, args: tuple[str, ...]) -> None:
    result, api = call(*args)
    assert result.exit_code == 2 and not api.asked


def test_cap_set_of_a_profile_a_workspace_and_all(call: Oah) -> None:
    cap = {"kind": "profile", "name": "shell", "max_active_runs": 3}
    result, api = call("cap", "set", "profile", "shell", "3", routes={"PUT /v1/caps": cap})
    assert (result.stdout, api.body()) == ("profile shell: 3 at once\n", cap)
    result, api = call("cap", "set", "all", "none", routes={"PUT /v1/caps": {}})
    assert (result.stdout, api.body()) == ("all: no cap\n", {"kind": "all", "max_active_runs": None})
    result, api = call("cap", "set", "workspace", "acme", "5", routes={"PATCH /v1/workspaces/acme": {}})
    assert (result.stdout, api.body()) == ("workspace acme: 5 at once\n", {"max_active_runs": 5})
    result, _ = call("cap", "list", routes={"GET /v1/caps": {"items": [cap]}})
    assert "shell" in result.stdout


def test_wait_children_is_for_inside_a_run(call: Oah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OAH_RUN_KEY", raising=False)
    result, api = call("run", "wait-children")
    assert result.exit_code == 2 and "not inside a run" in result.stderr and not api.asked
