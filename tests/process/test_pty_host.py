"""The PTY host with real processes: spawn, exits, deadlines, trees."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from oah.adapters.pty.connection import boottime
from oah.adapters.pty.host import PtyHost
from oah.adapters.pty.hostside import tree
from oah.adapters.pty.incarnations import Incarnation, sweep
from oah.errors import AgentError, Unavailable
from oah.ports.terminal import ExitCause
from oah.testing import processes
from tests.support import eventually
from tests.support.terminals import LONG, nap, napping, pty_host, read_all, read_until, spec

RUNAWAYS = "setsid sleep {0} & (setsid sleep {0} &) ; (env -i setsid sleep {0} &) ; sleep {0} & echo up; sleep {0}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PtyHost]:
    with pty_host(tmp_path_factory.mktemp("host")) as started:
        yield started


@pytest.fixture
def host(shared: PtyHost) -> Iterator[PtyHost]:
    yield shared
    for agent_id in shared.live():
        assert shared.kill(agent_id)


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[PtyHost]:
    """For tests that hurt it."""
    with pty_host(tmp_path) as started:
        yield started


def runaways(number: int) -> tuple[str, ...]:
    """A shell with a background job, a setsid child, a double-forked one and one without our environment: five
    sleeps."""
    return ("bash", "-c", RUNAWAYS.format(nap(number)))


def test_a_program_gets_a_terminal_of_its_own_and_no_ignored_signals(host: PtyHost) -> None:
    script = (
        "grep -E '^Sig(Ign|Blk)' /proc/self/status; stty size; tty; ps -o pid=,sid=,tpgid= -p $$; env | sort; exit 5"
    )
    process = host.spawn(spec("bash", "-c", script, rows=33, cols=77, run_id="run_7", attempt=3))
    text = read_all(process).decode()
    notice = process.wait(LONG)
    assert notice is not None
    assert (notice.exit_code, notice.cause, notice.tree_empty) == (5, ExitCause.EXITED, True)
    # 32 and 33 are the C library's own: whoever was started by posix_spawn (as make does) inherits them ignored.
    ignored = int(re.findall(r"SigIgn:\t([0-9a-f]+)", text)[0], 16)
    assert ignored & ~(0b11 << 31) == 0
    assert "SigBlk:\t0000000000000000" in text
    assert "33 77" in text
    assert "/dev/pts/" in text
    assert f"{process.pid} {process.pid} {process.pid}" in " ".join(text.split())
    for entry in ("OAH_SESSION_ID=ses_1", "OAH_RUN_ID=run_7", "OAH_ATTEMPT=3", "OAH_WORKER_ID=w.1"):
        assert entry in text
    assert "PYTHON" not in text


@pytest.mark.parametrize(
    ("argv", "more", "code", "words"),
    [
        (("nonesuch-program",), {}, "program_not_found", "nonesuch-program"),
        (("/etc",), {}, "spawn_failed", "Permission denied"),
        (("/nonesuch/program",), {}, "program_not_found", "/nonesuch/program"),
        (("true",), {"cwd": "/nonesuch"}, "spawn_failed", "/nonesuch"),
        (("true", "a\0b"), {}, "spawn_failed", "NUL"),
        (("true", "a\ud800b"), {}, "spawn_failed", "Unicode"),
        (("true", "x" * 140_000), {}, "spawn_too_large", "140000"),
        (("true", "x" * 100_000, "y" * 100_000, "z" * 100_000), {}, "spawn_too_large", "262144"),
        ((), {}, "spawn_failed", "empty"),
        (("true",), {"life": -1.0}, "deadline_passed", "deadline"),
    ],
)
def test_what_cannot_be_started_is_a_typed_error_and_leaves_nothing(
    host: PtyHost, argv: tuple[str, ...], more: dict[str, object], code: str, words: str
) -> None:
    with pytest.raises(AgentError, match=words) as caught:
        host.spawn(spec(*argv, **more))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert host.live() == ()
    eventually(lambda: processes.children(host.host_pid) == [], what="no child is left")


def test_a_large_environment_passes(host: PtyHost) -> None:
    env = {"PATH": "/usr/bin:/bin", "A": "x" * 100_000, "B": "y" * 100_000}
    process = host.spawn(spec("bash", "-c", "echo ${#A} ${#B}", env=env))
    assert b"100000 100000" in read_all(process)


def test_exit_by_signal_and_late_output_of_a_background_job(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "echo first; kill -9 $$"))
    assert b"first" in read_all(process)
    notice = process.wait(LONG)
    assert notice is not None
    assert notice.exit_code == -9


def test_an_exit_ends_what_the_program_left_behind(host: PtyHost) -> None:
    script = f"(setsid sleep {nap(7101)} &); (env -i setsid sleep {nap(7101)} &); for i in 1 2 3; do echo line $i; done"
    process = host.spawn(spec("bash", "-c", script))
    notice = process.wait(LONG)
    assert notice is not None
    assert (notice.exit_code, notice.tree_empty) == (0, True)
    assert napping(7101) == []
    assert b"line 3" in read_all(process)


def test_end_of_file_is_not_exit(host: PtyHost) -> None:
    process = host.spawn(spec("bash", "-c", "exec </dev/null >/dev/null 2>&1; exec sleep " + nap(7102)))
    assert read_all(process) == b""
    assert process.exited() is None
    assert processes.alive(process.pid)
    assert host.kill(process.agent_id)
    assert not processes.alive(process.pid)


def test_kill_takes_the_whole_tree_however_it_forked(host: PtyHost) -> None:
    process = host.spawn(spec(*runaways(7103)))
    eventually(lambda: len(napping(7103)) == 5, what="five sleeps")
    assert host.kill(process.agent_id)
    assert napping(7103) == []
    notice = process.wait(LONG)
    assert notice is not None
    assert (notice.cause, notice.tree_empty) == (ExitCause.KILLED, True)
    assert host.kill(process.agent_id), "again, and of an agent that is gone"


def test_a_tree_that_ignores_every_signal_it_can_dies_too(host: PtyHost) -> None:
    inner = f"(trap '' HUP TERM; setsid bash -c 'trap \"\" TERM; sleep {nap(7104)}' &)"
    script = f"trap '' HUP INT TERM QUIT; {inner}; echo up; sleep {nap(7104)}"
    process = host.spawn(spec("bash", "-c", script))
    read_until(process, b"up")
    assert host.kill(process.agent_id)
    assert napping(7104) == []


def test_a_tree_dies_at_its_deadline_and_its_neighbour_lives(host: PtyHost) -> None:
    due = boottime() + 1.0
    short = host.spawn(spec(*runaways(7105), deadline_boottime=due))
    other = host.spawn(spec("sleep", nap(7106)))
    notice = short.wait(LONG)
    late = boottime() - due
    assert notice is not None
    assert (notice.cause, notice.tree_empty) == (ExitCause.DEADLINE, True)
    assert -0.01 < late < 20, f"{late} s after the deadline"
    assert napping(7105) == []
    assert processes.alive(other.pid)


def test_extending_keeps_an_agent_alive_and_is_acknowledged(host: PtyHost) -> None:
    process = host.spawn(spec("sleep", nap(7107), life=3.0))
    asked = boottime()
    host.extend({process.agent_id: asked + 6.0, "stranger": asked})
    eventually(lambda: host.acknowledged_at() >= asked, what="an acknowledgement")
    assert process.wait(timedelta(seconds=4)) is None
    notice = process.wait(LONG)
    assert notice is not None
    assert notice.cause is ExitCause.DEADLINE
    assert boottime() - asked >= 6.0


def test_a_deadline_that_came_before_its_agent_counts(host: PtyHost) -> None:
    asked = spec("sleep", nap(7108), life=0.5)
    host.extend({asked.agent_id: boottime() + 30.0})
    process = host.spawn(asked)
    assert process.wait(timedelta(seconds=1.0)) is None
    assert host.kill(process.agent_id)


def test_signals_reach_the_foreground_program(host: PtyHost) -> None:
    process = host.spawn(
        spec(
            "bash",
            "-c",
            "trap 'echo got int' INT; trap 'echo got term; exit 4' TERM; echo up; while :; do sleep 0.1; done",
        )
    )
    read_until(process, b"up")
    assert host.signal(process.agent_id, signal.SIGINT)
    read_until(process, b"got int")
    assert host.signal(process.agent_id, signal.SIGTERM)
    notice = process.wait(LONG)
    assert notice is not None
    assert notice.exit_code == 4
    assert not host.signal(process.agent_id, signal.SIGTERM)


def test_the_host_is_deaf_to_what_a_terminal_or_a_supervisor_sends_its_group(own_host: PtyHost) -> None:
    pid = own_host.host_pid
    assert os.getsid(pid) == pid != os.getsid(0)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        os.kill(pid, signum)
    process = own_host.spawn(spec("sleep", nap(7109)))
    assert processes.alive(pid)
    assert processes.alive(process.pid)


def test_the_host_keeps_its_secrets_from_agents_of_its_user(host: PtyHost) -> None:
    assert Path(f"/proc/{host.host_pid}/environ").read_bytes() == b""
    process = host.spawn(spec("sleep", nap(7110)))
    eventually(lambda: processes.state(process.pid) == "S", what="its loader has closed what it had opened")
    fds = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
    assert len(fds) == 1, f"an agent has its terminal and nothing else: {fds}"


def test_a_hundred_agents_leak_no_descriptor_in_worker_or_host(own_host: PtyHost) -> None:
    def once() -> None:
        process = own_host.spawn(spec("true"))
        process.wait(LONG)
        read_all(process)
        process.terminal.close()

    once()
    before = processes.descriptors(os.getpid()), processes.descriptors(own_host.host_pid)
    for _ in range(100):
        once()
    # What tests before have left may close its own meanwhile.
    assert processes.descriptors(os.getpid()) <= before[0]
    assert processes.descriptors(own_host.host_pid) == before[1]
    assert own_host.live() == ()
    assert processes.children(own_host.host_pid) == []


def test_many_trees_die_in_one_go(own_host: PtyHost) -> None:
    spawned = [
        own_host.spawn(spec("bash", "-c", f"sleep {nap(7111)} & sleep {nap(7111)} & echo up; wait", life=60.0))
        for _ in range(15)
    ]
    for process in spawned:
        read_until(process, b"up")
    due = boottime()
    assert own_host.stop()
    assert boottime() - due < 30
    assert napping(7111) == []


def test_a_process_that_keeps_changing_its_pid_is_caught(host: PtyHost) -> None:
    hopper = (
        "import os,time,sys\n"
        "print('up',flush=True)\n"
        "while True:\n"
        "    time.sleep(0.02)\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
    )
    process = host.spawn(spec("bash", "-c", f'python3 -c "{hopper}" {nap(7112)} & sleep {nap(7112)}'))
    read_until(process, b"up")
    assert host.kill(process.agent_id)
    eventually(lambda: napping(7112) == [], what="the hopper is gone")


def test_an_agent_of_another_user_has_its_terminal_and_dies_with_its_host(own_host: PtyHost) -> None:
    """As root another user; else our own, which takes the same path."""
    uid = 65534 if os.getuid() == 0 else os.getuid()
    script = (
        "id -u; echo by-name > $(tty); grep -E 'NoNewPrivs|Max file locks' /proc/self/status; echo up; sleep "
        + nap(7114)
    )
    process = own_host.spawn(spec("sh", "-c", script, uid=uid, gid=uid if os.getuid() == 0 else os.getgid()))
    seen = read_until(process, b"up")
    assert seen.startswith(str(uid).encode())
    assert b"by-name" in seen
    assert b"NoNewPrivs:\t1" in seen
    (sleeper,) = eventually(lambda: napping(7114))
    os.kill(own_host.host_pid, signal.SIGKILL)
    assert process.wait(LONG) is not None
    assert not processes.alive(sleeper)


def test_a_kill_without_an_answer_says_so(host: PtyHost) -> None:
    process = host.spawn(spec("sleep", nap(7115)))
    with processes.stopped(host.host_pid):
        assert not host.kill(process.agent_id, timeout=timedelta(seconds=0.3))
        assert host.live() == (process.agent_id,)
    assert host.kill(process.agent_id)


def test_the_record_of_what_was_started_stays_small(tmp_path: Path) -> None:
    incarnation = Incarnation(tmp_path, "w.1")
    incarnation.begin()
    incarnation.record("host", os.getpid())
    for pid in range(1_000_000, 1_005_000):
        incarnation.record("agent", pid)
        incarnation.forget(pid)
    (path,) = tmp_path.iterdir()
    assert len(path.read_text().splitlines()) < 1100
    assert str(os.getpid()) in path.read_text()
    incarnation.end()
    assert list(tmp_path.iterdir()) == []


def test_a_record_of_another_boot_is_only_removed(tmp_path: Path) -> None:
    start = tree.start_time(os.getpid())
    (tmp_path / "1.incarnation").write_text(
        f'{{"boot": "other", "block": 1}}\n{{"host": {os.getpid()}, "start": {start}}}\n'
    )
    (tmp_path / "2.incarnation").write_text("")
    assert sweep(tmp_path, limit_seconds=1).clean
    assert list(tmp_path.iterdir()) == []


def test_many_starts_at_once_do_not_confuse_the_host(tmp_path: Path) -> None:
    """A child on its way to exec holds copies of its neighbours' pipes; the host must not hear of those again."""
    with pty_host(tmp_path) as host:
        first = host.host_pid
        with ThreadPoolExecutor(24) as pool:
            processes = list(pool.map(lambda _: host.spawn(spec("true")), range(400)))
        assert all(process.wait(LONG) for process in processes)
        assert host.host_pid == first
        eventually(lambda: host.live() == (), what="all are gone")


