"""What doctor calls wrong, from values alone; and its two ways to look, against a scripted API and fakes."""

import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from click.testing import CliRunner

from oah.cli.connection import Connection
from oah.cli.doctor import judge_cordons, judge_fleet, judge_leader, judge_queue
from oah.cli.findings import (
    ClockReading,
    Finding,
    Level,
    judge_broker,
    judge_clocks,
    judge_platform,
    judge_settings,
    judge_store,
)
from oah.cli.main import oah
from oah.cli.sizing import judge_scaling
from oah.cli.stuck import judge_diagnosis
from oah.client import Client
from oah.settings import Settings

LEASE = timedelta(seconds=6)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)


def _bad(findings) -> list[tuple[str, str]]:
    return [(str(f.level), f.message) for f in findings if f.level is not Level.OK]


def test_the_defaults_do_not_contradict_each_other() -> None:
    assert list(judge_settings(Settings(), [])) == [Finding("settings", Level.OK, "no contradictions")]


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({"embedded_workers": 0}, "error", "runs wait for ever"),
        ({"database_url": "postgresql://db/oah"}, "warning", "queue of its own"),
        ({"redis_url": "redis://there"}, "warning", "SQLite is for one host"),
        ({"auth": "off", "api_host": "0.0.0.0"}, "error", "everybody may do everything"),
        (
            {"stale_run_recovery_strategy": "requeue_running", "stale_run_recovery_max_attempts": 0},
            "warning",
            "ever queued again",
        ),
        ({"limits": {"queued_per_session": 10, "queued_per_workspace": 5}}, "warning", "more than its workspace"),
        ({"limits": {"input_bytes": 9 * 2**20}}, "warning", "does not fit"),
        ({"controller": {"leader_renew_seconds": 10}}, "error", "one late renewal"),
        ({"controller": {"sweep_seconds": 20}}, "warning", "recovery is late"),
        ({"lease_seconds": 6, "redis": {"answer_timeout_seconds": 10}}, "warning", "an answer of Redis"),
        ({"worker": {"heartbeat_seconds": 60}}, "warning", "more rarely"),
    ],
)
def test_contradicting_settings(settings: dict, level: str, words: str) -> None:
    found = _bad(judge_settings(Settings(**settings), []))
    assert len(found) == 1
    assert found[0][0] == level
    assert words in found[0][1]


def test_a_name_that_means_nothing() -> None:
    assert _bad(judge_settings(Settings(), ["OAH_WORKERS__SLOTS"])) == [("warning", "OAH_WORKERS__SLOTS means nothing")]


def test_a_data_directory_that_others_may_read(tmp_path) -> None:
    tmp_path.chmod(0o755)
    assert "chmod 700" in str(list(judge_platform(Settings(data_dir=tmp_path)))[-1].hint)
    tmp_path.chmod(0o700)
    assert not _bad(judge_platform(Settings(data_dir=tmp_path)))


GOOD_BROKER = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "maxmemory": "0", "used_memory": "1"}


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "error"),
        ({"evicted_keys": "3"}, "evicted", "error"),
        ({"maxmemory": "100", "used_memory": "85"}, "broker_memory", "warning"),
        ({"maxmemory": "100", "used_memory": "100"}, "broker_memory", "error"),
        ({"rdb_last_bgsave_status": "err"}, "persistence", "warning"),
    ],
)
def test_a_broker_that_is_not_as_it_should_be(change: dict, check: str, level: str) -> None:
    assert not _bad(judge_broker(GOOD_BROKER))
    found = [f for f in judge_broker(GOOD_BROKER | change) if f.level is not Level.OK]
    assert [(f.check, str(f.level)) for f in found] == [(check, level)]


def test_a_database_that_may_lose_accepted_runs() -> None:
    assert not _bad(judge_store({"dialect": "sqlite", "synchronous": "FULL"}))
    assert _bad(judge_store({"dialect": "sqlite", "synchronous": "NORMAL"}))
    assert not _bad(judge_store({"dialect": "postgresql", "fsync": "on", "synchronous_commit": "on"}))
    assert _bad(judge_store({"dialect": "postgresql", "fsync": "off", "synchronous_commit": "on"}))


