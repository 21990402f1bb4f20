"""A worker's terminals as its viewers get them: every byte once or counted as skipped, snapshots that fit, and one
person's keys that are never inside a text of ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from oah.adapters.pty.live import Live
from oah.adapters.pty.screen import ScreenModel
from oah.core.dialogue.tape import TAPE_BYTES
from oah.core.model.ids import SessionId
from oah.errors import AgentError
from oah.ports.agent import TurnStatus
from tests.support import eventually
from tests.support.terminals import Bench, bench

SOON = timedelta(seconds=5)
SESSION = SessionId("ses_1")

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("views")) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def live_of(desk: Bench) -> Live:
    found = desk.agents._around.lives.find(SESSION)
    assert found is not None
    return found


class Follower:
    """A viewer with an emulator of its own, from a snapshot on."""

    def __init__(self, live: Live) -> None:
        self.live, self.model = live, ScreenModel(rows=40, columns=100)
        snapshot = live.snapshot()
        self.model.feed(snapshot.paint)
        self.at = snapshot.offset

    def same(self) -> bool:
        """Read what there is: does it show what the agent's own screen shows?"""
        while data := self.live.read(self.at, 65536):
            self.model.feed(data)
            self.at += len(data)
        assert data == b"", "it fell behind"
        return self.model.look().lines == self.live.screen().lines


@pytest.mark.parametrize("profile", ["shell", "inky"])
def test_who_joins_in_the_middle_sees_what_the_model_sees(desk: Bench, profile: str) -> None:
    agent = desk.open(profile)
    live = live_of(desk)
    assert desk.turn(agent, "echo first" if profile == "shell" else "first").status is TurnStatus.COMPLETED
    viewer = Follower(live)
    assert viewer.same()
    text = "for i in 1 2 3; do echo again $i; done" if profile == "shell" else "[[lines 5]]\n[[say again 3]]"
    assert desk.turn(agent, text).status is TurnStatus.COMPLETED
    eventually(viewer.same, within=5)
    assert "again 3" in viewer.model.look().text


def test_a_viewer_that_never_reads_costs_the_agent_nothing(desk: Bench) -> None:
    """What it has missed is known to the byte."""
    agent = desk.open("shell")
    live = live_of(desk)
    at = live.end
    begun = time.monotonic()
    result = desk.turn(agent, "yes 0123456789012345678901234567890123456789 | head -c 20000000; echo; echo over")
    seconds = time.monotonic() - begun
    assert result.status is TurnStatus.COMPLETED
    assert seconds < 15
    assert live.end - at > 20_000_000
    assert live.read(at, 10) is None
    snapshot = live.snapshot()
    assert snapshot.offset == live.end
    viewer = ScreenModel(rows=40, columns=100)
    viewer.feed(snapshot.paint)
    assert "over" in viewer.look().text
    kept = live.read(live.end - TAPE_BYTES, TAPE_BYTES)
    assert kept is not None and len(kept) == TAPE_BYTES


def test_the_state_says_which_run_the_terminal_is_at(desk: Bench, pool: ThreadPoolExecutor) -> None:
    agent = desk.open("shell")
    live = live_of(desk)
    turn = pool.submit(desk.turn, agent, "read line; echo got $line")
    eventually(lambda: live.state().run_id == "run_1", what="bound")
    assert not turn.done()
    eventually(lambda: type_line(live, b"hello\r") and turn.done(), within=10, every=0.2)
    assert "got hello" in turn.result().output
    assert live.state().run_id is None
    version = live.state().version
    waiting = pool.submit(live.wait, live.end, version, timedelta(seconds=10))
    assert agent.close(timedelta(0))
    waiting.result(timeout=60)
    assert live.state().ended
    assert desk.agents._around.lives.find(SESSION) is None
    with pytest.raises(AgentError) as refused:
        live.type(b"x", SOON)
    assert refused.value.code == "agent_gone"


def type_line(live: Live, keys: bytes) -> bool:
    live.type(keys, SOON)
    return True


