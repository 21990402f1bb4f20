"""What a program finds around it, whichever driver started it: variables, bounds, a session of its own; and where what
it was told in secret does not turn up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oah.adapters.pty.spawning import FOR_MACHINES
from oah.ports.agent import TurnStatus
from oah.testing import processes
from tests.support.terminals import Bench, bench

SECRET = "hush-hush-7b1f"
RUN = {"OAH_RUN_ID": "run_1", "OAH_ATTEMPT": "1", "OAH_RUN_KEY": "key-of-the-run", "OAH_API_URL": "http://api"}
_LIMITS = """
[limits]
open_files = 123
file_bytes = 1048576
cpu_seconds = 77
"""
_SCREEN = """
name = "screen"
kind = "screen"
argv = ["bash", "--noprofile", "--norc", "-i"]
quit = "\\u0004"
ready_seconds = 20
[screen]
settle_seconds = 0.4
unseen_seconds = 1.5
[screen.composer]
start = '^bash-[0-9.]+[#$] ?(.*)$'
at_cursor = true
footer = 0
[screen.submit]
blind = true
[screen.reply]
echo = '^bash-[0-9.]+[#$] ?(.*)$'
[headless]
argv = ["bash", "-c", "{input}"]
"""
_COMMAND = """
name = "command"
kind = "command"
argv = ["sh", "-c", "{input}"]
"""
REPORT = """import json, os, resource, sys
me = os.getpid()
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
told = os.path.join(os.environ["OAH_SCRATCH"], "run.env")
json.dump({
    "env": dict(os.environ),
    "told": open(told).read() if os.path.exists(told) else "",
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "bytes": resource.getrlimit(resource.RLIMIT_FSIZE),
    "cpu": resource.getrlimit(resource.RLIMIT_CPU), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "session": os.getsid(0), "tty": int(stat[4]), "cwd": os.getcwd(), "uid": os.getuid(),
    "commands": [open(f"/proc/{p}/cmdline").read() for p in (os.getppid(), os.getsid(0))],
    "umask": os.umask(0),
}, open(sys.argv[1], "w"))
print("reported")
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("desk")
    profiles = directory / "agents.d"
    profiles.mkdir()
    for text in (_SCREEN, _COMMAND):
        name = text.split('"')[1]
        (profiles / f"{name}.toml").write_text(text + _LIMITS)
    (directory / "report.py").write_text(REPORT)
    with bench(directory, profiles=profiles) as made:
        yield made


@pytest.mark.parametrize("driver", ["screen", "screen-headless", "command"])
def test_every_driver_surrounds_its_program_alike(shared: Bench, driver: str) -> None:
    desk, out = shared.fresh(), shared.directory / f"{driver}.json"
    work = desk.directory / f"work-{driver}"
    agent = desk.open(driver, env={"TOKEN": SECRET}, cwd=str(work), own_cwd=True, session_id="ses_7", worker_id="w.9")
    result = desk.turn(agent, f"python3 -I -S {desk.directory}/report.py {out}", env=RUN)
    assert result.status is TurnStatus.COMPLETED and "reported" in result.output, result
    found = json.loads(out.read_text())
    env = found["env"]
    assert {each: env.get(each) for each in FOR_MACHINES} == FOR_MACHINES
    told = {**env, **dict(line.split("=", 1) for line in found["told"].splitlines())}
    assert {each: told.get(each) for each in RUN} == RUN
    assert (env["OAH_SESSION_ID"], env["OAH_WORKER_ID"], env["TOKEN"]) == ("ses_7", "w.9", SECRET)
    assert env["HOME"] == str(desk.directory / "home") and found["cwd"] == str(work)
    assert not [each for each in env if each.startswith(("PYTEST", "VIRTUAL_ENV", "CI"))], "nothing of the worker's own"
    assert (found["files"], found["bytes"], found["cpu"]) == ([123, 123], [1048576, 1048576], [77, 77])
    assert found["core"] == [0, 0]
    assert found["session"] != os.getsid(0) and found["tty"] != 0 and found["umask"] == 0o022
    assert not [each for each in found["commands"] if SECRET in each or RUN["OAH_RUN_KEY"] in each]
    desk.close_agents()
    assert processes.with_argument(SECRET) == []
    assert result.recording is not None
    recording = desk.blobs.get(result.recording) or b""
    header = json.loads(recording.splitlines()[0])
    assert set(header.get("env", {})) <= {"TERM", "SHELL"}
    assert SECRET.encode() not in recording and RUN["OAH_RUN_KEY"].encode() not in recording


def test_scratch_directories_with_keys_of_runs_do_not_stay(shared: Bench) -> None:
    desk = shared.fresh()
    agent = desk.open("screen")
    desk.turn(agent, "true", env=RUN)
    kept = list((desk.directory / "scratch").glob("*/run.env"))
    assert [oct(Path(each).stat().st_mode & 0o777) for each in kept] == ["0o600"]
    desk.close_agents()
    assert list((desk.directory / "scratch").iterdir()) == []
