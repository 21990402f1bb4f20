"""Live terminals over HTTP: real workers, an API process between, viewers that are quick, slow, many, or of another
workspace; and people who type."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from oah.adapters.embedded.private import end_unused
from oah.cli.fleet import free_port
from oah.client import Client
from oah.client.terminal import Terminal
from oah.core.dialogue.frames import BEARER, SUBPROTOCOL, Output, Snapshot
from oah.errors import Conflict, Forbidden, NotFound, Unauthorized, Unavailable
from oah.testing import profiles
from oah.testing.fleet import API, Fleet
from tests.support.viewers import Watcher
from tests.support.waiting import eventually
from tests.support.warm import warm

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

VIEWERS = 50
PORT = free_port()
OAH = "from oah.cli.main import main; main()"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with short_fleet(own={"worker-1": {"OAH_WORKER__PORT": str(PORT)}}) as made:
        yield made


@contextmanager
def short_fleet(**more: Any) -> Iterator[Fleet]:
    """A fleet with the testing agents, below a short path."""
    root = Path(tempfile.mkdtemp(prefix="oah-a-", dir="/tmp"))
    try:
        profiles.install_testing_agents(root / "d")
        options = {"workers": 1, "env": {"OAH_WORKER__HEARTBEAT_SECONDS": "1"}, **more}
        with Fleet(root / "d", starter=warm(), **options) as fleet:
            yield fleet
    finally:
        end_unused(root / "d")
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def client(fleet: Fleet) -> Client:
    return fleet.client


def begin(client: Client, text: str, agent: str = "shell") -> tuple[str, str]:
    session = str(client.create_session(agent)["id"])
    return session, str(client.submit(session, text)["id"])


def figure(url: str, name: str) -> float:
    """One figure of a process's exposition; 0 when it is not there."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", answer.read().decode(), flags=re.M)
    return float(found.group(1)) if found else 0.0


WORKER = f"http://127.0.0.1:{PORT}"


# --- viewing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["shell", "inky"])
def test_a_viewer_that_joins_in_the_middle_sees_the_screen_and_the_end(client: Client, agent: str) -> None:
    text = "echo begun; read x; echo over $x" if agent == "shell" else "[[say begun]]\n[[sleep 3]]\n[[say over]]"
    session, run = begin(client, text, agent)
    eventually(lambda: "begun" in shown(client, run), within=20, what="it has begun")
    with client.attach(run_id=run) as terminal:
        viewer = Watcher(terminal)
        viewer.shows("begun")
        assert viewer.hears("bound").data["run_id"] == run
        if agent == "shell":
            with client.attach(run_id=run, write=True) as writer:
                Watcher(writer).hears("granted")
                writer.type(b"now\r")
                viewer.shows("over now")
        viewer.shows("over")
        assert viewer.ends() == (1000, "the run is completed")
    note = viewer.note("end")
    assert note is not None and note.data["status"] == "completed"
    # The terminal goes on with the session, so its screen can be compared once more.
    with client.attach(session_id=session) as terminal:
        viewer = Watcher(terminal)
        eventually(lambda: lines(viewer) == lines_of(client, session), within=10, every=0.1)


def shown(client: Client, run: str) -> str:
    try:
        return "\n".join(client.screen(run_id=run)["lines"])
    except NotFound:
        return ""


def lines(viewer: Watcher) -> list[str]:
    frame = viewer.terminal.receive(timeout=0.2)
    if frame is not None:
        viewer.take(frame)
    return list(viewer.model.look().lines)


def lines_of(client: Client, session: str) -> list[str]:
    return list(client.screen(session_id=session)["lines"])


