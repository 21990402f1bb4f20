"""Turns of a full-screen program that misbehaves on order: each text arrives once, each turn ends when it is over."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from oah.adapters.pty.asked import MOST_ALONE
from oah.adapters.pty.screen_agent import ScreenAgent
from oah.adapters.pty.screen_terminal import ScreenTerminal
from oah.core.dialogue.reply import CUT
from oah.core.model.delivery import Outcome
from oah.core.model.question import Choice
from oah.core.model.timeout import TimeoutReason
from oah.errors import AgentError, Conflict, InvalidRequest
from oah.ports.agent import TurnRequest, TurnResult, TurnStatus
from oah.ports.commands import Delivery
from oah.testing.turns import HeldTurn
from tests.support import eventually
from tests.support.terminals import QUICK_LADDER, TESTING_AGENTS, Bench, bench, nap, napping

DONE, FAILED, CANCELLED, WAITING = TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED, TurnStatus.WAITING
_STARTS = {
    "inky-login": "echo Select login method; sleep 60",
    "inky-ends": "echo goodbye; exit 3",
    "inky-dumb": "echo starting; sleep 60",
}
PATIENCE = timedelta(seconds=8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("desk")
    profiles = directory / "agents.d"
    profiles.mkdir()
    text = (TESTING_AGENTS / "inky.toml").read_text()
    for name, shell in _STARTS.items():
        own = text.replace('name = "inky"', f'name = "{name}"', 1).replace("ready_seconds = 20", "ready_seconds = 1")
        argv = f'argv = ["sh", "-c", "{shell}"]'
        own = "\n".join(argv if line.startswith("argv") else line for line in own.splitlines())
        (profiles / f"{name}.toml").write_text(own)
    (profiles / "inky.toml").write_text(text)
    with bench(directory, profiles=profiles) as made:
        yield made


@pytest.fixture
def desk(shared: Bench) -> Iterator[Bench]:
    yield shared.fresh()
    shared.close_agents()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


class Inky:
    """One agent and what was submitted to it."""

    def __init__(self, desk: Bench, path: Path, **options: object) -> None:
        self.desk, self.path = desk, path
        env = {"INKY": json.dumps(options), "OAH_SUBMITS": str(path)}
        self.agent = cast(ScreenAgent, desk.open("inky", env=env))

    def turn(self, text: str, **more: Any) -> TurnResult:
        return self.desk.turn(self.agent, text, **more)

    def resume(self, answer: str | None, control: HeldTurn | None = None) -> TurnResult:
        request = TurnRequest(run_id="run_1", attempt=1, input="", timeout=timedelta(seconds=30), ladder=QUICK_LADDER)
        return self.agent.resume(request, answer, control or HeldTurn())

    @property
    def submits(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.submits]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "submits"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --- giving ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alternate": True},
        {"query": True, "blank": 0.7},
        {"hold": 0.3},
        {"loud": 3_000_000},
    ],
    ids=["plain", "other-screen", "asks-and-blank", "slow-keys", "loud"],
)
def test_a_conversation(desk: Bench, path: Path, options: dict[str, Any]) -> None:
    inky = Inky(desk, path, **options)
    texts = ["hello there", "one\ntwo\nthree", "row\n" * 40 + "the end"]
    for text in texts:
        result = inky.turn(text)
        assert (result.status, result.delivery, result.keep_warm) == (DONE, Outcome.CONFIRMED, True), result
        assert result.output == f"heard {len(text)} characters, {digest(text)}"
    assert inky.texts == texts


@pytest.mark.parametrize("size", [10, 63, 64, 65, 255, 256, 1023, 1024, 4095, 4096, 17_000, 65_536])
def test_texts_of_every_size_are_submitted_exactly_once(desk: Bench, path: Path, size: int) -> None:
    """Enter right behind a paste is a line end to such programs."""
    inky = Inky(desk, path)
    lines = "".join(f"row {n} of a long text that fills its line\n" for n in range(size // 20 + 1))
    text = lines[: size - 1] + "."
    result = inky.turn(text)
    assert (result.status, inky.texts) == (DONE, [text])


def test_a_long_line_without_bracketed_paste_is_submitted_once(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path, bracketed=False)
    texts = ["short", "x" * 60 + " y" * 300]
    for text in texts:
        assert inky.turn(text).status is DONE
    assert inky.texts == texts
    assert inky.turn("two\nlines").error_code == "input_rejected"
    assert inky.turn("goes on").status is DONE


def test_a_swallowed_enter_is_pressed_again_and_the_text_is_not(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path, eat=2)
    assert inky.turn("hello").delivery is Outcome.CONFIRMED
    assert inky.texts == ["hello"]


def test_a_text_that_is_shown_and_never_taken_fails_honestly(desk: Bench, path: Path) -> None:
    result = Inky(desk, path, stuck=True).turn("hello")
    assert (result.status, result.error_code, result.delivery) == (FAILED, "delivery_failed", Outcome.FAILED)
    assert (result.keep_warm, result.tree_empty) == (False, True), "or it might be taken later"


def test_a_half_typed_line_of_a_person_is_not_fused_with_ours(desk: Bench, path: Path, monkeypatch: Any) -> None:
    inky = Inky(desk, path, draft="half a li")
    _shorten(inky, patience=timedelta(seconds=0.5))
    result = inky.turn("hello")
    assert (result.error_code, result.keep_warm, inky.texts) == ("composer_not_empty", True, [])
    assert "half a li" in inky.agent.snapshot().text
    inky.agent.screen.press(b"\x15")
    assert inky.turn("hello").status is DONE
    assert inky.texts == ["hello"]


def _shorten(inky: Inky, **more: Any) -> None:
    import dataclasses

    rules = inky.agent.rules
    inky.agent.screen.rules = dataclasses.replace(rules, injection=dataclasses.replace(rules.injection, **more))


def test_a_command_is_refused_and_given_when_it_is_meant(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    result = inky.turn("/clear it")
    assert (result.error_code, result.keep_warm, inky.submits) == ("command_refused", True, [])
    inky.turn("/clear it", command=True)
    assert inky.submits[0] == {"text": "/clear it"}
    assert inky.submits[1]["command"]


def test_a_program_that_reads_no_more_is_given_up_in_time(
    desk: Bench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inky = Inky(desk, path)
    inky.turn("[[no-read]]", timeout=0.7)
    inky = Inky(desk, path, hold=60)
    begun = time.monotonic()
    result = inky.turn("x" * 200_000)
    assert result.error_code == "agent_not_reading"
    assert time.monotonic() - begun < 40
    inky = Inky(desk, path, hold=60)
    control, typing = HeldTurn(), threading.Event()
    write = ScreenTerminal.write

    def told(screen: ScreenTerminal, *args: Any, **more: Any) -> None:
        typing.set()
        write(screen, *args, **more)

    monkeypatch.setattr(ScreenTerminal, "write", told)
    with ThreadPoolExecutor(1) as one:
        turn = one.submit(inky.turn, "x" * 200_000, control=control)
        assert typing.wait(30), "it types"
        begun = time.monotonic()
        control.cancel()
        assert turn.result().status is CANCELLED
        assert time.monotonic() - begun < 40


# --- the end of a turn ---


def test_silence_is_no_end_and_a_dead_spinner_is_no_progress(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    begun = time.monotonic()
    assert inky.turn("[[silent 2.5]]\n[[say done]]").output == "done"
    assert time.monotonic() - begun > 2.5
    result = inky.turn("[[dead 60]]", idle=timedelta(seconds=1.5), timeout=15)
    assert result.status is TurnStatus.TIMED_OUT
    assert result.error_code == TimeoutReason.IDLE


def test_a_reply_that_looks_like_a_prompt_or_a_dialog_ends_nothing_early(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    for said in ("> ", "Do you want to proceed?", "? for help", "─" * 60, "esc to interrupt", "$ "):
        result = inky.turn(f"[[say {said}]]\n[[sleep 0.7]]\n[[say really over]]")
        assert (result.status, result.output.splitlines()[-1].strip()) == (DONE, "really over"), said
    assert len(inky.texts) == 6


def test_a_question_that_somebody_answers_at_the_terminal_stands_no_more(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    result = inky.turn("[[permission]]\n[[say done]]")
    assert result.status is WAITING and inky.agent.asks()
    assert inky.agent.live is not None
    inky.agent.live.type(b"1", timedelta(seconds=2))
    eventually(lambda: not inky.agent.asks(), within=10, what="it has left the screen")
    result = inky.resume(None)
    assert (result.status, result.output.splitlines()) == (DONE, ["answered 1", "done"])
    assert [each["text"] for each in inky.submits if each.get("dialog")] == ["1"], "nothing was typed besides"


def test_an_answer_that_comes_too_late_is_not_typed(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    assert inky.turn("[[permission]]\n[[say done]]").status is WAITING
    assert inky.agent.live is not None
    inky.agent.live.type(b"3", timedelta(seconds=2))
    eventually(lambda: not inky.agent.asks(), within=10, what="it has left the screen")
    assert "answered 3" in inky.resume("1").output
    assert len(inky.texts) == 2, "and no text came of it"


def test_a_long_reply_is_whole_and_is_shown_as_it_grows(desk: Bench, path: Path) -> None:
    control = HeldTurn()
    inky = Inky(desk, path)
    result = inky.turn("[[lines 100]]", control=control)
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines == [f"line {n} of a long answer" for n in range(100)]
    assert control.text == result.output
    assert 3 < len(control.shown) < 20, "a few times a second"


def test_on_the_other_screen_the_last_of_a_long_reply_is_kept(desk: Bench, path: Path) -> None:
    result = Inky(desk, path, alternate=True).turn("[[lines 100]]")
    assert (result.status, result.output.splitlines()[-1].strip()) == (DONE, "line 99 of a long answer")


def test_a_flood_costs_a_bounded_screen(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    begun = time.process_time()
    result = inky.turn("[[flood 40000000]]\n[[say over]]", timeout=60)
    assert (result.status, result.output.splitlines()[-1]) == (DONE, "over")
    assert time.process_time() - begun < 15


def test_the_exit_of_the_program_is_seen_with_its_last_words(desk: Bench, path: Path) -> None:
    result = Inky(desk, path).turn("[[exit 7]]")
    assert (result.status, result.error_code, result.exit_code) == (FAILED, "exit_nonzero", 7)
    assert result.keep_warm is False
    result = Inky(desk, path).turn("[[kill]]")
    assert (result.error_code, result.exit_code) == ("agent_killed", -11)


def test_a_cancel_interrupts_and_keeps_the_program(desk: Bench, path: Path, pool: ThreadPoolExecutor) -> None:
    inky = Inky(desk, path)
    control = HeldTurn()
    request = TurnRequest(run_id="run_0", attempt=1, input="[[sleep 30]]")
    turn = pool.submit(inky.agent.turn, request, control)
    eventually(lambda: inky.texts, what="it is submitted")
    begun = time.monotonic()
    control.cancel()
    result = turn.result()
    assert time.monotonic() - begun < 20
    assert (result.status, result.keep_warm) == (CANCELLED, True)
    assert inky.turn("again").status is DONE


def test_a_cancel_of_a_program_that_ignores_keys_kills_it(desk: Bench, path: Path, pool: ThreadPoolExecutor) -> None:
    inky = Inky(desk, path)
    control = HeldTurn()
    turn = pool.submit(inky.turn, f"[[grandchild {nap(7501)}]]\n[[no-read]]", control=control)
    eventually(lambda: napping(7501), what="a grandchild")
    begun = time.monotonic()
    control.cancel()
    result = turn.result()
    assert (result.status, result.tree_empty) == (CANCELLED, True)
    assert time.monotonic() - begun < 40
    assert napping(7501) == []


def test_a_reply_that_has_scrolled_off_the_other_screen_says_so(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path, alternate=True)
    short = inky.turn("[[say all of it]]")
    assert (short.output, short.output_cut) == ("all of it", False)
    result = inky.turn("[[lines 60]]")
    assert result.status is DONE and result.output_cut
    first, *rest = result.output.splitlines()
    assert first == CUT
    assert rest[-1].strip() == "line 59 of a long answer" and "line 0 " not in result.output
    assert result.recording is not None
    recording = (desk.blobs.get(result.recording) or b"").decode()
    assert all(f"line {n} of a long answer" in recording for n in range(60)), "the recording has all that was drawn"
    assert not inky.turn("[[say and on]]").output_cut


# --- questions ---


def test_a_dialog_waits_for_an_answer_and_the_turn_goes_on(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    result = inky.turn("[[permission]]")
    assert result.status is WAITING
    assert result.question is not None
    assert (result.question.name, result.question.choices[0]) == ("permission", Choice("1", "Yes"))
    assert inky.agent.waiting
    assert not inky.agent.warm
    with pytest.raises(InvalidRequest) as caught:
        inky.resume("perhaps")
    assert caught.value.code == "answer_unfit"
    assert caught.value.hint is not None
    assert "1: Yes" in caught.value.hint
    result = inky.resume("no, and say why")
    assert (result.status, result.output) == (DONE, "answered 3")
    assert [each for each in inky.submits if each.get("dialog")] == [{"text": "3", "dialog": True}]
    with pytest.raises(Conflict):
        inky.resume("1")


def test_a_question_takes_free_text_and_an_unknown_dialog_asks_too(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    asked = inky.turn("[[question]]\n[[unknown]]")
    assert asked.question is not None
    assert asked.question.name == "question"
    asked = inky.resume("dark blue")
    assert (asked.status, asked.question is not None and asked.question.name) == (WAITING, "unknown")
    assert asked.question is not None
    assert "nobody has ever asked" in asked.question.text
    result = inky.resume("y")
    assert (result.status, result.output.splitlines()) == (DONE, ["answered dark blue", "answered y"])


def test_a_person_who_never_stops_typing_does_not_keep_the_answer_waiting(
    desk: Bench, path: Path, pool: ThreadPoolExecutor
) -> None:
    inky = Inky(desk, path)
    assert inky.turn("[[permission]]").status is WAITING
    live, over = inky.agent.live, threading.Event()
    assert live is not None

    def type_on() -> None:
        while not over.wait(0.1):
            live.type(b"\x00", timedelta(seconds=5))

    typing = pool.submit(type_on)
    eventually(lambda: inky.agent.running.terminal.pressed_at > 0, within=10, what="the first key")
    going_on = pool.submit(inky.resume, "1")
    try:
        eventually(lambda: any(each.get("dialog") for each in inky.submits), within=10, what="the answer is typed")
    finally:
        over.set()
    typing.result(timeout=60)
    assert going_on.result(timeout=20).output == "answered 1"


COUNTS = "Continuing in {seconds} s…"


def test_a_dialog_that_counts_down_is_one_question(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    asked = inky.turn(f"[[countdown 1000 0.2 {COUNTS}]]")
    assert asked.status is WAITING and asked.question is not None and "Continuing in " in asked.question.text
    before = inky.agent.snapshot().text
    eventually(lambda: inky.agent.snapshot().text != before, within=10, what="it counts")
    assert inky.agent.asks()
    result = inky.resume("1")
    assert (result.status, result.output) == (DONE, "answered 1")
    assert [each["text"] for each in inky.submits if each.get("dialog")] == ["1"]


def test_a_dialog_that_answers_itself_is_left_and_no_answer_is_typed(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    assert inky.turn(f"[[countdown 10 0.1 {COUNTS}]]\n[[say done]]").status is WAITING
    eventually(lambda: not inky.agent.asks(), within=10, what="it has answered itself")
    result = inky.resume("1")
    assert (result.status, result.output.splitlines()) == (DONE, ["answered by itself", "done"])
    assert len(inky.texts) == 1, "nothing was typed besides"


def test_a_program_that_counts_in_its_own_way_is_asked_about_a_few_times(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    asked = [inky.turn("[[countdown 1000 0.7 patience {}]]")]
    for _ in range(MOST_ALONE):
        eventually(lambda: not inky.agent.asks(), within=10, what="it has become another")
        asked.append(inky.resume(None))
    assert all(each.status is WAITING for each in asked)
    before = inky.agent.snapshot().text
    eventually(lambda: inky.agent.snapshot().text != before, within=10, what="it counts on")
    assert inky.agent.asks(), "the question stays"
    again = inky.resume("1")
    assert again.status is WAITING and len(inky.texts) == 1, "but what does not fit is not typed"
    assert inky.agent.live is not None
    inky.agent.live.type(b"2", timedelta(seconds=2))
    eventually(lambda: not inky.agent.asks(), within=10, what="it has gone")
    assert inky.resume(None).output == "answered 2"


def test_a_policy_answers_without_a_wait(desk: Bench, path: Path) -> None:
    control = HeldTurn()
    control.answers = ["1", "yes"]
    result = Inky(desk, path).turn("[[permission]]\n[[permission]]", control=control)
    assert (result.status, result.output.splitlines()) == (DONE, ["answered 1", "answered 1"])
    assert len(control.asked) == 2


def test_a_trust_dialog_at_the_start_asks_before_the_text_is_given(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path, trust=True)
    asked = inky.turn("hello")
    assert (asked.status, asked.question is not None and asked.question.name) == (WAITING, "trust")
    assert inky.submits == []
    result = inky.resume("1")
    assert (result.status, inky.texts) == (DONE, ["1", "hello"])


def test_somebody_who_answers_at_the_terminal_is_enough(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    inky.turn("[[permission]]")
    inky.agent.running.terminal.write(b"2", timedelta(seconds=1))
    eventually(lambda: any(each.get("dialog") for each in inky.submits), what="the dialog is answered")
    eventually(lambda: "Do you want to proceed" not in inky.agent.snapshot().text, what="and its screen says so")
    result = inky.resume("1")
    assert (result.status, result.output) == (DONE, "answered 2")
    assert [each["text"] for each in inky.submits if each.get("dialog")] == ["2"], "1 was not typed"


def test_a_waiting_turn_can_be_cancelled_timed_out_and_closed(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    inky.turn("[[permission]]")
    control = HeldTurn()
    control.cancel()
    assert inky.resume(None, control).status is CANCELLED
    inky = Inky(desk, path)
    inky.turn("[[permission]]")
    control = HeldTurn()
    control.over = TimeoutReason.STEP
    result = inky.resume(None, control)
    assert (result.status, result.tree_empty) == (TurnStatus.TIMED_OUT, True)
    inky = Inky(desk, path)
    inky.turn("[[permission]]")
    assert inky.agent.close(timedelta(seconds=0.2))


def test_a_login_is_no_question(desk: Bench, path: Path) -> None:
    result = Inky(desk, path).turn("[[login]]")
    assert (result.status, result.error_code) == (FAILED, "agent_blocked")
    assert "Select login method" in (result.error_message or "")


# --- what others say ---


def draft(inky: Inky) -> str:
    composer = inky.agent.screen.read().composer
    return composer.draft if composer is not None else ""


def begun(inky: Inky, pool: ThreadPoolExecutor, text: str) -> Future[TurnResult]:
    turn = pool.submit(inky.turn, text)
    eventually(lambda: inky.texts or turn.done(), what="it is submitted")
    return turn


def test_a_text_for_a_live_turn_goes_the_same_way(desk: Bench, path: Path, pool: ThreadPoolExecutor) -> None:
    inky = Inky(desk, path)
    turn = begun(inky, pool, "[[sleep 3]]\n[[say over]]")
    assert inky.agent.say("and this\nas well", PATIENCE) is Delivery.DELIVERED
    assert turn.result().status is DONE
    assert inky.texts == ["[[sleep 3]]\n[[say over]]", "and this\nas well"]


def test_nothing_is_said_into_a_dialog_or_into_somebodys_line(
    desk: Bench, path: Path, pool: ThreadPoolExecutor
) -> None:
    inky = Inky(desk, path)
    turn = begun(inky, pool, "[[draft half a li]]\n[[sleep 3]]")
    eventually(lambda: "half a li" in draft(inky), what="a person types")
    assert inky.agent.say("hello", timedelta(seconds=0.7)) is Delivery.MISSED
    inky.agent.running.terminal.write(b"\x15", timedelta(seconds=1))
    assert turn.result().status is DONE
    turn = pool.submit(inky.turn, "[[permission]]")
    assert turn.result().status is WAITING
    assert inky.agent.say("hello", timedelta(seconds=0.5)) is Delivery.MISSED
    assert "hello" not in inky.texts


def test_a_command_is_not_said(desk: Bench, path: Path, pool: ThreadPoolExecutor) -> None:
    inky = Inky(desk, path)
    turn = begun(inky, pool, "[[sleep 1.5]]")
    assert inky.agent.say("/quit", PATIENCE) is Delivery.MISSED
    assert turn.result().status is DONE
    assert len(inky.submits) == 1


# --- between turns ---


def test_a_parked_program_is_read_and_answered(desk: Bench, path: Path) -> None:
    """It waits for an answer of its terminal while nobody drives it, and writes more than any buffer takes."""
    inky = Inky(desk, path)
    inky.turn("hello")
    terminal = inky.agent.running.terminal
    terminal.write(b"\x1b[200~[[ask]]\n[[flood 8000000]]\n[[say through]]\x1b[201~", timedelta(seconds=2))
    eventually(lambda: "[[ask]]" in inky.agent.snapshot().text, what="the paste")
    terminal.write(b"\r", timedelta(seconds=1))
    eventually(lambda: "cursor True" in inky.agent.snapshot().text, what="it went through")
    assert "through" in inky.agent.snapshot().text
    assert inky.turn("again").status is DONE


def test_another_size_reaches_program_and_screen(desk: Bench, path: Path) -> None:
    inky = Inky(desk, path)
    inky.agent.resize(rows=30, columns=72)
    result = inky.turn("x" * 100)
    assert (result.status, inky.agent.snapshot().columns) == (DONE, 72)
    assert inky.texts == ["x" * 100]


# --- starts that fail ---


def test_a_start_that_asks_for_a_login_or_ends_is_told_from_one_that_is_slow(desk: Bench, path: Path) -> None:
    for profile, code in (
        ("inky-login", "agent_blocked"),
        ("inky-ends", "agent_not_ready"),
        ("inky-dumb", "agent_not_ready"),
    ):
        with pytest.raises(AgentError) as caught:
            desk.open(profile)
        assert caught.value.code == code, caught.value.message
    assert desk.host.live() == ()
