"""``python -m oah.cli.demo``: the main job on this machine, with a worker killed while it works.

A private server, SQLite, an API, a controller and two workers start as processes; sessions of ``shell`` and
``python`` get some twenty runs; one worker is killed with SIGKILL while it drives a run of ours, which recovery gives
to the other. Exit 0 only if every run completed and the killed one really was recovered. The data directory is kept
and named, so that the recordings can be played.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import read_admin_key
from oah.cli.failures import Exit, OneLineErrors, complain
from oah.cli.fleet import Fleet, Plan, free_port
from oah.cli.story import Story
from oah.errors import Unavailable

if TYPE_CHECKING:
    from oah.client import Client, SubmitItem

LEASE_SECONDS = 6
"""The least that is allowed: recovery of a lost worker takes a lease and a bit."""
WORKERS = 2
SLOTS = 3
START_SECONDS = 45.0
FINISH_SECONDS = 90.0
POLL_SECONDS = 0.2
KILL_AFTER_SECONDS = 1.0

VICTIM_INPUT = "for i in $(seq 1 30); do echo working $i; sleep 0.2; done; echo survived"
_STEPS = "for i in 1 2 3; do echo step $i; sleep 0.3; done"
SHELL_INPUTS = ("pwd; uname -s", _STEPS, "echo $((1 + 2 + 3 + 4 + 5))")
# None needs what an earlier one left in the interpreter: the killed worker may have had this session too.
PYTHON_INPUTS = ("print('the answer is', 6 * 7)", "import time; time.sleep(0.5)", "print(sum(range(10**6)))")

Say = Callable[[str], None]
Json = Mapping[str, Any]


def demo_plan(data_dir: Path) -> Plan:
    """The system of the demo. Nothing of the caller's own OAH settings reaches it."""
    env = {
        "OAH_LEASE_SECONDS": str(LEASE_SECONDS),
        "OAH_DATABASE_URL": f"sqlite:///{data_dir / 'oah.db'}",
        "OAH_STALE_RUN_RECOVERY_STRATEGY": "requeue_running",
        "OAH_WORKER__DRAIN_GRACE_SECONDS": "5",
        "OAH_WORKER__PORT": "0",
        "OAH_CONTROLLER__PORT": "0",
    }
    return Plan(data_dir=data_dir, workers=WORKERS, slots=SLOTS, port=free_port(), clean=True, env=env)


