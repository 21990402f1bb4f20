"""Real agent programs whose worker is killed in the middle of a turn: another one, with other directories, goes on with
the conversation as far as its home reaches, or says why it does not.

`make test` does so with one program, `make test-agents` with all. All homes of one program in one go; a mock model
holds the turns until the worker is dead.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from oah.bootstrap.kit import PROFILES_DIR
from tests.support.arena import Arena, Own, open_arena
from tests.support.mock_llm import Asked, MockModel, mock_model
from tests.support.real_agents import few, housed, path
from tests.support.servers_redis import RealServer
from tests.support.servers_sql import PostgresServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

NAMES = few()
FIRST, SECOND = "worker-1", "worker-2"
MODES = ("local", "archived", "shared")
PROFILES = Path(__file__).parents[2] / "oah" / "core" / "dialogue" / "profiles"


def _profile(name: str, mode: str, files: dict[str, str]) -> str:
    """The profile that ships, with the program's settings and another mode of its homes."""
    text = (PROFILES / f"{name}.toml").read_text().replace(f'name = "{name}"', f'name = "{name}-{mode}"', 1)
    parts = [text, f'[home]\nmode = "{mode}"']
    parts += [f"[[files]]\npath = {json.dumps(where)}\ntext = {json.dumps(what)}" for where, what in files.items()]
    return "\n".join(parts) + "\n"


@pytest.fixture(scope="module")
def model() -> Iterator[MockModel]:
    with mock_model() as found:
        yield found


@pytest.fixture(scope="module")
def opened(postgres_server: PostgresServer, model: MockModel) -> Iterator[Arena]:
    """Two workers with data directories of their own; blobs, shared homes and working directories are everybody's."""

    def own(directory: Path, url: str, redis: RealServer) -> Own:
        for name in ("w", "s"):
            (directory / name).mkdir()
        for data in ("d", "d2"):
            (directory / data / PROFILES_DIR).mkdir(parents=True, exist_ok=True)
            for name in NAMES:
                for mode in MODES:
                    text = _profile(name, mode, housed(name, model.url)[1])
                    (directory / data / PROFILES_DIR / f"{name}-{mode}.toml").write_text(text)
        everybody = {
            "OAH_BLOBS_DIR": f"{directory}/b",
            "OAH_HOMES_DIR": f"{directory}/s",
            "OAH_WORK_DIR": f"{directory}/w",
        }
        second = {"OAH_DATA_DIR": f"{directory}/d2"}
        return {"api": everybody, "controller": everybody, FIRST: everybody, SECOND: {**everybody, **second}}

    env = {"OAH_WORKER__PATH": path(*NAMES), "OAH_WORKER__CHECK_PROFILES": "program", "OAH_HOME_WAIT_SECONDS": "3"}
    with open_arena(postgres_server, workers=2, slots=3, env=env, own=own) as arena:
        yield arena


@pytest.fixture
def arena(opened: Arena) -> Arena:
    for name in (FIRST, SECOND):
        if name not in opened.fleet.pids:
            opened.fleet.restart(name)
    opened.fleet.wait_workers()
    opened.only(FIRST)
    return opened


def _asked(model: MockModel, mark: str) -> list[Asked]:
    return [each for each in list(model.asked) if mark in each.last]


@pytest.mark.parametrize("name", NAMES)
def test_killed_in_the_middle_it_goes_on_elsewhere_or_says_why_not(arena: Arena, model: MockModel, name: str) -> None:
    env, _ = housed(name, model.url)
    sessions = {mode: arena.session(f"{name}-{mode}", env=env) for mode in MODES}
    words, marks = ({mode: secrets.token_hex(6) for mode in MODES} for _ in range(2))
    begun = [arena.submit(session, f"remember {words[mode]}") for mode, session in sessions.items()]
    assert [row["status"] for row in arena.wait_done(*begun, within=240)] == ["completed"] * 3, arena.story(*begun)

    model.hold(*marks.values())
    killed = {mode: arena.submit(session, f"go on {marks[mode]}") for mode, session in sessions.items()}
    for mode, run in killed.items():
        arena.wait(lambda mode=mode: _asked(model, marks[mode]), run, within=60, what="its model was asked")
        assert arena.worker_of(run) == FIRST
    arena.fleet.kill(FIRST)
    arena.only(SECOND)
    before = len(model.asked)
    model.let_go()
    rows = arena.wait_done(*killed.values(), within=400)
    assert [row["status"] for row in rows] == ["completed"] * 3, arena.story(*killed.values())

    for mode, row in zip(MODES, rows, strict=True):
        attempt = arena.attempts(row["id"])[-1]
        kind, reason = attempt["agent"], attempt["agent_reason"]
        question = max(
            _asked(model, marks[mode]), key=lambda each: (model.asked.index(each) >= before, len(each.texts))
        )
        told = f"{name} {mode}: {kind} {reason}\n{arena.story(row['id'])}"
        assert f"heard=go on {marks[mode]}" in " ".join((row["result"] or "").split()), told
        knows = any(words[mode] in text for text in question.texts)
        assert knows == (kind in ("resumed", "repaired")), told
        assert attempt["home"] == mode, told
        if mode == "local":
            assert (kind, reason) == ("fresh", "home_lost"), told
        else:
            assert kind != "fresh" or reason not in (None, "first"), told