def test_clocks() -> None:
    near = ClockReading("redis", 100.0, 100.2, 100.1)
    far = ClockReading("database", 100.0, 160.0, 100.1)
    behind = ClockReading("redis", 100.0, 40.0, 100.1)
    unproven = ClockReading("redis", 100.0, 100.05, 100.1)
    assert [reading.offset for reading in (near, behind, unproven)] == pytest.approx([0.1, -60.0, 0.0])
    found = list(judge_clocks([near, far], steps={}, margin=1.0))
    assert [(f.check, str(f.level)) for f in found] == [("clock_redis", "ok"), ("clock_database", "warning")]
    found = list(judge_clocks([near], steps={"redis": -2.0}, margin=1.0))
    assert found[0].level is Level.ERROR


# --- through the API ------------------------------------------------------------------------------------------------


def test_the_fleet() -> None:
    worker = {"slots": 4, "version": "0.1.0"}
    assert not _bad(judge_fleet([worker]))
    assert [level for level, _ in _bad(judge_fleet([]))] == ["error"]
    assert [level for level, _ in _bad(judge_fleet([{**worker, "cordoned": True}]))] == ["error"]
    short = {**worker, "pressure": ["memory"]}
    assert [level for level, _ in _bad(judge_fleet([worker, short]))] == ["warning"]
    assert [level for level, _ in _bad(judge_fleet([short, {**short, "pressure": ["disk"]}]))] == ["error"]
    [(level, words)] = _bad(judge_fleet([worker, {**worker, "version": "0.0.9"}, worker]))
    assert level == "warning" and "1 of 0.0.9, 2 of 0.1.0" in words
    assert not _bad(judge_leader({"leader": "c.1"}))
    assert _bad(judge_leader({"leader": None}))
    assert not _bad(judge_queue({"uniqueReadySessionCount": 2, "readySessionCount": 2}))
    assert _bad(judge_queue({"uniqueReadySessionCount": 2, "readySessionCount": 1}))
    assert _bad(judge_queue({"staleReadySessionCount": 1}))


def test_who_is_cordoned_by_name() -> None:
    kept = {"name": "w", "host": "ant", "alive": True}
    assert not list(judge_cordons([])) and not _bad(judge_cordons([kept]))
    [(level, words)] = _bad(judge_cordons([kept, {**kept, "name": "v", "alive": False}]))
    assert level == "warning" and "v on ant" in words and "w on ant" not in words


def _doctor(routes: dict, *args: str):
    def answer(request: httpx.Request) -> httpx.Response:
        route = routes.get(request.url.path)
        if route is None:
            return httpx.Response(503, json={"code": "unavailable", "detail": "away"}, headers={"retry-after": "0"})
        return httpx.Response(200, json=route)

    connection = Connection(
        open_client=lambda url, key: Client(url, key, retries=0, transport=httpx.MockTransport(answer))
    )
    return CliRunner().invoke(oah, ["doctor", *args], obj=connection)


HEALTHY = {
    "/healthz": {"status": "ok"},
    "/readyz": {"status": "ready"},
    "/v1/workers": {"items": [{"slots": 4, "version": "0.1.0"}], "next_cursor": None},
    "/v1/cordons": {"items": [], "next_cursor": None},
    "/v1/controller": {"leader": "c.1", "epoch": "e"},
    "/v1/queue": {"uniqueReadySessionCount": 0, "readySessionCount": 0},
    "/v1/diagnosis": {"waiting": [], "silent": []},
    "/v1/pools": {"items": [], "next_cursor": None},
    "/v1/controller/decisions": {"items": [], "next_cursor": None},
}