def test_many_viewers_are_one_connection_to_the_worker(fleet: Fleet, client: Client) -> None:
    session, run = begin(client, "echo begun; read x; seq 1 200; echo over $x")
    eventually(lambda: "begun" in shown(client, run), within=20)
    terminals = [client.attach(run_id=run) for _ in range(VIEWERS)]
    try:
        viewers = [Watcher(terminal) for terminal in terminals]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda viewer: viewer.shows("begun"), viewers))
            assert figure(WORKER, 'oah_viewers{kind="read"}') == 1
            assert figure(fleet.url, 'oah_viewers{kind="read"}') == VIEWERS
            with client.attach(run_id=run, write=True) as writer:
                Watcher(writer).hears("granted")
                writer.type(b"now\r")
                list(pool.map(lambda viewer: viewer.shows("over now"), viewers))
            assert {viewer.ends() for viewer in viewers} == {(1000, "the run is completed")}
    finally:
        for terminal in terminals:
            terminal.close()
    eventually(lambda: figure(fleet.url, 'oah_viewers{kind="read"}') == 0)
    eventually(lambda: figure(WORKER, 'oah_viewers{kind="read"}') == 0)


def passes(terminal: Terminal, word: bytes, *, within: float) -> None:
    """It comes by, on a terminal that nobody paints."""
    end, last = time.monotonic() + within, b""
    while word not in last:
        assert time.monotonic() < end, f"{word!r} does not come"
        frame = terminal.receive(timeout=0.2)
        if isinstance(frame, Output | Snapshot):
            last = last[-len(word) :] + (frame.data if isinstance(frame, Output) else frame.paint)