def test_a_half_typed_line_at_a_prompt_is_never_fused_with_ours(desk: Bench, pool: ThreadPoolExecutor) -> None:
    """The text waits for the line's end; a line that stays is a refusal, and the agent stays too."""
    agent = desk.open("shell")
    live = live_of(desk)
    live.type(b"echo by han", SOON)
    turn = pool.submit(desk.turn, agent, "echo by queue")
    eventually(lambda: live.state().run_id == "run_1", what="bound")
    time_of_silence(live)
    assert not turn.done()
    live.type(b"d\r", SOON)
    result = turn.result(timeout=60)
    assert (result.status, result.output.strip()) == (TurnStatus.COMPLETED, "by queue")
    assert "by hand" in live.screen().text
    live.type(b"rm -r", SOON)
    live.let_go()
    assert desk.turn(agent, "echo fine").output.strip() == "fine"


@pytest.mark.parametrize("profile", ["shell", "python"])
def test_a_text_waits_for_what_a_person_has_begun_at_the_prompt(
    desk: Bench, pool: ThreadPoolExecutor, profile: str
) -> None:
    """A program may throw away what it is sent before it asks for a line."""
    agent = desk.open(profile)
    live = live_of(desk)
    marked = desk.directory / f"hand-{profile}"
    text = "echo by queue" if profile == "shell" else "print('by queue')"
    for _ in range(3):  # a line of a person that is short, or no line of the program's at all
        live.type(b"true\r", SOON)
        result = desk.turn(agent, text)
        assert (result.status, result.output.strip()) == (TurnStatus.COMPLETED, "by queue")
    if profile == "shell":
        live.type(f"until [ -e {marked} ]; do sleep 0.05; done; echo by hand\r".encode(), SOON)
        turn = pool.submit(desk.turn, agent, text)
        eventually(lambda: live.state().run_id is not None, what="bound")
        time_of_silence(live)
        assert not turn.done()
        marked.touch()
        result = turn.result(timeout=60)
        assert (result.status, result.output.strip()) == (TurnStatus.COMPLETED, "by queue")
        assert "by hand" in live.screen().text


