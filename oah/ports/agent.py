"""An agent as a slot thread drives it: open, one turn per run, park or close.

The slot thread calls `turn` and blocks; witnesses extend the deadline of `AgentSpec.agent_id` meanwhile. An agent
never writes to SQL or Redis; what it says comes back in the result. A turn in which the program asks somebody is left
(`waiting`) and continued later (`resume`): meanwhile no thread waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from oah.core.model.delivery import Outcome
from oah.core.model.question import Question
from oah.core.model.timeout import TimeoutReason
from oah.ports.commands import Delivery
from oah.ports.opening import Opening

MAX_RESULT_BYTES = 1024 * 1024
"""Result text kept in the row; what is longer lies as a blob (source: details.md, Defaults)."""


@dataclass(frozen=True, slots=True)
class KillLadder:
    """Graces of the rungs between a cancel and SIGKILL of the tree: the profile's interrupt key, SIGINT, SIGTERM."""

    key: timedelta = timedelta(seconds=5)
    interrupt: timedelta = timedelta(seconds=5)
    terminate: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """What is needed to open an agent.

    `agent_id`: unique per opening, chosen by the caller, names the tree at the host. `env`: additions to the profile's
    clean environment (already resolved, no secret references). `home`: HOME of the agent, created if missing.
    `session_ref`: the program's own name for the conversation, when a profile can resume; `fresh_because`: why it must
    not be gone on with (a reason of `Opening`). `own_cwd`: `cwd` is the session's own, created if missing.
    `deadline_boottime`: see ports/terminal.py.
    """

    agent_id: str
    session_id: str
    workspace_id: str
    profile: str
    run_id: str
    attempt: int
    worker_id: str
    cwd: str
    home: str
    deadline_boottime: float
    env: Mapping[str, str] = field(default_factory=dict)
    session_ref: str | None = None
    fresh_because: str | None = None
    own_cwd: bool = False
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One run's input. `command`: it may be a command of the program itself; else a text that the program would take
    for one (a slash before a word) is refused. `timeout`: for this attempt, None = none. `deadline_in`: what is left of
    the run's deadline. `idle`: how long there may be no progress; None: as the profile says. `ladder`: graces used for
    a cancel; a time-out kills at once. `env`: what is the run's own and not the session's (its key, the API's
    address). `one_line`: programs that take one line at a time get a blank for the line end in it. `goes_on`: another
    text follows in the same attempt, so its recording stays open while the agent is warm. `delivered`: told once, in
    the slot thread, that the program was seen to take the text, or that it was typed and nothing is known; must not
    block."""

    run_id: str
    attempt: int
    input: str
    command: bool = False
    timeout: timedelta | None = None
    deadline_in: timedelta | None = None
    idle: timedelta | None = None
    ladder: KillLadder = KillLadder()
    env: Mapping[str, str] = field(default_factory=dict)
    one_line: bool = False
    goes_on: bool = False
    delivered: Callable[[Outcome], None] = lambda outcome: None


class TurnControl(Protocol):
    """The caller's hand on a running turn. Called from the slot thread only."""

    def cancel_requested(self) -> bool:
        """Whether the run is to be cancelled. Asked at least four times a second; must be cheap (an Event)."""

    def kill_after(self) -> timedelta | None:
        """How long after the cancel the agent is to be killed, should the ladder take longer; None: as the ladder
        says. As cheap and as often."""

    def overdue(self) -> TimeoutReason | None:
        """A limit that others watch (a step's, a model call's) has passed: end the turn. As cheap and as often."""

    def idle_for(self, seen: timedelta) -> timedelta | None:
        """The terminal has shown no progress for `seen`: how long nothing else was heard from the run either, at most
        `seen`. None: that is not known yet, ask again."""

    def answer(self, question: Question) -> str | None:
        """What a policy says to a question that the program asks; None: it is for a person, the turn waits. Must be
        cheap. Asked once per question that stands, at most a hundred times a turn."""

    def on_output(self, text: str) -> None:
        """Progress: new text of the answer, cleaned, in order, at most four calls a second. Must not block."""


