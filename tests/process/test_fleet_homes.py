"""Conversations that outlive their worker: it is killed in the middle of a turn, another one with another data
directory goes on, as far as the session's home reaches; on a fleet, on PostgreSQL and Valkey."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oah.bootstrap.kit import PROFILES_DIR
from oah.testing import profiles
from tests.support.arena import Arena, Own, Row, open_arena
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer
from tests.unit.test_homes_worktree import commit, git

FIRST, SECOND = "worker-1", "worker-2"
MODES = ("local", "archived", "shared")
SECRET = "hush hush"


def own(directory: Path, url: str, redis: RealServer) -> Own:
    """The second worker has a data directory of its own; blobs, shared homes and working directories are all's."""
    for name in ("w", "s"):
        (directory / name).mkdir()
    profiles.install_testing_agents(directory / "d2")
    text = (profiles.TESTING_AGENTS / "diary.toml").read_text()
    for mode in MODES:
        profile = text.replace('name = "diary"', f'name = "diary-{mode}"') + f'\n[home]\nmode = "{mode}"\n'
        for data in ("d", "d2"):
            (directory / data / PROFILES_DIR / f"diary-{mode}.toml").write_text(profile)
    everybody = {
        "OAH_BLOBS_DIR": f"{directory}/b",
        "OAH_HOMES_DIR": f"{directory}/s",
        "OAH_WORK_DIR": f"{directory}/w",
        "OAH_WORKER__REPOSITORIES": f'["{directory}/r"]',
    }
    return {
        "api": everybody,
        "controller": everybody,
        FIRST: {**everybody, "OAH_SECRET_TOKEN": SECRET},
        SECOND: {**everybody, "OAH_DATA_DIR": f"{directory}/d2"},
    }


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer) -> Iterator[Arena]:
    env = {
        "OAH_WORKER__DRAIN_GRACE_SECONDS": "1",
        "OAH_WORKER__HEARTBEAT_SECONDS": "1",
        "OAH_HOME_WAIT_SECONDS": "6",
        "OAH_RETENTION__HOMES_DAYS": "0.00001",
        "OAH_RETENTION__EVERY_SECONDS": "1",
    }
    with open_arena(postgres_server, workers=2, slots=4, env=env, own=own) as arena:
        yield arena


@pytest.fixture
def arena(opened: Arena) -> Arena:
    for name in (FIRST, SECOND):
        if name not in opened.fleet.pids:
            opened.fleet.restart(name)
    opened.fleet.wait_workers()
    opened.only(FIRST)
    return opened


def told(row: Row) -> tuple[int, str]:
    """How many texts the conversation has, and the first of them."""
    found = re.search(r"turns=(\d+) first='([^']*)'", row["result"] or "")
    assert found is not None, row
    return int(found[1]), found[2]


def last(arena: Arena, run: str) -> tuple[str, str | None, str | None]:
    attempt = arena.attempts(run)[-1]
    return attempt["agent"], attempt["agent_reason"], attempt["home"]


def in_the_middle(arena: Arena, session: str, run: str) -> None:
    """Until its program has called a tool."""
    roots = (arena.fleet.data_dir, arena.fleet.data_dir.parent / "d2", arena.fleet.data_dir.parent / "s")

    def calls() -> bool:
        records = [each for root in roots for each in root.glob(f"**/{session}/.diary/*/*.jsonl")]
        return any(
            "[[first" in (text := each.read_text()) and '"call"' in text.rsplit("[[first")[-1] for each in records
        )

    arena.wait(calls, run, within=20, what="a tool is called")


