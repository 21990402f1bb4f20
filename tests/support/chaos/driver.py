"""One story: a seed makes a plan, the plan is played, everything is healed, and the judge looks at what is left."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from oah.errors import Unavailable
from oah.testing.ledger import Violation
from oah.testing.verdict import find_violations
from tests.support.chaos.facts import Witness, still_life
from tests.support.chaos.plan import Harm, Plan, make_plan
from tests.support.chaos.stage import Stage, open_stage
from tests.support.chaos.users import Told, Users
from tests.support.waiting import eventually

T = TypeVar("T")

QUIET_WITHIN = 150.0
"""Seconds from healing to quiet: a few leases, on a machine that has other things to do."""
ANSWERED_WITHIN = 90.0
NOT_REFUSED = {"session_busy"}


@dataclass
class Story:
    """How it went. Clean when ``violations`` is empty."""

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    summary: str = ""
    details: list[str] = field(default_factory=list)
    kept: Path | None = None

    def __str__(self) -> str:
        """For the message of a failure: what is wrong, the plan, what was done, and how to repeat it."""
        wrong = [f"{v.kind} {v.session} {v.detail}" for v in self.violations]
        again = f"again: make chaos SEED={self.plan.seed} SECONDS={self.plan.seconds:g}"
        kept = [f"kept in {self.kept}"] if self.kept else []
        return "\n".join([f"{len(wrong)} violations", *wrong[:40], *self.details, str(self.plan), *kept, again])


def play_story(seed: int, seconds: float, *, keep: Path | None = None) -> Story:
    """The story of a seed."""
    return play(make_plan(seed, seconds), keep=keep)


def play(plan: Plan, *, keep: Path | None = None, **settings: str) -> Story:
    """Play it; of a story with violations the logs are kept below ``keep``. ``settings``: for every process."""
    story = Story(plan)
    began = time.monotonic()
    with open_stage(**settings) as stage:
        try:
            _tell(stage, plan, story)
        except BaseException:
            story.violations.append(Violation("driver", "", f"the driver failed: {sys.exc_info()[1]!r}"))
            if not isinstance(sys.exc_info()[1], Exception):
                raise
        finally:
            if story.violations:
                _keep(stage, story, keep)
    if stage.fleet.stubborn:
        story.violations.append(Violation("fleet", "", f"had to be killed at the end: {stage.fleet.stubborn}"))
    story.summary += f", {time.monotonic() - began:.0f} s in all"
    return story


def _tell(stage: Stage, plan: Plan, story: Story) -> None:
    users = Users(plan, stage.fleet.url, stage.fleet.key, str(stage.ledger), stage.log)
    witness = Witness(stage)
    _harm(stage, plan, users)
    stage.heal()
    healed = time.monotonic()
    users.finish(within=ANSWERED_WITHIN)
    _patiently(lambda: stage.fleet.wait_workers(within=60) or True)
    for session in users.told.sessions:
        _patiently(lambda session=session: stage.fleet.client.resume_session(session))
    _end_skewed(stage, plan, witness)
    quiet = _becomes_quiet(witness, story)
    took = time.monotonic() - healed
    if quiet and _put_back(stage, witness):
        quiet = _becomes_quiet(witness, story)
    figures, silent = _patiently(lambda: still_life(witness, stage.fleet.client, stage.log)) if quiet else ({}, [])
    if quiet:
        _becomes_quiet(witness, story)
    users.told.cancels += [(run, {"result": "removed"}) for run in stage.skewed]
    facts = witness.facts(plan, users.told, figures, witness.residue() if quiet else [])
    mine = {row["id"] for row in facts.sessions} & set(users.told.sessions)
    story.violations += [v for v in find_violations(facts) if v.kind != "doubled" or v.session in mine]
    story.violations += _complaints(stage, users.told, silent)
    story.violations += _unheard(witness, users.told)
    statuses = Counter(row["status"] for row in facts.runs if row["session_id"] in mine)
    starts = Counter(row["reason"] for row in facts.attempts)
    story.summary = (
        f"seed {plan.seed}: {len(stage.actions) // 2} harms, {len(users.told.runs)} runs {dict(statuses)},"
        f" starts {dict(starts)}, refused {dict(Counter(users.told.refused.values()))},"
        f" quiet {took:.0f} s after healing"
    )
    for session in sorted({violation.session for violation in story.violations if violation.session})[:4]:
        story.details.append(witness.story(session))


def _harm(stage: Stage, plan: Plan, users: Users) -> None:
    """Play the actions at their times, and wait for the last of them."""
    healing = threading.Event()
    stage.begin()
    users.start()
    threads = []
    for action in plan.actions:
        while (left := action.at - stage.now) > 0:
            healing.wait(min(left, 0.2))
            stage.supervise()
        threads.append(threading.Thread(target=stage.harm, args=(action, healing), name=str(action), daemon=True))
        threads[-1].start()
    while stage.now < plan.seconds:
        healing.wait(0.2)
        stage.supervise()
    healing.set()
    for thread in threads:
        thread.join(90)
        if thread.is_alive():
            stage.faults.append(f"never over: {thread.name}")


def _end_skewed(stage: Stage, plan: Plan, witness: Witness) -> None:
    """What was delayed by seconds under a database's clock that was an hour ahead is due in an hour, by that clock, and
    says so: explained. It is cancelled, so that quiet can come."""
    if not any(action.harm is Harm.SQL_CLOCK for action in plan.actions):
        return
    for row in witness.sql(
        "SELECT id FROM runs WHERE status = 'queued' AND due_at > clock_timestamp() + interval '8 seconds'"
    ):
        reason = str(_patiently(lambda row=row: stage.fleet.client.run(row["id"])).get("wait_reason"))
        if "delayed" in reason:
            stage.log(f"cancelled {row['id']}: {reason}")
            _patiently(lambda row=row: stage.fleet.client.cancel(row["id"]))
            stage.skewed.add(str(row["id"]))


def _put_back(stage: Stage, witness: Witness) -> int:
    """An operator queues some of what failed again; how many."""
    failed = witness.sql(
        "SELECT id FROM runs WHERE status = 'failed' ORDER BY error_code = 'worker_lost' DESC, id LIMIT 6"
    )
    for row in failed:
        _patiently(lambda row=row: stage.fleet.client.requeue(row["id"]))
    stage.log(f"queued again by hand: {len(failed)}")
    return len(failed)


def _patiently(call: Callable[[], T]) -> T:
    """An answer that a connection from before a restart costs is asked for again, as an operator would."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(call())
        except Unavailable:
            return False
        return True

    eventually(answered, within=ANSWERED_WITHIN, every=0.2, what="the API has its stores again")
    return answers[0]


