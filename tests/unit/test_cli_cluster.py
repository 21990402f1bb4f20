"""What doctor says of a cluster, from values alone; and of our own manifests."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from oah.cli.cluster import AFTER_DRAIN_SECONDS, judge_cluster, judge_election, judge_pods
from oah.cli.findings import Level
from oah.ports.cluster import ClusterFacts, WorkloadFacts
from oah.settings import ControllerSettings, KubernetesSettings, Settings, WorkerSettings
from tests.support.source import ROOT, name

DRAIN = WorkerSettings().drain_grace_seconds


def template(grace: int | None = 90, *, env: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    container = {"name": "worker", "args": ["oah-worker"], "env": list(env), **more.pop("container", {})}
    given = {} if grace is None else {"terminationGracePeriodSeconds": grace}
    return {"containers": [{"name": "sidecar"}, container], "automountServiceAccountToken": False, **given, **more}


def drain(seconds: str) -> dict[str, Any]:
    return {"name": "OAH_WORKER__DRAIN_GRACE_SECONDS", "value": seconds}


def said(spec: dict[str, Any], *, then: str = "requeue") -> dict[str, tuple[str, str]]:
    found = judge_pods(spec, drain=DRAIN, then=then)
    return {each.check: (str(each.level), each.message) for each in found}


@pytest.mark.parametrize(
    ("spec", "level", "words"),
    [
        (template(90), "ok", "90 s for a drain of 60 s, 30 s behind it"),
        (template(89), "error", "it needs 90 s"),
        (template(None), "error", "killed 30 s after it was asked to stop"),
        (template(120, env=(drain("120"),)), "error", "it needs 150 s (a drain of 120 s"),
        (template(45, env=(drain("10.5"),)), "ok", "a drain of 10.5 s"),
        (template(95, container={"lifecycle": {"preStop": {"sleep": {"seconds": 10}}}}), "error", "preStop 10 s"),
        (
            template(100, container={"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "x; sleep 10"]}}}}),
            "ok",
            "preStop 10 s",
        ),
        (template(90, env=({"name": "OAH_WORKER__DRAIN_THEN", "value": "wait"},)), "warning", "kills them after 90 s"),
    ],
)
def test_the_grace_of_pods_and_the_drain_of_workers_agree(spec: dict[str, Any], level: str, words: str) -> None:
    found = said(spec)["stop_grace"]
    assert found[0] == level
    assert words in found[1]


def test_the_grace_that_is_advised_is_enough() -> None:
    [found] = [each for each in judge_pods(template(5, env=(drain("10.5"),)), drain=DRAIN, then="requeue") if each.hint]
    advised = int(str(found.hint).rpartition(" ")[2])
    assert said(template(advised, env=(drain("10.5"),)))["stop_grace"][0] == "ok"
    assert said(template(advised - 1, env=(drain("10.5"),)))["stop_grace"][0] == "error"


def test_workers_that_let_runs_take_as_long_as_they_need_are_killed_by_kubernetes() -> None:
    assert said(template(90), then="wait")["stop_grace"][0] == "warning"


@pytest.mark.parametrize(
    ("told", "fine"),
    [
        ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, True),
        ({"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, False),
        ({"value": "worker"}, False),
    ],
)
def test_a_worker_is_called_as_its_pod(told: dict[str, Any], fine: bool) -> None:
    assert ("worker_name" not in said(template(env=({"name": "OAH_WORKER__NAME", **told},)))) == fine


def test_agents_that_could_read_a_token_are_told_of() -> None:
    spec = template()
    assert "agents_token" not in said(spec)
    del spec["automountServiceAccountToken"]
    assert said(spec)["agents_token"][0] == "warning"
    assert said({})["stop_grace"][0] == "error"


def _documents() -> list[tuple[Path, dict[str, Any]]]:
    return [
        (path, each)
        for path in sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
        if each and each.get("kind") in ("Deployment", "StatefulSet") and "template" in each.get("spec", {})
    ]


def test_our_own_workers_have_the_time_that_they_need_and_their_pods_names() -> None:
    workers = [each for each in _documents() if each[1]["metadata"].get("labels", {}).get("process") == "worker"]
    assert workers
    for path, each in workers:
        found = list(judge_pods(each["spec"]["template"]["spec"], drain=DRAIN, then="requeue"))
        assert [one.check for one in found] == ["stop_grace"], name(path)
        assert found[0].level is Level.OK, name(path)


def test_what_a_stop_takes_behind_the_drain_is_counted() -> None:
    from oah.worker import stopping

    parts = stopping.CLAIMS_END + stopping.FLUSH_ENDS + stopping.HOOKS_END + stopping.PARTS_END
    assert parts < AFTER_DRAIN_SECONDS


def test_rights_the_lease_and_workloads_are_judged() -> None:
    facts = ClusterFacts(
        "https://10.0.0.1:443",
        "fleet",
        missing=("patch pods", "create leases.coordination.k8s.io"),
        elects=True,
        holder=None,
        workloads=(
            WorkloadFacts("default", kind="StatefulSet", name="w", size=4, ready=3, template=template()),
            WorkloadFacts("gpu", trouble="Deployment gpu in namespace fleet: there is none"),
        ),
    )
    found = [(str(each.level), each.check) for each in judge_cluster(facts, Settings())]
    assert found == [
        ("ok", "kubernetes"),
        ("error", "rbac"),
        ("error", "rbac"),
        ("warning", "lease"),
        ("ok", "workload_default"),
        ("ok", "stop_grace"),
        ("error", "workload_gpu"),
    ]
    good = ClusterFacts("https://x", "fleet", elects=True, holder="controller-1")
    assert all(each.level is Level.OK for each in judge_cluster(good, Settings()))


@pytest.mark.parametrize(("timeout", "warns"), [(3, False), (5, False), (5.1, True)])
def test_requests_that_hang_leave_the_leader_its_lease(timeout: float, warns: bool) -> None:
    settings = Settings(
        controller=ControllerSettings(election="kubernetes"), kubernetes=KubernetesSettings(timeout_seconds=timeout)
    )
    assert bool(list(judge_election(settings))) == warns
    assert not list(judge_election(Settings(kubernetes=KubernetesSettings(timeout_seconds=timeout))))