def test_a_conversation_goes_on_at_another_worker_as_far_as_its_home_reaches(arena: Arena) -> None:
    sessions = {mode: arena.session(f"diary-{mode}") for mode in MODES}
    begun = {mode: arena.submit(session, f"remember {mode}") for mode, session in sessions.items()}
    for mode, row in zip(MODES, arena.wait_done(*begun.values(), within=30), strict=True):
        assert told(row) == (1, f"remember {mode}"), arena.story(row["id"])
        assert last(arena, row["id"]) == ("fresh", "first", mode)
    killed = {mode: arena.submit(session, "[[first 100000 0.02]]") for mode, session in sessions.items()}
    for mode, run in killed.items():
        in_the_middle(arena, sessions[mode], run)
        assert arena.worker_of(run) == FIRST
    arena.fleet.kill(FIRST)
    arena.only(SECOND)
    rows = dict(zip(MODES, arena.wait_done(*killed.values(), within=60), strict=True))
    assert {mode: row["status"] for mode, row in rows.items()} == dict.fromkeys(MODES, "completed")
    assert last(arena, killed["local"]) == ("fresh", "home_lost", "local")
    assert told(rows["local"]) == (1, "[[first 100000 0.02]]")
    assert last(arena, killed["archived"]) == ("resumed", None, "archived")
    assert told(rows["archived"]) == (2, "remember archived")
    kind, reason, _ = last(arena, killed["shared"])
    assert (kind, reason) in (("resumed", None), ("repaired", "record_cut"))
    assert told(rows["shared"]) == (3, "remember shared")
    event = arena.events(killed["local"], "run.agent")[-1]["data"]
    assert (event["agent"], event["reason"], "before" in event) == ("fresh", "home_lost", True)

    warm = {mode: arena.submit(session, "again") for mode, session in sessions.items()}
    for row in arena.wait_done(*warm.values(), within=20):
        assert last(arena, row["id"])[0] == "warm", arena.story(row["id"])
    # Back: what the first worker still has of them is older, and must not be taken for the conversation.
    arena.fleet.kill(SECOND)
    arena.fleet.restart(FIRST)
    arena.fleet.wait_workers()
    arena.only(FIRST)
    back = {mode: arena.submit(session, "back") for mode, session in sessions.items()}
    rows = dict(zip(MODES, arena.wait_done(*back.values(), within=60), strict=True))
    assert (last(arena, back["local"]), told(rows["local"])[0]) == (("fresh", "home_lost", "local"), 1)
    assert (last(arena, back["archived"]), told(rows["archived"])) == (
        ("resumed", None, "archived"),
        (4, "remember archived"),
    )
    assert (last(arena, back["shared"])[0], told(rows["shared"])) == ("resumed", (5, "remember shared"))
    archives = list((arena.fleet.data_dir.parent / "b" / "homes" / sessions["archived"]).iterdir())
    assert len(archives) == 2, "the one that is named and the one before"
    assert arena.unexplained() == []


def test_killed_in_its_first_run_a_conversation_goes_on_where_it_began(arena: Arena) -> None:
    session = arena.session("diary")
    run = arena.submit(session, "begin [[first 100000 0.02]]")
    in_the_middle(arena, session, run)
    arena.fleet.kill(FIRST)
    arena.fleet.restart(FIRST)
    arena.fleet.wait_workers()
    arena.only(FIRST)
    [row] = arena.wait_done(run, within=60)
    kinds = [(each["agent"], each["agent_reason"]) for each in arena.attempts(run)]
    assert kinds[0] == ("fresh", "first")
    assert kinds[1] in (("resumed", None), ("repaired", "record_cut")), arena.story(run)
    assert told(row) == (2, "begin [[first 100000 0.02]]")


def test_a_local_home_is_gone_on_with_by_its_host_and_nobody_else(arena: Arena) -> None:
    sessions = [arena.session("diary-local") for _ in range(4)]
    arena.wait_done(*[arena.submit(session, "remember") for session in sessions], within=30)
    restarted(arena)  # no agent is warm
    arena.only(SECOND)
    runs = [arena.submit(session, "again") for session in sessions]
    # The other worker, all idle, has claimed and handed over each of them, once.
    for session in sessions:
        arena.wait(lambda s=session: "@" in arena.place(s).get("lane", ""), *runs, within=4, what="it waits for it")
    arena.only(FIRST, SECOND)
    for run, row in zip(runs, arena.wait_done(*runs, within=30), strict=True):
        assert last(arena, run) == ("resumed", None, "local"), arena.story(run)
        assert arena.attempts(run)[0]["worker_id"].startswith(FIRST)
        assert told(row) == (2, "remember")
    assert arena.sql("SELECT count(*) AS n FROM run_attempts WHERE run_id = ANY(%s)", runs)[0]["n"] == 4


def test_a_session_works_in_a_worktree_of_its_own(arena: Arena) -> None:
    repo = arena.fleet.data_dir.parent / "r" / "one"
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main")
    commit(repo, "first")
    session = arena.session("shell", worktree={"repo": str(repo), "ref": "main"})
    work = arena.submit(session, "git branch --show-current; ls; echo draft > draft; pwd")
    [row] = arena.wait_done(work, within=20)
    assert row["result"].split() == [f"oah/{session}", "first", f"{arena.fleet.data_dir.parent}/w/{session}"]
    restarted(arena)
    again = arena.submit(session, "cat draft")
    missing = arena.submit(arena.session("shell", worktree={"repo": f"{repo}-none"}), "ls")
    plain = arena.submit(arena.session("shell", worktree={"repo": str(repo.parent)}), "ls")
    outside = arena.submit(arena.session("shell", worktree={"repo": str(arena.fleet.data_dir)}), "ls")
    rows = arena.wait_done(again, missing, plain, outside, within=30)
    assert rows[0]["result"].split() == ["draft"]
    codes = [(row["status"], row["error_code"]) for row in rows[1:]]
    assert codes == [
        ("failed", "repository_missing"),
        ("failed", "not_a_repository"),
        ("failed", "repository_not_allowed"),
    ]
    assert arena.fleet.client.session(session)["worktree"] == {"repo": str(repo), "ref": "main"}