def test_what_a_person_lets_run_at_the_prompt_is_not_disturbed(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.adapters.pty.marker_agent._PATIENCE", 0.3)
    agent = desk.open("shell")
    live_of(desk).type(b"for i in 1 2 3\r", SOON)  # it waits for the rest
    result = desk.turn(agent, "echo by queue")
    assert (result.error_code, result.keep_warm) == ("composer_not_empty", True)
    live_of(desk).type(b"\x03", SOON)
    assert desk.turn(agent, "echo fine").output.strip() == "fine"


def test_a_line_that_was_too_long_to_be_typed_keeps_nobody_waiting(
    desk: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = desk.open("shell")
    with pytest.raises(AgentError) as refused:
        live_of(desk).type(b"x" * 5000 + b"\r", SOON)
    assert refused.value.code == "line_too_long"
    monkeypatch.setattr("oah.adapters.pty.marker_agent._PATIENCE", 0.3)
    assert desk.turn(agent, "echo by queue").output.strip() == "by queue"


@pytest.mark.parametrize(
    ("profile", "line", "text"),
    [
        ("shell", "PROMPT_COMMAND='true'; PS1='$ '", "echo by queue"),
        ("shell", "", "echo by queue"),
        ("python", "", "print('by queue')"),
    ],
)
def test_after_a_line_of_a_person_the_same_program_asks_again(desk: Bench, profile: str, line: str, text: str) -> None:
    """Also after the start file of somebody's shell, which sets such variables, and after no more than the return
    key."""
    agent = desk.open(profile)
    desk.turn(agent, "kept=1")
    live_of(desk).type(f"{line}\r".encode(), SOON)
    result = desk.turn(agent, text)
    assert (result.status, result.output.strip()) == (TurnStatus.COMPLETED, "by queue")
    assert desk.turn(agent, "echo $kept" if profile == "shell" else "kept").output.strip() == "1"


@pytest.mark.parametrize(
    ("profile", "line", "text"), [("shell", "sleep 0.2", "echo by queue"), ("python", "x", "print('by queue')")]
)
def test_of_several_lines_of_a_person_none_costs_a_text(desk: Bench, profile: str, line: str, text: str) -> None:
    """The program asks after the first while it has not read the second, and is interrupted in the third."""
    agent, live = desk.open(profile), live_of(desk)
    for keys in ("", line, "\x03"):
        live.type(b"\r", SOON)
        live.type(keys.encode() if keys == "\x03" else f"{keys}\r".encode(), SOON)
        result = desk.turn(agent, text)
        assert (result.status, result.output.strip()) == (TurnStatus.COMPLETED, "by queue")


def test_what_is_typed_ahead_after_a_persons_line_is_read(desk: Bench) -> None:
    """So it is of no matter when exactly a text of ours comes after several lines; what a run leaves unread is gone."""
    agent, live, marked = desk.open("shell"), live_of(desk), desk.directory / "first"
    live.type(f"until [ -e {marked} ]; do sleep 0.05; done\r".encode(), SOON)
    live.type(b"echo the $((1 + 1))nd\r", SOON)
    marked.touch()
    eventually(lambda: "the 2nd" in live.screen().text, within=10, what="it is read")
    assert desk.turn(agent, "echo by queue").output.strip() == "by queue"


def test_however_much_a_persons_line_says_it_is_at_work_until_it_is_done(desk: Bench, pool: ThreadPoolExecutor) -> None:
    agent = desk.open("shell")
    live, marked = live_of(desk), desk.directory / "done"
    flood = f"yes 0123456789 | head -c {3 * TAPE_BYTES}; until [ -e {marked} ]; do sleep 0.05; done"
    begun = live.end
    live.type(f"{flood}\r".encode(), SOON)
    eventually(lambda: live.end - begun >= 3 * TAPE_BYTES, within=20, what="it has said all")
    turn = pool.submit(desk.turn, agent, "echo by queue")
    eventually(lambda: live.state().run_id is not None, what="bound")
    time_of_silence(live)
    assert not turn.done()
    marked.touch()
    assert turn.result(timeout=60).output.strip() == "by queue"


def test_what_has_asked_is_known_however_much_is_said_afterwards(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job in the background goes on talking."""
    agent = desk.open("shell")
    live, begun = live_of(desk), live_of(desk).end
    live.type(f"(yes 0123456789 | head -c {3 * TAPE_BYTES}) &\r".encode(), SOON)
    eventually(lambda: live.end - begun >= 3 * TAPE_BYTES, within=20, what="it has said all")
    monkeypatch.setattr("oah.adapters.pty.marker_agent._PATIENCE", 0.3)
    assert desk.turn(agent, "echo by queue").output.strip().startswith("by queue")


def time_of_silence(live: Live) -> None:
    """Nothing comes for a while."""
    live.wait(live.end, live.state().version, timedelta(seconds=0.4))


def test_keys_wait_while_a_text_is_given(desk: Bench) -> None:
    agent = desk.open("inky")
    live = live_of(desk)
    terminal = agent.running.terminal
    typed = threading.Event()

    def person() -> None:
        live.type(b"z", SOON)
        typed.set()

    with terminal.typing:
        thread = threading.Thread(target=person)
        thread.start()
        assert not typed.wait(0.2)
    thread.join(60)
    assert typed.is_set()
    eventually(lambda: "> z" in agent.model.look().text or agent.model.look().text.count("z") > 0, what="the key shows")
    with terminal.typing, ThreadPoolExecutor(1) as other, pytest.raises(AgentError) as refused:
        other.submit(live.type, b"y", timedelta(seconds=0.1)).result()
    assert refused.value.code == "typing_busy"


def test_a_writer_resizes_and_leaves_the_size_as_it_was(desk: Bench) -> None:
    agent = desk.open("shell")
    live = live_of(desk)
    live.resize(rows=24, columns=80)
    assert (live.state().rows, live.state().columns) == (24, 80)
    assert desk.turn(agent, "stty size").output.strip() == "24 80"
    assert len(live.screen().lines) == 24
    live.let_go()
    assert desk.turn(agent, "stty size").output.strip() == "40 100"
