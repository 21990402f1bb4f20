"""What a nursery forks is a process like one of a fresh interpreter, and its end is told like that one's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oah.cli.children import Child, ChildSpec, Started, execute
from oah.errors import Unavailable
from oah.testing.nursery import Nursery
from oah.testing.processes import alive, descriptors
from tests.support import eventually

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as opened:
        yield opened


class Life:
    """A child with the writing end of its lifeline."""

    def __init__(self, starter: Nursery | None, directory: Path, *words: str, **env: str) -> None:
        watched, self.lifeline = os.pipe()
        told = {**os.environ, "PYTHONUNBUFFERED": "1", "OAH_CONFIG": os.devnull, **env}
        start = starter or execute
        try:
            self.process: Started = start(words, lifeline=watched, env=told, cwd=directory)
        finally:
            os.close(watched)

    def end(self) -> tuple[int, str]:
        """Exit code and output of one that ends by itself."""
        assert self.process.stdout is not None
        said = self.process.stdout.read().decode()
        os.close(self.lifeline)
        return self.process.wait(20), said


def serving(nursery: Nursery, directory: Path) -> Life:
    """An API without anything else, up to the moment that it listens."""
    env = {"OAH_DATA_DIR": str(directory / "d"), "OAH_DATABASE_URL": f"sqlite:///{directory}/oah.db"}
    life = Life(nursery, directory, "api", OAH_REDIS_URL="memory://", OAH_API_PORT="0", **env)
    assert life.process.stdout is not None
    assert any(b"listening" in line for line in life.process.stdout)
    return life


@pytest.mark.parametrize(
    "words",
    [("version",), ("run", "--nonsense"), ("config", "show", "--json"), ("worker", "run"), ("session", "list")],
    ids=" ".join,
)
def test_commands_say_and_return_what_they_do_in_a_fresh_interpreter(
    nursery: Nursery, tmp_path: Path, words: tuple[str, ...]
) -> None:
    env = {"OAH_LEASE_SECONDS": "7", "OAH_REDIS_URL": "memory://", "OAH_API_URL": "http://127.0.0.1:1"}
    forked, fresh = (Life(each, tmp_path, *words, **env).end() for each in (nursery, None))
    assert forked == fresh
    assert forked[1]


def test_a_process_of_its_own(nursery: Nursery, short_tmp: Path) -> None:
    life = serving(nursery, short_tmp)
    pid = life.process.pid
    try:
        assert os.getsid(pid) == pid != os.getpgid(nursery.pid)
        assert os.readlink(f"/proc/{pid}/cwd") == str(short_tmp)
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
        assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2")
        # The nursery keeps nothing of its children.
        assert descriptors(nursery.pid) == 4
        assert life.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            life.process.wait(0.01)
        life.process.send_signal(signal.SIGTERM)
        assert life.process.wait(20) == 0
        life.process.send_signal(signal.SIGKILL)
        assert life.process.poll() == 0
    finally:
        os.close(life.lifeline)


def test_one_that_is_killed_is_told_as_killed_and_reaped_when_seen(nursery: Nursery, short_tmp: Path) -> None:
    life = serving(nursery, short_tmp)
    pid = life.process.pid
    life.process.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(pid), within=10, what="it is dead")
    assert Path(f"/proc/{pid}").exists(), "its pid is free before anybody was told of its end"
    # Its other threads may end a moment later: then so does the process.
    assert life.process.wait(60) == -signal.SIGKILL == life.process.poll()
    assert not Path(f"/proc/{pid}").exists()
    os.close(life.lifeline)


def test_it_ends_with_its_supervisor(nursery: Nursery, short_tmp: Path) -> None:
    life = serving(nursery, short_tmp)
    os.close(life.lifeline)
    assert life.process.wait(20) == 0


def test_another_environment_gets_a_fresh_interpreter(nursery: Nursery, tmp_path: Path) -> None:
    same, other = (Life(nursery, tmp_path, "version", **env) for env in ({}, {"TZ": "Asia/Tokyo"}))
    assert not isinstance(same.process, subprocess.Popen)
    assert isinstance(other.process, subprocess.Popen)
    assert same.end() == other.end()


def test_a_supervised_child_starts_again_from_it(nursery: Nursery, tmp_path: Path) -> None:
    spec = ChildSpec("c", ["version"], {**os.environ, "OAH_DATA_DIR": str(tmp_path)})
    child = Child(spec, sink=lambda name, line: None, cwd=tmp_path, starter=nursery)
    pids = set()
    for _ in range(2):
        child.start()
        pids.add(child.pid)
        assert child.wait(20) == 0
        assert list(child.last_lines) == ["0.1.0"]
    child.close()
    assert len(pids) == 2


def test_the_end_of_a_nursery_is_not_silent(short_tmp: Path) -> None:
    """What it has started lives on, but nobody can tell how that ends; nor does it start anything more."""
    with Nursery() as nursery:
        life = serving(nursery, short_tmp)
        os.kill(nursery.pid, signal.SIGKILL)
        eventually(lambda: not alive(nursery.pid), within=10, what="the nursery is dead")
        assert life.process.poll() is None
        with pytest.raises(Unavailable, match="nursery"):
            Life(nursery, short_tmp, "version")
        life.process.send_signal(signal.SIGTERM)
        with pytest.raises(Unavailable, match="nursery"):
            life.process.wait(20)
        os.close(life.lifeline)


def test_it_ends_with_who_has_it() -> None:
    code = (
        "import os, signal\nfrom oah.testing.nursery import Nursery\n"
        "print(Nursery().pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: not alive(int(done.stdout)), within=20, what="the nursery has ended")