def _unheard(witness: Witness, told: Told) -> list[Violation]:
    """Streams bring every event once, in order, over whatever happened."""
    found = []
    for session, heard in told.heard.items():
        [row] = witness.sql("SELECT event_seq FROM sessions WHERE id = %s", session)
        wanted = list(range(1, row["event_seq"] + 1))
        with suppress(AssertionError):
            eventually(lambda heard=heard, wanted=wanted: list(heard) == wanted, within=60, every=0.2)
        if list(heard) != wanted:
            detail = (
                f"of {len(wanted)} events {len(set(heard))} were heard, {len(heard) - len(set(heard))} again: {heard}"
            )
            found.append(Violation("stream", session, detail))
    return found


def _becomes_quiet(witness: Witness, story: Story) -> bool:
    try:
        witness.wait_quiet(within=QUIET_WITHIN)
    except AssertionError:
        for row in witness.open_runs()[:20]:
            story.violations.append(Violation("unquiet", row["session_id"], f"{row['id']} is {row['status']}"))
        for row in witness.sql("SELECT * FROM session_owners"):
            story.violations.append(Violation("unquiet", row["session_id"], f"owned by {row['worker_id']}"))
        return False
    return True


def _complaints(stage: Stage, told: Told, silent: list[str]) -> list[Violation]:
    """What is wrong besides the facts."""
    found = [Violation("process", "", fault) for fault in stage.faults]
    found += [Violation("answer", "", error) for error in told.errors]
    found += [Violation("silent", "", f"{run} waits and does not say why") for run in silent]
    found += [Violation("unanswered", "", f"wish {number} was never answered") for number in told.unanswered]
    refused = {number: code for number, code in told.refused.items() if code not in NOT_REFUSED}
    return found + [Violation("refused", "", f"wish {number} was refused: {code}") for number, code in refused.items()]


def _keep(stage: Stage, story: Story, keep: Path | None) -> None:
    with suppress(Exception):
        if keep is not None:
            story.kept = keep / f"seed-{story.plan.seed}"
            stage.keep(story.kept)
            (story.kept / "story.txt").write_text(str(story) + "\n")
    story.details.append("--- what was done\n" + "\n".join(stage.actions))


def main(words: list[str]) -> int:
    """``FIRST_SEED SEEDS SECONDS KEEP``: that many seeds, one after the other; 1 when any was not clean."""
    first, count, seconds, keep = int(words[0]), int(words[1]), float(words[2]), Path(words[3])
    bad = []
    for seed in range(first, first + count):
        story = play_story(seed, seconds, keep=keep)
        print(f"{'FAILED' if story.violations else 'clean '} {story.summary}", flush=True)
        if story.violations:
            print(story, flush=True)
            bad.append(seed)
    print(f"{count - len(bad)} of {count} clean" + (f", not: {bad}" if bad else ""))
    return 1 if bad else 0