def test_a_viewer_that_stands_still_is_dropped_to_a_snapshot(fleet: Fleet, client: Client) -> None:
    """It is a process that is stopped while the program floods; nobody waits for it."""
    # In two parts, so that the line itself, which the terminal shows, does not say it.
    flood = f"read x; yes {'0123456789' * 4} | head -c 8000000; echo; echo o''ver; read y; echo $y; read z"
    _, run = begin(client, flood)
    eventually(lambda: client.run(run)["status"] == "running", within=20)
    code = (
        "import sys\n"
        "from oah.client import Client\n"
        "from tests.support.viewers import Watcher\n"
        "url, key, run = sys.argv[1:]\n"
        "with Client(url, key).attach(run_id=run) as terminal:\n"
        "    viewer = Watcher(terminal)\n"
        "    viewer.hears('bound')\n"
        "    print('ready', flush=True)\n"
        "    viewer.shows('flooded', within=60)\n"
        "    print(viewer.skipped, viewer.snapshots, flush=True)\n"
    )
    command = [sys.executable, "-c", code, fleet.url, fleet.key, run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            assert viewer.stdout.readline() == "ready\n"
            viewer.send_signal(signal.SIGSTOP)
            with client.attach(run_id=run, write=True) as writer:
                hand = Watcher(writer)
                hand.hears("granted")
                begun = time.monotonic()
                writer.type(b"go\r")
                passes(writer, b"over", within=60)
                writer.type(b"flooded\r")
                passes(writer, b"flooded", within=60)
                assert time.monotonic() - begun < 40
                viewer.send_signal(signal.SIGCONT)
                skipped, snapshots = map(int, viewer.stdout.readline().split())
                assert skipped > 1_000_000
                assert snapshots >= 2
                writer.type(b"end\r")
        finally:
            viewer.send_signal(signal.SIGCONT)
            viewer.kill()


# --- typing ---------------------------------------------------------------------------------------------------------


def test_one_writer_at_a_time_and_a_takeover_that_both_see(client: Client) -> None:
    session, run = begin(client, "read x; echo got $x")
    eventually(lambda: client.run(run)["status"] == "running", within=20)
    with client.attach(run_id=run, write=True) as one, client.attach(run_id=run) as third:
        first, viewer = Watcher(one), Watcher(third)
        by = first.hears("granted").data["by"]
        viewer.until(lambda: (viewer.note("writer") or first.note("granted")).data.get("by") == by)
        with client.attach(run_id=run, write=True) as two:
            refused = Watcher(two)
            assert refused.ends()[0] == 4409
            assert refused.hears("refused").data["code"] == "writer_present"
        with client.attach(run_id=run, write=True, takeover=True) as two:
            second = Watcher(two)
            assert second.hears("granted").data["before"] == by
            assert first.hears("taken_over").data["by"] == by
            one.type(b"from the first\r")
            assert first.hears("refused").data["code"] == "not_writing"
            third.type(b"from a viewer\r")
            assert viewer.hears("refused").data["code"] == "not_writing"
            two.resize(rows=30, columns=90)
            viewer.until(lambda: viewer.note("size").data == {"rows": 30, "cols": 90})  # type: ignore[union-attr]
            two.type(b"the second\r")
            assert second.ends() == (1000, "the run is completed")
    assert client.result(run)["output"].strip().endswith("got the second")
    events = [event.type for event in client.stream(run) if event.type.startswith("terminal.")]
    assert events[:2] == ["terminal.attached", "terminal.taken_over"]
    eventually(lambda: len(client.audit(subject=session)) == 3, within=10, what="the end is noted")
    noted = sorted(row["action"] for row in client.audit(subject=session))
    assert noted == ["terminal.attached", "terminal.detached", "terminal.taken_over"]


# --- who may --------------------------------------------------------------------------------------------------------


def test_keys_scopes_and_workspaces(fleet: Fleet, client: Client) -> None:
    session, run = begin(client, "read x")
    other = client.create_workspace("elsewhere")["id"]
    foreign = client.create_key("foreign", workspace=other, scopes=["read", "run"])["secret"]
    reader = client.create_key("reader", workspace="default", scopes=["read"])["secret"]
    eventually(lambda: client.run(run)["status"] == "running", within=20)
    with Client(fleet.url, foreign) as stranger:
        for what in ({"run_id": run}, {"session_id": session}):
            for act in (stranger.attach, stranger.screen):
                with pytest.raises(NotFound):
                    act(**what)
    with Client(fleet.url, reader) as looks:
        with pytest.raises(Forbidden):
            looks.attach(run_id=run, write=True)
        with looks.attach(run_id=run) as terminal:
            Watcher(terminal).hears("bound")
    with Client(fleet.url, "oah_nobody") as nobody, pytest.raises(Unauthorized):
        nobody.attach(run_id=run)
    # A browser: the key among the subprotocols, and never in what was chosen.
    offered = [Subprotocol(SUBPROTOCOL), Subprotocol(BEARER + reader)]
    with connect(f"{fleet.url.replace('http', 'ws')}/v1/runs/{run}/terminal", subprotocols=offered) as socket:
        assert socket.subprotocol == SUBPROTOCOL
    client.cancel(run)
    eventually(lambda: client.run(run)["status"] == "cancelled", within=20)
    with pytest.raises(Conflict) as ended:
        client.attach(run_id=run)
    assert ended.value.code == "run_not_active"
    assert "transcript" in str(ended.value.hint)


def test_a_revoked_key_sees_and_types_no_more(fleet: Fleet, client: Client) -> None:
    _, run = begin(client, "read x; echo got $x")
    eventually(lambda: client.run(run)["status"] == "running", within=20)
    made, other = (client.create_key(name, workspace="default", scopes=["read", "run"]) for name in ("gone", "stays"))
    with ExitStack() as stack:
        one, two = (stack.enter_context(Client(fleet.url, key["secret"])) for key in (made, other))
        writer = stack.enter_context(one.attach(run_id=run, write=True))
        watched, stays = Watcher(writer), Watcher(stack.enter_context(two.attach(run_id=run)))
        watched.hears("granted")
        client.revoke_key(made["id"])
        assert watched.ends(within=8) == (4401, "the key was revoked")
        with pytest.raises(Unavailable):
            writer.type(b"too late\r")
        after = stack.enter_context(two.attach(run_id=run, write=True))  # nobody's lease stands in the way
        Watcher(after).hears("granted")
        after.type(b"the other\r")
        stays.shows("got the other")


def test_the_endpoint_of_a_worker_wants_its_token_and_nobody_shows_it(fleet: Fleet, client: Client) -> None:
    session, run = begin(client, "read x")
    assert "token" not in str(client.workers())
    for path in ("terminal", "keyboard", "screen"):
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": f"Bearer {fleet.key}"}):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://127.0.0.1:{PORT}/sessions/{session}/{path}", additional_headers=headers)
            assert refused.value.response.status_code == 401
    assert figure(WORKER, 'oah_viewers{kind="write"}') == 0
    client.cancel(run)


# --- the command ----------------------------------------------------------------------------------------------------