def test_a_healthy_deployment_exits_0() -> None:
    result = _doctor(HEALTHY, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"]) == (0, True), document
    assert {"api", "ready", "workers", "leader", "queue", "settings"} <= {f["check"] for f in document["findings"]}


@pytest.mark.parametrize("path", [path for path in HEALTHY if path != "/v1/controller"])
def test_whatever_is_away_is_a_finding_and_exit_1(path: str) -> None:
    result = _doctor({k: v for k, v in HEALTHY.items() if k != path})
    assert result.exit_code == 1
    assert "away" in result.stdout


NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({}, None, ""),
        ({"outcome": "failed", "detail": {"error": "forbidden"}}, "error", "kubernetes failed 2h ago: forbidden"),
        ({"outcome": "failed", "detail": {"size": 4}}, "error", "it did not do what it was asked"),
        ({"going": {"w-2": {"since": "2026-01-02T10:30:00Z"}}}, "warning", "w-2 drain for 90m"),
        ({"going": {"w-2": {"since": "2026-01-02T11:30:00Z"}}}, None, ""),
        ({"desired": 8}, "warning", "at its maximum, and 5 slot(s) more"),
        ({"desired": 8, "target": "none"}, None, ""),
        (
            {"inputs": {"slots_per_unit": 8, "capacities": [4, 8]}},
            "warning",
            "have 4, 8 slots, the controller counts on 8",
        ),
        ({"inputs": {"slots_per_unit": 8, "capacities": [8]}}, None, ""),
    ],
)
def test_sizes(change: dict, level: str | None, words: str) -> None:
    decision = {"pool": "gpu", "at": "2026-01-02T10:00:00Z", "target": "kubernetes", "outcome": "scaled", "desired": 3}
    decision |= {"inputs": {"maximum": 8}, "detail": {}, "going": {}} | change
    older = {**decision, "outcome": "failed", "detail": {"error": "of yesterday"}}
    [finding] = judge_scaling([{"pool": "gpu", "ready": 5}], [decision, older], now=NOW)
    assert (None if finding.level is Level.OK else str(finding.level)) == level
    assert words in finding.message


def _one(run: str | None, session: str = "s1", seconds: float = 200.0) -> dict:
    return {"session_id": session, "run_id": run, "worker_id": "w.1", "seconds": seconds}


@pytest.mark.parametrize(
    ("document", "check", "level", "words"),
    [
        ({"silent": [_one("r1")]}, "stuck_silent", "error", ["r1", "3m"]),
        ({"unheeded": [_one("r1"), _one("r2")]}, "stuck_unheeded", "error", ["2 run(s)", "r1", "r2"]),
        ({"unkillable": [_one(None)]}, "stuck_unkillable", "error", ["s1", "--unkillable"]),
        ({"unplaced": ["s1", "s2"]}, "stuck_unplaced", "warning", ["2 session(s)", "s1, s2", "queue repair"]),
        (
            {
                "waiting": [_one("r1"), _one("r2")],
                "waiting_reasons": {"workspace_cap": 2},
                "oldest_waiting_seconds": 7300,
                "truncated": ["waiting"],
            },
            "stuck_waiting",
            "warning",
            ["at least 2", "2h", "2x workspace_cap", "r1", "oah run show"],
        ),
        ({"unserved_lanes": [{"lane": "gpu/codex", "sessions": 3}]}, "stuck_lanes", "error", ["gpu/codex (3)"]),
        (
            {"unserved_lanes": [{"lane": "gpu/codex", "sessions": 3, "withdrawn": {"no program 'codex'": 2}}]},
            "stuck_lanes",
            "error",
            ["gpu/codex (3; 2 withdrew it: no program 'codex')", "oah worker show"],
        ),
    ],
)
def test_what_does_not_move_is_named_with_what_to_do(document: dict, check: str, level: str, words: list[str]) -> None:
    [finding] = judge_diagnosis(document)
    assert (finding.check, str(finding.level)) == (check, level)
    for word in words:
        assert word in f"{finding.message} {finding.hint}"


def test_long_lists_are_cut_and_nothing_stuck_is_well() -> None:
    [finding] = judge_diagnosis({"silent": [_one(f"r{n}") for n in range(9)]})
    assert finding.message.endswith("r4 (since 3m) …")
    [well] = judge_diagnosis({})
    assert (well.check, well.level) == ("stuck", Level.OK)
