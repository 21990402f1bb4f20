"""What will happen, made of a seed: harms with their times, and what users ask for meanwhile.

Pure: the same seed and length give the same plan, on any machine. What is harmed is kept apart by its resource, so that
nothing happens to it again before it had time to recover from the last: a worker and its PTY host are one resource,
because both at once is a stated residual risk of the product and no fault of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

LEASE = 6.0
WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
CONTROLLERS = ("controller", "controller-2")
POOLS = {"worker-1": "default", "worker-2": "default", "worker-3": "other", "worker-4": "other"}
NEAR = "near"
"""The way of ``worker-1`` to the stores."""
FAR = "far"
"""The way of everybody else."""
LONGEST_HARM = 2 * LEASE


class Harm(StrEnum):
    """What can be done to a system."""

    KILL = "kill"
    """SIGKILL; started again ``seconds`` later."""
    END = "end"
    """SIGTERM (a worker drains); started again ``seconds`` after it is gone."""
    STOP = "stop"
    """SIGSTOP for so long."""
    KILL_HOST = "kill_host"
    STOP_HOST = "stop_host"
    REDIS_KEEPS = "redis_keeps"
    """Killed right after a snapshot, back after ``seconds`` with everything."""
    REDIS_EMPTY = "redis_empty"
    """Killed, back with nothing."""
    REDIS_OLD = "redis_old"
    """A snapshot; ``seconds`` later killed, back at once with what it had then."""
    REDIS_STOP = "redis_stop"
    REDIS_CLIENTS = "redis_clients"
    """CLIENT KILL TYPE normal, three times in a row."""
    REDIS_FLUSH = "redis_flush"
    REDIS_CLOCK = "redis_clock"
    """Its wall clock jumps by ``amount`` seconds and stays there."""
    SQL_FAST = "sql_fast"
    """PostgreSQL is asked to end at once (SIGINT), back after ``seconds``."""
    SQL_CRASH = "sql_crash"
    """SIGQUIT: no last words, recovery from the log."""
    SQL_CLIENTS = "sql_clients"
    """Every session of it is terminated."""
    SQL_CLOCK = "sql_clock"
    DELAY = "delay"
    """What goes this way (``near.redis``, …) arrives ``amount`` seconds later."""
    LOSE = "lose"
    """Every ``amount``-th answer on this way is lost."""
    HOLE = "hole"
    """Nothing passes, no connection breaks."""
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Action:
    """One harm: begins at ``at``, undone ``seconds`` later. Times are seconds from the beginning."""

    at: float
    harm: Harm
    target: str
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at:6.2f} {self.harm} {self.target}{amount} for {self.seconds:.2f}"


@dataclass(frozen=True, slots=True)
class Wish:
    """One submit. ``number``: its identity in the plan. ``parent``: an earlier wish. ``fields``: what the body says
    besides. ``may``: how else than ``completed`` it may rightly end."""

    number: int
    at: float
    session: int
    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    parent: int | None = None
    cancel_after: float | None = None
    may: frozenset[str] = frozenset()
    ordered: bool = True

    @property
    def on_busy(self) -> str:
        """As the body says it."""
        return str(self.fields.get("on_busy", "enqueue"))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session to be made. ``pauses``: (from, to) moments."""

    agent: str
    pool: str
    pauses: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole story."""

    seed: int
    seconds: float
    actions: tuple[Action, ...]
    conversations: tuple[Conversation, ...]
    wishes: tuple[Wish, ...]

    def __str__(self) -> str:
        head = f"seed {self.seed}, {self.seconds:g} s, {len(self.conversations)} sessions, {len(self.wishes)} runs"
        return "\n".join([head, *map(str, self.actions)])


def make_plan(seed: int, seconds: float) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"{seed}/{seconds:g}")
    conversations = tuple(_conversations(chance, seconds))
    return Plan(
        seed, seconds, tuple(_actions(chance, seconds)), conversations, tuple(_wishes(chance, seconds, conversations))
    )


# --- harms ---------------------------------------------------------------------------------------------------------

_PROCESSES = (*WORKERS, *CONTROLLERS, "api")
_WAYS = (f"{NEAR}.redis", f"{NEAR}.sql", f"{FAR}.redis", f"{FAR}.sql")
_WEIGHTS = {
    Harm.KILL: 8,
    Harm.END: 4,
    Harm.STOP: 7,
    Harm.KILL_HOST: 4,
    Harm.STOP_HOST: 2,
    Harm.REDIS_KEEPS: 1,
    Harm.REDIS_EMPTY: 2,
    Harm.REDIS_OLD: 2,
    Harm.REDIS_STOP: 2,
    Harm.REDIS_CLIENTS: 2,
    Harm.REDIS_FLUSH: 2,
    Harm.REDIS_CLOCK: 1,
    Harm.SQL_FAST: 1,
    Harm.SQL_CRASH: 2,
    Harm.SQL_CLIENTS: 2,
    Harm.SQL_CLOCK: 1,
    Harm.DELAY: 3,
    Harm.LOSE: 4,
    Harm.HOLE: 6,
    Harm.CUT: 2,
}
_REST = {"redis": 2.0, "postgres": 2.0, "api": 3.0, "controller": 3.0, "worker": 5.0}
"""Seconds of peace after a harm, by the beginning of the resource's name; else 1."""