def test_after_stop_nothing_can_be_started(tmp_path: Path) -> None:
    with pty_host(tmp_path) as host:
        host.stop()
        with pytest.raises(Unavailable) as caught:
            host.spawn(spec("true"))
        assert caught.value.code == "host_away"


def test_disarming_the_deadman_needs_the_testing_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OAH_TESTING_DEADMAN_OFF", raising=False)
    with pytest.raises(Unavailable, match="OAH_TESTING_DEADMAN_OFF"):
        PtyHost(state_dir=tmp_path, worker_id="w.1", margin=timedelta(seconds=1), deadman_enabled=False)


def test_with_the_deadman_off_an_agent_outlives_its_deadline_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OAH_TESTING_DEADMAN_OFF", "1")
    with pty_host(tmp_path, deadman_enabled=False) as host:
        process = host.spawn(spec("sleep", nap(7113), life=0.2))
        assert process.wait(timedelta(seconds=1.0)) is None
        eventually(lambda: "THE DEADMAN IS OFF" in caplog.text, what="a loud log line")
        assert host.kill(process.agent_id), "kill still works"


def test_the_host_starts_quickly_and_without_the_worlds_libraries(host: PtyHost) -> None:
    maps = Path(f"/proc/{host.host_pid}/maps").read_text()
    assert "site-packages" not in maps
    began = time.monotonic()
    host.spawn(spec("true")).wait(LONG)
    assert time.monotonic() - began < 20
