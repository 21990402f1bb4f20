"""The recovery matrix: strategy × where the run was × attempts left × cancel, with Redis and with the embedded default,
told at once and lost while recovery spoke to it. What must come of each is written out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId
from oah.core.model.lane import Lane
from oah.core.model.run import ReadyClass, RunStatus
from oah.core.model.session import Place
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.core.policy.recovery import Strategy
from oah.ports.store import Accepted, NewRun, SubmitLimits
from oah.services import submit
from oah.services.cancel import cancel
from tests.model.world import LEASE, SECOND, World
from tests.support.worlds import MakeWorld

MOST = 3
"""Of each run; "spent" ones have that many recoveries behind them."""

# was: what the run was doing when its worker died. claimed: its session was claimed, nothing was started. none: it had
# ended, its agent was kept warm. "-" under attempts: either way the same.
MATRIX = """
strategy        | was          | attempts | cancel | ends      | error       | state       | reason                              | events                  | place
fail            | running      | -        | no     | failed    | worker_lost | failed      | worker_lost                         | failed                  | interactive
fail            | running      | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
fail            | waiting_tool | -        | no     | failed    | worker_lost | failed      | worker_lost                         | failed                  | interactive
fail            | waiting_tool | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
fail            | claimed      | left     | no     | queued    | -           | -           | -                                   | -                       | interactive
fail            | claimed      | spent    | no     | queued    | -           | -           | -                                   | -                       | suspect
fail            | claimed      | -        | yes    | cancelled | -           | -           | -                                   | -                       | interactive
fail            | none         | -        | no     | completed | -           | -           | -                                   | -                       | interactive
fail            | none         | -        | yes    | completed | -           | -           | -                                   | -                       | interactive
requeue_running | running      | left     | no     | queued    | -           | requeued    | worker_lost                         | recovered queued        | suspect
requeue_running | running      | spent    | no     | failed    | worker_lost | quarantined | max_attempts_exhausted              | quarantined failed      | interactive
requeue_running | running      | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
requeue_running | waiting_tool | -        | no     | failed    | worker_lost | quarantined | waiting_tool_manual_resume_required | quarantined failed      | interactive
requeue_running | waiting_tool | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
requeue_running | claimed      | left     | no     | queued    | -           | -           | -                                   | -                       | interactive
requeue_running | claimed      | spent    | no     | queued    | -           | -           | -                                   | -                       | suspect
requeue_running | claimed      | -        | yes    | cancelled | -           | -           | -                                   | -                       | interactive
requeue_running | none         | -        | no     | completed | -           | -           | -                                   | -                       | interactive
requeue_running | none         | -        | yes    | completed | -           | -           | -                                   | -                       | interactive
requeue_all     | running      | left     | no     | queued    | -           | requeued    | worker_lost                         | recovered queued        | suspect
requeue_all     | running      | spent    | no     | failed    | worker_lost | quarantined | max_attempts_exhausted              | quarantined failed      | interactive
requeue_all     | running      | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
requeue_all     | waiting_tool | left     | no     | queued    | -           | requeued    | worker_lost                         | recovered queued        | suspect
requeue_all     | waiting_tool | spent    | no     | failed    | worker_lost | quarantined | max_attempts_exhausted              | quarantined failed      | interactive
requeue_all     | waiting_tool | -        | yes    | cancelled | -           | -           | -                                   | cancelled               | interactive
requeue_all     | claimed      | left     | no     | queued    | -           | -           | -                                   | -                       | interactive
requeue_all     | claimed      | spent    | no     | queued    | -           | -           | -                                   | -                       | suspect
requeue_all     | claimed      | -        | yes    | cancelled | -           | -           | -                                   | -                       | interactive
requeue_all     | none         | -        | no     | completed | -           | -           | -                                   | -                       | interactive
requeue_all     | none         | -        | yes    | completed | -           | -           | -                                   | -                       | interactive
"""  # noqa: E501


@dataclass(frozen=True)
class Cell:
    """A run of the matrix, and the one behind it."""

    strategy: Strategy
    was: str
    spent: bool
    cancelled: bool

    @property
    def session(self) -> SessionId:
        return SessionId(f"{self.strategy}.{self.was}.{self.spent}.{self.cancelled}")

    @property
    def run(self) -> RunId:
        return RunId(f"run.{self.session}")

    @property
    def behind(self) -> RunId:
        return RunId(f"behind.{self.session}")


Seen = dict[str, str]
CELLS = [
    Cell(*each)
    for each in product(Strategy, ("running", "waiting_tool", "claimed", "none"), (False, True), (False, True))
]


def expected() -> dict[Cell, Seen]:
    """The table, a row for each cell."""
    head, *lines = [[part.strip() for part in line.split("|")] for line in MATRIX.strip().splitlines()]
    found: dict[Cell, Seen] = {}
    for line in lines:
        row = dict(zip(head, line, strict=True))
        for spent in (False, True):
            if row["attempts"] in ("-", "spent" if spent else "left"):
                cell = Cell(Strategy(row["strategy"]), row["was"], spent, row["cancel"] == "yes")
                assert cell not in found, cell
                found[cell] = {name: row[name] for name in head[4:]}
    return found


def test_the_table_is_whole() -> None:
    assert set(expected()) == set(CELLS)


def _open(world: World, cells: list[Cell]) -> None:
    """Sessions with a run each; of the spent ones recovery has done what it may."""
    for cell in cells:
        world.open_session(cell.session)
        _submit(world, cell, cell.run)
        if cell.spent:
            world.sql.execute(f"UPDATE runs SET recovery_attempts = {MOST} WHERE id = '{cell.run}'")


def _submit(world: World, cell: Cell, run: RunId) -> None:
    new = NewRun(
        run, DEFAULT_WORKSPACE, cell.session, "work", recovery_strategy=cell.strategy, recovery_max_attempts=MOST
    )
    [accepted] = submit.commit(world.store, [new], SubmitLimits())
    assert isinstance(accepted, Accepted)
    world.accepted[run] = cell.session
    submit.hear(world.broker, world.store, world.store.current_epoch(), [accepted])


def _lose(world: World) -> dict[Cell, int]:
    """All is as the table says, and the worker dies. The last event of each session."""
    worker = world.workers["w1"]
    started = [cell for cell in CELLS if cell.was != "claimed"]
    _open(world, started)
    worker.claim(want=len(started))
    worker.start()
    for cell in started:
        if cell.was == "waiting_tool":
            world.sql.execute(f"UPDATE runs SET status = 'waiting_tool' WHERE id = '{cell.run}'")
        if cell.was == "none":
            worker.settle(cell.session, park=True)
    claimed = [cell for cell in CELLS if cell.was == "claimed"]
    _open(world, claimed)
    worker.claim(want=len(claimed))
    assert len(worker.entries) == len(CELLS)
    for cell in CELLS:
        if cell.cancelled:
            cancel(world.store, world.broker, world.store.current_epoch(), cell.run, None, by="somebody")
        _submit(world, cell, cell.behind)
    worker.entries.clear()
    return {cell: world.store.session(cell.session, None).event_seq for cell in CELLS}


def _seen(world: World, cell: Cell, since: int) -> Seen:
    store = world.store
    run = store.run(cell.run, None)
    events = [e for e in store.events(cell.session, after=since, limit=100) if e.type.startswith("run.")]
    lease = world.broker.leases(world.leaders[0].epochs.refresh(), [cell.session])[0]
    if run.recovery_state is not None and run.recovery is not None:
        # (the strategy that was applied is the run's own, not the deployment's)
        assert run.recovery["strategy"] == cell.strategy
        assert run.recovery["policy_from"] == {"strategy": "run", "max_attempts": "run"}
        assert run.recovery["attempts"] == run.recovery_attempts == (MOST + 1 if cell.spent else 1)
        assert run.recovery["history"][-1]["worker"].startswith("w1.")
    return {
        "ends": run.status,
        "error": run.error.code if run.error is not None else "-",
        "state": run.recovery_state or "-",
        "reason": (run.recovery or {}).get("reason") or "-",
        "events": " ".join(event.type.removeprefix("run.") for event in events) or "-",
        "place": lease.ready_class if lease.place is Place.READY and lease.ready_class else lease.place,
    }


def _check_rows(world: World, cell: Cell) -> None:
    """What belongs to each end, besides the columns of the table."""
    store = world.store
    run, queued = store.run(cell.run, None), store.session(cell.session, None).queued_count
    assert queued == (2 if run.status is RunStatus.QUEUED else 1), cell
    assert (run.worker_id, run.claim_token, run.heartbeat_at) == (None, None, None), cell
    steps = [(step.kind, step.name) for step in store.steps(cell.run)]
    if run.status is RunStatus.QUEUED:
        untouched = (run.started_at, run.ended_at, run.error, run.cancel_requested_at, run.cancel_requested_by)
        assert untouched == (None,) * 5, cell
    assert steps == ([("system", "run.requeued")] if run.recovery_state == "requeued" else []), cell
    outcomes = [(attempt.outcome, attempt.ended_at is not None) for attempt in store.attempts(cell.run)]
    if cell.was == "claimed":
        assert outcomes == [], cell
    else:
        assert outcomes == [("completed" if cell.was == "none" else "worker_lost", True)], cell


def _work_off(world: World) -> None:
    """Another worker takes what is left, in order."""
    worker = world.workers["w2"]
    while True:
        worker.claim(want=1_000)
        worker.start()
        if not worker.entries:
            return
        for session in list(worker.entries):
            worker.settle(session)


@pytest.mark.parametrize("redis_lost", [False, True], ids=["told", "redis lost meanwhile"])
def test_the_matrix(make_world: MakeWorld, *, redis_lost: bool) -> None:
    world = make_world(strategy=Strategy.FAIL, max_attempts=0, sessions=0)
    since = _lose(world)
    world.advance(LEASE / SECOND + 0.1)
    if redis_lost:
        world.leaders[0].broker.fails.add("recover")
        world.lead(0, "audit")
        decided = [cell for cell in CELLS if cell.was in ("running", "waiting_tool")]
        after = {cell: _seen(world, cell, since[cell]) for cell in decided}
        assert {seen.pop("place") for seen in after.values()} == {Place.LEASED}, "nobody has told the broker"
        wanted = expected()
        assert after == {cell: {k: v for k, v in wanted[cell].items() if k != "place"} for cell in decided}
        world.lead(1, "sweep")
    else:
        world.lead(0, "sweep")
    assert {cell: _seen(world, cell, since[cell]) for cell in CELLS} == expected()
    for cell in CELLS:
        _check_rows(world, cell)
    world.check()
    _work_off(world)
    for cell in CELLS:
        ended, behind = world.store.run(cell.run, None), world.store.run(cell.behind, None)
        assert behind.status is RunStatus.COMPLETED, "the session's next run is dispatched"
        assert ended.status.terminal, cell
        if expected()[cell]["ends"] == "queued":
            assert ended.status is RunStatus.COMPLETED, cell
            assert ended.ended_at is not None and behind.started_at is not None
            assert ended.ended_at <= behind.started_at, "it kept its place"


def test_what_was_recovered_is_told_as_events_with_the_facts(make_world: MakeWorld) -> None:
    world = make_world(strategy=Strategy.REQUEUE_RUNNING, max_attempts=2)
    run = world.submit(world.sessions[0]).run
    world.workers["w1"].claim()
    world.workers["w1"].start()
    lost = world.workers["w1"].id
    world.kill("w1", known_dead=True)
    told = [e for e in world.store.events(run.session_id, after=0, limit=100) if e.type == EventType.RUN_RECOVERED]
    [event] = told
    by = world.workers["w1"].id
    facts = {"strategy": "requeue_running", "attempts": 1, "max_attempts": 2, "worker_id": lost, "by": by}
    assert dict(event.data) == {"reason": "worker_restarted", **facts}


def test_a_profile_speaks_where_it_is_known_and_leaves_its_runs_to_their_lane_where_not(make_world: MakeWorld) -> None:
    """B18: pools with different profiles; whoever judges knows only some of them."""
    world = make_world(strategy=Strategy.REQUEUE_RUNNING, max_attempts=3, sessions=0)
    known, unknown = SessionId("known"), SessionId("unknown")
    world.open_session(known, Lane("pool-a", "shell"))
    world.open_session(unknown, Lane("pool-b", "exotic"))
    runs = {session: world.submit(session).run for session in (known, unknown)}
    world.workers["w1"].lanes = world.workers["w2"].lanes = (Lane("pool-a", "shell"), Lane("pool-b", "exotic"))
    world.workers["w1"].claim()
    world.workers["w1"].start()
    world.profiles["shell"] = Strategy.FAIL
    world.kill("w1", known_dead=True)
    told = {session: world.store.run(run.id, None) for session, run in runs.items()}
    assert told[known].status is RunStatus.FAILED
    assert told[known].recovery is not None and told[known].recovery["policy_from"]["strategy"] == "profile"
    assert told[unknown].status is RunStatus.QUEUED, "not failed for want of knowledge"
    assert told[unknown].recovery is not None and told[unknown].recovery["policy_from"]["strategy"] == "deployment"
    world.workers["w2"].lanes = (Lane("pool-a", "shell"),)
    world.workers["w2"].claim()
    assert world.workers["w2"].entries == {}, "a pool that does not know the profile leaves its run alone"
    world.workers["w2"].lanes = (Lane("pool-b", "exotic"),)
    world.workers["w2"].claim()
    world.workers["w2"].start()
    assert world.store.run(runs[unknown].id, None).status is RunStatus.RUNNING


def test_so_often_and_no_oftener(make_world: MakeWorld) -> None:
    """B18's policy matrix: each strategy with one, two and three attempts; the class it waits in meanwhile."""
    world = make_world(sessions=0)
    runs: dict[RunId, tuple[Strategy, int]] = {}
    for strategy, most in product(Strategy, (1, 2, 3)):
        session = SessionId(f"{strategy}.{most}")
        world.open_session(session)
        run = RunId(f"run.{session}")
        runs[run] = (strategy, most)
        new = NewRun(run, DEFAULT_WORKSPACE, session, "x", recovery_strategy=strategy, recovery_max_attempts=most)
        submit.hear(
            world.broker,
            world.store,
            world.store.current_epoch(),
            [one for one in submit.commit(world.store, [new], SubmitLimits()) if isinstance(one, Accepted)],
        )
    while not all(world.store.run(run, None).status.terminal for run in runs):
        world.workers["w1"].claim(want=100)  # of suspects one, however many slots are free
        world.workers["w1"].start()
        world.kill("w1", known_dead=True)
        for lease in world.broker.leases(world.leaders[0].epochs.refresh(), [SessionId(r[4:]) for r in runs]):
            assert (lease.place, lease.ready_class) in ((Place.READY, ReadyClass.SUSPECT), (Place.IDLE, None))
    for name, (strategy, most) in runs.items():
        ended = world.store.run(name, None)
        assert ended.attempt == (1 if strategy is Strategy.FAIL else most + 1)
        assert ended.recovery_state == ("failed" if strategy is Strategy.FAIL else "quarantined")