def _actions(chance: random.Random, seconds: float) -> list[Action]:
    """Harms on top of each other, each resource one at a time."""
    free: dict[str, float] = {}
    found = []
    at = chance.uniform(1.0, 2.0)
    while at < seconds:
        action = _action(chance, at, _length(chance, seconds - at))
        resource = _resource(action)
        if free.get(resource, 0.0) <= at:
            rest = next((rest for name, rest in _REST.items() if resource.startswith(name)), 1.0)
            free[resource] = at + action.seconds + rest
            found.append(action)
        at += chance.expovariate(1 / 1.2)
    return found


def _length(chance: random.Random, left: float) -> float:
    """Mostly shorter than a lease, sometimes longer."""
    long = chance.random() < 0.35
    return min(chance.uniform(1.1, 2.0) * LEASE if long else chance.uniform(0.05, 0.8) * LEASE, max(left, 0.5))


def _resource(action: Action) -> str:
    if action.harm.startswith("redis"):
        return "redis"
    return "postgres" if action.harm.startswith("sql") else action.target


def _action(chance: random.Random, at: float, length: float) -> Action:
    harm = chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
    short = min(length, chance.uniform(0.2, 4.0))
    match harm:
        case Harm.KILL | Harm.END | Harm.STOP:
            target = chance.choices(_PROCESSES, weights=[3] * len(WORKERS) + [2, 2, 3])[0]
            return Action(at, harm, target, short if target == "api" or harm is not Harm.STOP else length)
        case Harm.KILL_HOST | Harm.STOP_HOST:
            return Action(at, harm, chance.choice(WORKERS), length if harm is Harm.STOP_HOST else 0.0)
        case Harm.REDIS_CLOCK | Harm.SQL_CLOCK:
            amount = chance.choice((-1, 1)) * chance.choice((2, 10, 60, 3600))
            return Action(at, harm, "clock", 0.0, amount)
        case Harm.DELAY:
            return Action(at, harm, chance.choice(_WAYS), length, round(chance.uniform(0.01, 0.08), 3))
        case Harm.LOSE:
            return Action(at, harm, chance.choice(_WAYS), length, chance.choice((5, 10, 20)))
        case Harm.HOLE | Harm.CUT:
            return Action(at, harm, chance.choice((*_WAYS, NEAR, NEAR, FAR)), length)
        case Harm.REDIS_OLD | Harm.REDIS_STOP:
            return Action(at, harm, "redis", length if harm is Harm.REDIS_STOP else short)
        case Harm.REDIS_CLIENTS | Harm.REDIS_FLUSH | Harm.SQL_CLIENTS:
            return Action(at, harm, "clients", 0.0)
        case _:
            return Action(at, harm, "server", short)


# --- what users ask for --------------------------------------------------------------------------------------------

SESSIONS_PER_POOL = (("ledger", 5), ("shell", 3))
RUNS_PER_SECOND = 3.5


def _conversations(chance: random.Random, seconds: float) -> list[Conversation]:
    found = []
    for pool in ("default", "other"):
        for agent, count in SESSIONS_PER_POOL:
            for _ in range(count):
                begin = chance.uniform(0, seconds)
                pauses = ((begin, begin + chance.uniform(1, 6)),) if chance.random() < 0.15 else ()
                found.append(Conversation(agent, pool, pauses))
    return found


def _wishes(chance: random.Random, seconds: float, conversations: tuple[Conversation, ...]) -> list[Wish]:
    at, found = 0.0, list[Wish]()
    while at < seconds:
        session = chance.randrange(len(conversations))
        found.append(_wish(chance, len(found), at, session, conversations[session].agent == "shell"))
        at += chance.expovariate(RUNS_PER_SECOND)
    return found


def _wish(chance: random.Random, number: int, at: float, session: int, shell: bool) -> Wish:
    """Mostly plain; each speciality for some."""
    text = f"{chance.choice((0.05, 0.2, 0.4, 0.8, 0.8, 2, 4, 8, 10)) * chance.uniform(0.8, 1.2):.3f}"
    fields: dict[str, Any] = {"class": chance.choice(("interactive", "interactive", "subagent", "background"))}
    may, ordered, parent, cancel_after = set[str](), True, None, None
    if not shell and chance.random() < 0.25:  # a warm shell rightly keeps what it has started
        text += " grandchild"
    if chance.random() < 0.1:
        fields["delay_seconds"] = round(chance.uniform(0.3, 4), 2)
    if number and chance.random() < 0.1:
        parent = chance.randrange(number)
        may.add("cancelled")
    if chance.random() < 0.12:
        cancel_after = chance.choice((0.0, 0.005, 0.02, 0.5, 2.0)) * chance.uniform(0.2, 1.0)
        may.add("cancelled")
    if not shell and chance.random() < 0.12:
        text += f" fail={chance.choice((1, 2, 9))}"
        retries = chance.choice((0, 2, 2))
        fields |= {"max_retries": retries, "retry": {"initial_seconds": 0.3, "jitter": 0}}
        if retries and chance.random() < 0.5:
            fields["order"], ordered = "skip_failed", False
        may.add("failed")
    if chance.random() < 0.06:
        fields["recovery"] = {"strategy": chance.choice(("fail", "requeue_running")), "max_attempts": 1}
        may.add("failed")
    if chance.random() < 0.05:
        fields["timeout_seconds"] = 0.6
        may.add("timed_out")
    if chance.random() < 0.07:
        fields["on_busy"] = chance.choice(("interrupt", "interrupt", "reject"))
        fields.pop("delay_seconds", None)  # who wants it now cannot want it later
        ordered = ordered and fields["on_busy"] != "interrupt"
    return Wish(number, round(at, 3), session, text, fields, parent, cancel_after, frozenset(may), ordered)