def test_what_closed_sessions_left_is_removed_where_it_lies(arena: Arena) -> None:
    top = arena.fleet.data_dir.parent
    repo = top / "r" / "two"
    repo.mkdir(parents=True)
    git(repo, "init", "-q", "-b", "main")
    commit(repo, "first")
    stays = arena.session("diary-local")
    closed = [arena.session(f"diary-{mode}") for mode in MODES]
    clean, drafts = (arena.session("shell", worktree={"repo": str(repo)}) for _ in range(2))
    runs = [arena.submit(session, "hello") for session in (stays, *closed)]
    arena.wait_done(*runs, arena.submit(clean, "true"), arena.submit(drafts, "echo x > draft"), within=30)

    def left(session: str) -> list[Path]:
        places = ("d/homes/*", "d2/homes/*", "s/*", "s/.work", "w", "b/homes")
        return [path for place in places for path in top.glob(f"{place}/{session}")]

    assert all(left(session) for session in (stays, *closed, clean, drafts))
    for session in (*closed, clean, drafts):
        arena.fleet.client.close_session(session)
    for session in (*closed, clean):
        arena.wait(lambda s=session: not left(s), within=20, what="its directories and archives are gone")
    assert left(stays) and (top / "w" / drafts / "draft").exists()
    assert git(repo, "branch", "--list", "--format=%(refname:short)", "oah/*") == f"oah/{drafts}"


def restarted(arena: Arena) -> None:
    """The first worker, without the agents that it had."""
    arena.fleet.kill(FIRST)
    arena.fleet.restart(FIRST)
    arena.fleet.wait_workers()
    arena.only(FIRST)


def test_a_conversation_that_is_forked_broken_or_refused_is_noticed(arena: Arena) -> None:
    session = arena.session("diary", cwd=str(arena.fleet.data_dir.parent / "w"))

    def asked(text: str) -> tuple[Row, str]:
        [row] = arena.wait_done(arena.submit(session, text), within=60)
        name = re.search(r"name=(\S+)", row["result"] or "")
        assert name is not None, arena.story(row["id"])
        assert arena.fleet.client.session(session)["session_ref"] == name[1]
        return row, name[1]

    def record(name: str) -> Path:
        return next(arena.fleet.data_dir.glob(f"homes/*/{session}/.diary/*/{name}.jsonl"))

    (_, first), (_, forked) = asked("one"), asked("two [[fork]]")
    assert first != forked
    [fork] = arena.sql("SELECT * FROM run_attempts WHERE agent_reason = 'forked'")
    assert (fork["agent"], fork["outcome"]) == ("warm", "completed")
    restarted(arena)
    row, again = asked("three")
    assert (told(row), again, last(arena, row["id"])) == ((3, "one"), forked, ("resumed", None, "local"))
    row, second = asked("four [[fork]]")
    assert last(arena, row["id"]) == ("warm", "forked", "local")

    record(second).write_text('{"half\n{"type": "user", "text": "x"}\n')
    restarted(arena)
    row, third = asked("five")
    assert (told(row), last(arena, row["id"])) == ((1, "five"), ("fresh", "transcript_broken", "local"))

    with record(third).open("a") as file:  # nothing that we could see
        file.write('{"type": "call", "id": 5}\n')
    restarted(arena)
    row, fourth = asked("six")
    assert (told(row), last(arena, row["id"])) == ((1, "six"), ("fresh", "refused", "local"))
    [event] = arena.events(row["id"], "run.agent")
    assert (event["data"]["before"], event["data"]["session_ref"]) == (third, fourth)


def test_an_agent_has_its_secret_its_limits_and_tools_that_wait_for_nobody(arena: Arena) -> None:
    asked = {"TOKEN": {"secret": "TOKEN"}}
    run = arena.submit(
        arena.session("diary", env=asked), "[[env TOKEN]] [[env PAGER]] [[env GIT_TERMINAL_PROMPT]] [[pid]]"
    )
    [row] = arena.wait_done(run, within=20)
    assert f"TOKEN={SECRET} PAGER=cat GIT_TERMINAL_PROMPT=0" in row["result"], arena.story(run)
    assert "files=200" in row["result"]
    [stored] = arena.sql("SELECT env, cwd FROM sessions WHERE id = %s", row["session_id"])
    assert (stored["env"]["TOKEN"], stored["cwd"]) == ({"secret": "TOKEN"}, None)
    assert SECRET not in str(arena.fleet.client.session(row["session_id"]))
    missing = arena.submit(arena.session("diary", env={"TOKEN": {"secret": "OTHER"}}), "hello")
    [row] = arena.wait_done(missing, within=20)
    assert (row["status"], row["error_code"]) == ("failed", "secret_missing")
    assert "OTHER" in row["error_message"]
