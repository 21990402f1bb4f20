"""Queue and pools: figures that agree wherever they are asked for, and what an autoscaler reads."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, text

from oah.cli.main import oah
from oah.core.model.ids import SessionId, WorkspaceId
from oah.core.policy.quantiles import bucket
from oah.errors import Forbidden, NotFound, Unavailable
from oah.ports.audit import AuditFilter
from oah.ports.broker import WorkspaceLimit
from oah.ports.scaling import NewDecision, Outcome
from oah.services.measure import MeasureQueues
from oah.services.measure_pools import MeasurePools
from oah.services.place import Places
from oah.services.signals import PoolSignals
from tests.support.api import EPOCH, Deployment

HOUR = timedelta(hours=1)


def submit(apis: Deployment, agent: str, count: int, *, pool: str = "default", **more: Any) -> list[str]:
    """Sessions with a run each, of which the broker has heard from us alone."""
    apis.state.hearing.put = lambda accepted: None
    client = apis.client()
    made = [client.create_session(agent, pool=pool)["id"] for _ in range(count)]
    for session in made:
        client.submit(session, "1", **more)
    heard(apis, made)
    return made


def heard(apis: Deployment, sessions: list[str]) -> None:
    queued = apis.store.queued_sessions_of([SessionId(each) for each in sessions], EPOCH)
    Places(apis.store, apis.broker).put(EPOCH, queued)


def take(apis: Deployment, session: str) -> Any:
    """As a worker would: the claim, then the start. Only this session of its lane may be ready."""
    started = apis.start(session)
    apis.broker.cancel(EPOCH, [SessionId(session)])
    return started


def trusted(apis: Deployment) -> None:
    """The epoch has been open for longer than a lease."""
    object.__setattr__(apis.context, "lease", timedelta(0))


def measured(apis: Deployment) -> dict[str, float]:
    """What the leader would show, as a scrape has it: series → value."""
    context = apis.context
    signals = PoolSignals(apis.store, apis.broker, context.clock, trust=timedelta(0))
    MeasureQueues(apis.store, apis.broker, context.telemetry, HOUR, context.clock)()
    MeasurePools(context.telemetry, signals)()
    lines = re.findall(r"^(oah_[^ ]+) ([0-9.e+-]+)$", apis.client().metrics(), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def cli(apis: Deployment, *words: str) -> Any:
    env = {"OAH_API_URL": apis.url, "OAH_API_KEY": apis.secrets["admin"]}
    result = CliRunner().invoke(oah, [*words, "--json"], env=env)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sql(apis: Deployment, statement: str) -> dict[Any, int]:
    url = apis.store._inner._database.url
    engine = create_engine(str(url).replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        rows = connection.execute(text(statement)).all()
    engine.dispose()
    return {row[0] if len(row) == 2 else tuple(row[:-1]): int(row[-1]) for row in rows}


def ageless(document: Any) -> Any:
    """Without what grows while one looks."""
    if isinstance(document, list):
        return [ageless(each) for each in document]
    if isinstance(document, dict):
        return {name: ageless(value) for name, value in document.items() if not re.match("oldest", name)}
    return document


def busy_fleet(apis: Deployment) -> None:
    """Two pools, every class, runs that run, wait, are delayed, held, or kept out by a cap."""
    client = apis.client()
    ready = submit(apis, "shell", 5)
    submit(apis, "shell", 2, run_class="subagent")
    submit(apis, "python", 3, pool="gpu", run_class="background")
    for session in submit(apis, "shell", 2) + submit(apis, "python", 1, pool="gpu"):
        take(apis, session)
    client.submit(ready[0], "more")
    client.submit(ready[0], "later", delay=HOUR)
    held = submit(apis, "shell", 1)
    client.pause_session(held[0])
    waits = {"interactive": {bucket(0.1): 19, bucket(4): 1}, "subagent": {bucket(2): 1}}
    apis.report_worker(name="w1", slots=4, slots_max=8, busy=2, waits=waits, waits_now=waits)
    apis.report_worker(name="w2", slots=4, busy=1, pool="gpu", waits={"background": {bucket(30): 2}})
    apis.report_worker(name="w3", slots=4, busy=0, cordoned=True)


def test_figures_agree_wherever_they_are_asked_for(apis: Deployment) -> None:
    trusted(apis)
    busy_fleet(apis)
    queue, listed, shown = ageless(apis.client().queue()), ageless(apis.client().pools()), measured(apis)
    pools = {one["pool"]: one for one in listed}

    assert ageless(cli(apis, "queue", "stats")) == queue
    assert ageless(cli(apis, "pool", "list")["items"]) == queue["pools"] == listed

    by_status = sql(apis, "SELECT status, count(*) FROM runs GROUP BY status")
    assert {status: count for status, count in queue["runs"].items() if count} == by_status
    assert shown["oah_queued_runs"] == by_status["queued"] == 13
    assert shown['oah_active_runs{status="running"}'] == by_status["running"] == 3
    for series, name in (
        ("oah_ready_runs", "readyQueueDepth"),
        ("oah_locked_ready_sessions", "lockedReadySessionCount"),
        ("oah_stale_ready_sessions", "staleReadySessionCount"),
    ):
        assert shown[series] == queue[name]
    running = sql(
        apis,
        "SELECT s.pool, count(*) FROM runs r JOIN sessions s ON s.id = r.session_id WHERE r.status = 'running'"
        " GROUP BY s.pool",
    )
    eligible = sql(
        apis,
        "SELECT s.pool, r.class, count(DISTINCT r.session_id) FROM runs r JOIN sessions s ON s.id = r.session_id"
        " WHERE r.status = 'queued' AND NOT r.deferred AND s.held = 0"
        " AND NOT EXISTS (SELECT 1 FROM session_owners o WHERE o.session_id = s.id) GROUP BY s.pool, r.class",
    )
    for pool in ("default", "gpu"):
        ready = sum(count for (of, _), count in eligible.items() if of == pool)
        assert (pools[pool]["ready"], pools[pool]["running"]) == (ready, running[pool])
        assert pools[pool]["load"] == ready + running[pool] == apis.client().pool_metric(pool)["value"]
        for figure in ("load", "ready", "running", "waiting", "slots", "idle_slots", "workers"):
            assert shown[f'oah_pool_{figure}{{pool="{pool}"}}'] == pools[pool][figure], figure
    assert {(lane["lane"].split("/")[0], lane["class"]): lane["sessions"] for lane in queue["lanes"]} == eligible
    for lane in queue["lanes"]:
        assert shown[f'oah_ready_sessions{{class="{lane["class"]}",lane="{lane["lane"]}"}}'] == lane["sessions"]
    assert queue["uniqueReadySessionCount"] == sum(eligible.values())
    assert queue["heldSessionCount"] == sql(apis, "SELECT held, count(*) FROM sessions GROUP BY held")[1]
    assert (queue["globalSlotCapacity"], queue["globalBusySlots"], queue["availableIdleCapacity"]) == (16, 3, 9)
    assert sum(pool["idle_slots"] for pool in pools.values()) == queue["availableIdleCapacity"]
    for run_class, label in (("interactive", "0.95"), ("subagent", "0.5"), ("background", "0.5")):
        at = queue["queueWait"][run_class][f"p{int(float(label) * 100)}Ms"]
        seconds = shown[f'oah_queue_wait_seconds{{class="{run_class}",quantile="{label}"}}']
        assert abs(seconds * 1000 - at) <= 1
    assert queue["queueWait"]["interactive"]["startedCount"] == 20
    assert 95 <= queue["queueWait"]["interactive"]["p95Ms"] <= 105


def test_what_a_cap_keeps_out_is_shown_and_is_no_load(apis: Deployment) -> None:
    trusted(apis)
    [workspace] = [one for one in apis.store.workspaces() if one.name == "default"]
    submit(apis, "shell", 5)
    apis.broker.limits(EPOCH, [WorkspaceLimit(WorkspaceId(workspace.id), 1, 2)])
    found = apis.client().pool("default")
    assert (found["ready"], found["capped"], found["load"]) == (2, 3, 2)
    assert apis.client().queue()["cappedReadySessionCount"] == 3


def test_a_pool_with_its_workers_and_decisions(apis: Deployment) -> None:
    trusted(apis)
    client = apis.client()
    with pytest.raises(NotFound):
        client.pool("default")
    apis.report_worker(name="w1")
    apis.report_worker(name="other", pool="gpu")
    for number in range(10):
        apis.store.add_decision(
            NewDecision(
                id=f"d{number}", pool="default", target="none", holder="here", current=number, desired=number + 1,
                reason="scale_up", outcome=Outcome.SCALED, inputs={"ready": 3},
            )
        )  # fmt: skip
    found = client.pool("default")
    assert [worker["name"] for worker in found["members"]] == ["w1"]
    assert [one["id"] for one in found["decisions"]] == [f"d{number}" for number in range(9, 1, -1)]
    assert (found["desired"], found["decisions"][0]["inputs"]) == (10, {"ready": 3})
    assert client.pools()[0]["desired"] == 10
    assert cli(apis, "pool", "show", "default")["decisions"] == found["decisions"]
    with pytest.raises(Forbidden):
        apis.client("runner").pools()


def test_an_autoscaler_holds_while_the_load_could_be_more(apis: Deployment) -> None:
    client = apis.client(retries=0)
    session = submit(apis, "shell", 1)[0]
    with pytest.raises(Unavailable) as raised:
        client.pool_metric("default")
    assert "rebuilt a moment ago" in raised.value.message
    trusted(apis)
    assert client.pool_metric("default") == {
        "pool": "default", "value": 1, "ready": 1, "running": 0, "waiting": 0, "slots": 0,
    }  # fmt: skip
    started = take(apis, session)
    assert client.pool_metric("default")["value"] == 1, "what runs is load"
    apis.settle(started)
    assert client.pool_metric("default")["value"] == 0
    assert client.pool_metric("nowhere")["value"] == 0
    apis.broker.off()
    with pytest.raises(Unavailable):
        client.pool_metric("default")


def test_the_leader_forgets_pools_that_are_empty_and_everything_when_it_leads_no_more(apis: Deployment) -> None:
    context = apis.context
    session = submit(apis, "shell", 1)[0]
    measure = MeasurePools(context.telemetry, PoolSignals(apis.store, apis.broker, context.clock, trust=timedelta(0)))
    measure()
    assert context.telemetry.value("oah_pool_load", pool="default") == 1
    apis.settle(take(apis, session))
    measure()
    assert context.telemetry.value("oah_pool_load", pool="default") is None
    measure.clear()
    unsure = MeasurePools(context.telemetry, PoolSignals(apis.store, apis.broker, context.clock, trust=HOUR))
    submit(apis, "shell", 1)
    unsure()
    assert context.telemetry.value("oah_pool_load", pool="default") is None, "it could be more"
    assert context.telemetry.value("oah_pool_ready", pool="default") == 1
    unsure.clear()
    assert b"oah_pool_ready{" not in context.exposition()[0]


def test_the_queue_is_repaired_over_http(apis: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oah.services.ready_queue.SECOND_LOOK", 0.01)
    client = apis.client()
    fine, lost = submit(apis, "shell", 2)
    apis.broker.cancel(EPOCH, [SessionId(lost)])
    apis.broker.ensure(EPOCH, [])
    seen = client.queue_session(lost)
    assert (seen["owner"], seen["broker"]["place"]) == (None, "idle")
    with pytest.raises(NotFound):
        apis.client("foreigner").queue_session(lost)
    pages = list(client.queue_faults())
    assert [page["part"] for page in pages] == ["sessions", "owners", "ready"]
    assert pages[0]["faults"] == {"no_place": [lost]}
    assert client.queue_session(lost)["broker"]["place"] == "idle", "only looked at"
    done = cli(apis, "queue", "repair")
    assert (done["repaired"], done["left"], done["queued_sessions"]) == ([lost], 0, 2)
    assert client.queue_session(lost)["broker"]["place"] == client.queue_session(fine)["broker"]["place"] == "ready"
    assert sum(page["reconciled"] for page in client.repair_queue(reconcile=True)) == 2
    rows = apis.store.audit_rows(AuditFilter(action="queue.repaired")).items
    assert [(row.data["repaired"], row.data["reconciled"]) for row in rows] == [(0, 2), (1, 0)]
    inspected = cli(apis, "queue", "inspect", lost)
    assert (inspected["broker"]["place"], len(inspected["queue"])) == ("ready", 1)
    with pytest.raises(Forbidden):
        next(apis.client("operator").queue_faults())