def has_size(client: Client, run: str, child: pexpect.spawn[bytes], rows: int) -> bool:
    """Whether the terminal has as many rows. Says what the command shows when it never has."""
    found = client.screen(run_id=run)["rows"]
    if found != rows:
        child.expect([pexpect.TIMEOUT, pexpect.EOF], timeout=0)
    assert found == rows, f"{found} rows; the command: alive {child.isalive()}, {(child.before or b'')[-1000:]!r}"
    return True


def test_the_command_shows_types_and_gives_the_terminal_back(fleet: Fleet, client: Client) -> None:
    session, run = begin(client, "echo begun; read x; echo over $x; read y")
    eventually(lambda: "begun" in shown(client, run), within=20)
    env = {**os.environ, "OAH_API_URL": fleet.url, "OAH_API_KEY": fleet.key, "TERM": "xterm-256color"}
    plain = subprocess.run(
        [sys.executable, "-c", OAH, "run", "attach", run], env=env, capture_output=True, text=True, check=False
    )
    assert (plain.returncode, "begun" in plain.stdout) == (0, True), plain.stderr
    assert "\x1b" not in plain.stdout
    stale = {**env, "LINES": "20", "COLUMNS": "70"}  # as a shell leaves them
    child = pexpect.spawn(
        sys.executable, ["-c", OAH, "run", "attach", run, "--write"], env=stale, dimensions=(30, 90), timeout=20
    )
    child.expect_exact("begun")
    # Its size comes when it may write: from then on keys are typed.
    eventually(lambda: has_size(client, run, child, 30), within=10, what="its size is the window's")
    child.setwinsize(32, 100)
    eventually(lambda: has_size(client, run, child, 32), within=10, what="its size is the window's when that changes")
    child.send("now\r")
    child.expect_exact("over now")
    child.send("\x1d")
    child.expect_exact("\x1b[?1049l")
    child.expect_exact("detached")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    eventually(lambda: client.screen(run_id=run)["rows"] == 40, within=10, what="the size is the profile's again")
    client.cancel(run)
    gone = subprocess.run(
        [sys.executable, "-c", OAH, "run", "attach", "run_nothing"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert gone.returncode == 3


# --- what fails -----------------------------------------------------------------------------------------------------


def test_a_viewer_follows_its_run_to_another_worker_and_comes_back_after_a_restart() -> None:
    with short_fleet(workers=2, recovery="requeue_running") as fleet:
        client = fleet.client
        session, run = begin(client, "echo attempt $OAH_ATTEMPT; read x; echo over $x")
        eventually(lambda: client.run(run)["status"] == "running", within=20)
        with client.attach(run_id=run) as terminal:
            viewer = Watcher(terminal)
            viewer.shows("attempt 1")
            fleet.kill(fleet.worker_of(client.run(run)["worker_id"]))
            viewer.until(lambda: viewer.note("waiting") is not None, within=20)
            viewer.until(lambda: (viewer.note("bound") or viewer.notes[0]).data.get("attempt") == 2, within=60)
            viewer.shows("attempt 2", within=30)
            fleet.signal(API, signal.SIGTERM)
            code, reason = viewer.ends(within=30)
            assert code == 1012, reason
        fleet.wait_exit(API)
        fleet.restart(API)
        fleet.wait_ready()
        with client.attach(run_id=run, write=True) as terminal:
            viewer = Watcher(terminal)
            viewer.shows("attempt 2")
            viewer.hears("granted")
            terminal.type(b"and out\r")
            assert viewer.ends(within=30) == (1000, "the run is completed")


def test_a_run_whose_worker_is_gone_for_good_ends_with_a_reason() -> None:
    with short_fleet(workers=1, recovery="fail") as fleet:
        client = fleet.client
        _, run = begin(client, "read x")
        eventually(lambda: client.run(run)["status"] == "running", within=20)
        with client.attach(run_id=run) as terminal:
            viewer = Watcher(terminal)
            viewer.hears("bound")
            fleet.kill(0)
            code, reason = viewer.ends(within=60)
        assert (code, reason) == (1000, "the run is failed")
        assert viewer.note("end").data["error"] == "worker_lost"  # type: ignore[union-attr]