class TurnStatus(StrEnum):
    """Terminal statuses of a run as its agent sees them, and `waiting`: it asks somebody, the turn is not over."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The outcome of a turn.

    `output`: the answer as text, at most MAX_RESULT_BYTES in UTF-8, cut in the middle with a marker; the whole
    (bounded by the recording's cap) lies under `output_blob` then. `exit_code`: of the command or program, -N for
    signal N. `error_code`: stable name (`exit_nonzero`, `agent_exited`, `agent_raised`, `input_rejected`,
    `agent_not_reading`, `host_lost`, `agent_unkillable`, ...). `host_lost` is no fault of the run: its outcome is a
    matter of the recovery policy. `keep_warm`: the agent lives, is idle and may be parked for the session's next run.
    `tree_empty`: the tree was verified empty (always False while `keep_warm`), and then nothing of the agent is left
    to close; False and not warm → call `close`.
    `recording`: blob key of this attempt's asciicast. `dropped_bytes`: output that no consumer saw in time (event
    `output_truncated`). `question`: of a `waiting` turn, and only of that; the agent lives, its recording stays open,
    and everything else is empty: go on with `resume`, or `close`. `delivery`: whether the program was seen to take the
    input; None where that is not looked at. `output_cut`: its screen did not show
    the beginning of the answer any more; a line of the output says so, and the recording has what was drawn.
    """

    status: TurnStatus
    output: str = ""
    output_blob: str | None = None
    exit_code: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    keep_warm: bool = False
    tree_empty: bool = False
    recording: str | None = None
    dropped_bytes: int = 0
    session_ref: str | None = None
    question: Question | None = None
    delivery: Outcome | None = None
    output_cut: bool = False


class Agent(Protocol):
    """One opened agent. Used by one thread at a time; `alive`, `asks`, `close` may be called by another."""

    @property
    def agent_id(self) -> str: ...

    @property
    def warm(self) -> bool:
        """Whether it lives, is idle and may be kept parked."""

    @property
    def opening(self) -> Opening:
        """How it stands to the conversation: after `open`, and again after a turn, which may have shown more."""

    def bind(self, *, run_id: str, attempt: int) -> None:
        """A warm agent gets its next run: a recording of its own begins. `open` has bound the first one."""

    def turn(self, request: TurnRequest, control: TurnControl) -> TurnResult:
        """Give the input, wait for the answer. Everything the agent does wrong is a result, not an exception.

        Raises LeaseError `fenced` when the deadman killed it (deadline or late rule): write nothing, the session may
        be somebody else's.
        """

    def finish(self) -> str | None:
        """No further text follows in this attempt, although the last one said so (`goes_on`): its recording's key."""

    def resume(self, request: TurnRequest, answer: str | None, control: TurnControl) -> TurnResult:
        """Go on with the turn that came back as `waiting`, in any slot thread. The result is that of the same turn;
        it may be `waiting` again.

        `request`: the same run and attempt with what is left of its limits; its input is not given again. `answer`: the
        key or the words of a choice, or any text where the question takes that; None: only look on, because the turn is
        to be cancelled or somebody has answered at the terminal.

        Raises InvalidRequest `answer_unfit` when it is no answer to the question (the hint lists the choices): nothing
        was typed, the turn waits on. Conflict `not_waiting` when no turn of it waits. LeaseError as `turn`.
        """

    def asks(self) -> bool:
        """Whether the question of a `waiting` turn still stands, as far as its terminal says: somebody may have
        answered there. From any thread while it waits; cheap while nothing changes."""

    def say(self, text: str, timeout: timedelta, *, asked_for: bool = False) -> Delivery:
        """Say a text into the turn that runs, from another thread than the slot's: once, or not at all. `asked_for`:
        the run waits for it, so it also goes to agents that are not spoken to while they work.

        Waits at most `timeout` for a turn that listens, and as long again for the terminal to show the text.
        """

    def alive(self) -> bool:
        """Whether the root process lives."""

    def close(self, grace: timedelta) -> bool:
        """End the agent: politely within `grace`, then the whole tree. True when it was verified empty. Repeatable."""


class AgentFactory(Protocol):
    """Opens agents by profile."""

    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles it can open."""

    def open(self, spec: AgentSpec) -> Agent:
        """Start the program and wait until it is ready. Whatever fails, no tree is left behind.

        Raises RequestError `unknown_agent`; AgentError `program_not_found`, `spawn_failed`, `spawn_too_large`,
        `agent_not_ready`, `deadline_passed`, `resume_refused` (the program does not go on: open it again with
        `fresh_because`), `agent_unkillable` (the failed opening's tree could not be emptied);
        Unavailable `host_lost`; LeaseError `fenced`.
        """