class Log:
    """Lines of the children go to a file; the screen belongs to the board."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def __call__(self, name: str, line: str) -> None:
        """One line of a child."""
        with self._lock:
            self._file.write(f"{name} | {line}\n")
            self._file.flush()


def _wait(probe: Callable[[], bool], *, within: float, what: str) -> None:
    deadline = time.monotonic() + within
    while not probe():
        if time.monotonic() > deadline:
            raise Unavailable(f"not within {within:g} s: {what}")
        time.sleep(POLL_SECONDS)


def submit_all(client: Client, story: Story) -> None:
    """Four sessions of shell and two of python, and all their runs in one batch. The victim is first in its session."""
    batch: list[SubmitItem] = []
    for agent, inputs, sessions in (("shell", SHELL_INPUTS, 4), ("python", PYTHON_INPUTS, 2)):
        for number in range(1, sessions + 1):
            session = client.create_session(agent, title=f"{agent} {number}")["id"]
            texts = inputs if story.sessions else (VICTIM_INPUT, *inputs)
            story.sessions[session] = agent
            batch += [{"session_id": session, "input": text} for text in texts]
    accepted = client.submit_many(batch)
    refused = [item["error"] for item in accepted if "error" in item]
    if refused:
        raise Unavailable(f"{len(refused)} runs were refused: {refused[0]}")
    story.runs = [item["id"] for item in accepted]
    story.victim = story.runs[0]


def look(client: Client, story: Story) -> None:
    """Read all runs once."""
    for run in client.runs(limit=len(story.runs) + 1):
        if run["id"] in set(story.runs):
            story.seen[run["id"]] = run


def act(fleet: Fleet, client: Client, story: Story, say: Say) -> None:
    """Kill the worker once it works on the victim; start it again once the victim is in other hands."""
    victim = story.seen.get(story.victim)
    if victim is None:
        return
    if story.killed_worker is None:
        _kill(fleet, client, story, victim, say)
    elif story.recovered_after is None and victim["attempt"] > 1:
        story.recovered_after = time.monotonic() - story.killed_at
        say(f"recovered: attempt {victim['attempt']} of the run began {story.recovered_after:.1f} s after the kill")
    elif story.recovered_after is not None and not story.restarted:
        story.restarted = True
        fleet.start_one(story.killed_worker)
        say(f"{story.killed_worker} is started again")


def _kill(fleet: Fleet, client: Client, story: Story, victim: Json, say: Say) -> None:
    """A second after it was first seen running: then the kill hits work, not a start."""
    if victim["status"] != "running" or not victim.get("worker_id"):
        return
    if story.working_since is None:
        story.working_since = time.monotonic()
    if time.monotonic() - story.working_since < KILL_AFTER_SECONDS:
        return
    name = {worker["id"]: worker["name"] for worker in client.workers()}.get(victim["worker_id"])
    if name in fleet.worker_names:
        pid = fleet.kill(name)
        story.killed_at = time.monotonic()
        story.killed_worker, story.killed_id = name, victim["worker_id"]
        say(f"kill -9 {pid}: {name} dies while it drives {story.victim}")


def faults(client: Client, story: Story) -> list[str]:
    """What is not as it should be; empty when the demo succeeded."""
    wrong = [
        f"{run['id']} {run['status']} {(run.get('error') or {}).get('message', '')}".strip()
        for run in story.seen.values()
        if run["status"] != "completed"
    ]
    if story.killed_worker is None:
        return [*wrong, "no worker was killed: the run that was to be interrupted ended too soon"]
    attempts = client.attempts(story.victim)
    if len(attempts) < 2 or attempts[0]["worker_id"] != story.killed_id:
        wrong.append("the run of the killed worker was not recovered")
    elif attempts[-1]["worker_id"] == story.killed_id:
        wrong.append("the last attempt names the dead worker")
    if "survived" not in str(client.result(story.victim).get("output")):
        wrong.append("the recovered run did not give its answer")
    return wrong


def play(fleet: Fleet, story: Story, show: Callable[[Story, str | None], None]) -> list[str]:
    """The whole demo; returns what went wrong."""
    from oah.client import Client

    fleet.start()
    fleet.wait_ready(within=START_SECONDS)
    with Client(fleet.plan.url, read_admin_key(story.data_dir)) as client:
        _wait(lambda: len(client.workers()) == WORKERS, within=START_SECONDS, what="two workers report")
        show(story, f"ready: {fleet.plan.url}, {WORKERS} workers with {SLOTS} slots each")
        submit_all(client, story)
        show(story, f"submitted {len(story.runs)} runs to {len(story.sessions)} sessions")
        deadline = time.monotonic() + FINISH_SECONDS
        while not story.over:
            if time.monotonic() > deadline:
                look(client, story)
                return [*faults(client, story), f"not finished within {FINISH_SECONDS:g} s"]
            look(client, story)
            act(fleet, client, story, lambda text: show(story, text))
            show(story, None)
            time.sleep(POLL_SECONDS)
        return faults(client, story)


class Demo(OneLineErrors):
    """The command behind ``python -m oah.cli.demo``."""


@click.command(cls=Demo)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Kept; a new temporary one else.")
@click.pass_context
def demo(ctx: click.Context, /, *, data_dir: Path | None) -> None:
    """The main job on this machine: queues, terminals, a worker killed, its run recovered."""
    from oah.cli.board import Board, summary

    began = time.monotonic()
    directory = (data_dir or Path(tempfile.mkdtemp(prefix="oah-demo-"))).absolute()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    story = Story(directory)
    log_path = directory / "fleet.log"
    fleet = Fleet(demo_plan(directory), sink=Log(log_path))
    wrong = ["interrupted"]
    try:
        with Board(sys.stdout) as board:
            wrong = play(fleet, story, board.show)
    finally:
        fleet.stop(grace=8)
    for line in summary(story, took=time.monotonic() - began):
        click.echo(line)
    for line in wrong:
        complain(line, hint=f"the processes' lines are in {log_path}")
    ctx.exit(Exit.FAILED if wrong else Exit.DONE)


if __name__ == "__main__":
    demo.main(prog_name="python -m oah.cli.demo")
