"""A workload of a cluster as the target of scaling, against an API server that keeps state and is strict."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oah.adapters.kubernetes.cluster import Cluster
from oah.adapters.kubernetes.pods import FIRST_TO_GO
from oah.adapters.kubernetes.target import HEARD, KubernetesTarget
from oah.adapters.kubernetes.workload import Wanted, labels_of
from oah.errors import Broken, InvalidRequest, Unavailable
from oah.ports.scaling import Outcome
from tests.support.clock import StillClock
from tests.support.kube_api import COST, KubeApi
from tests.support.kube_world import KubeWorld, cluster_of
from tests.support.scale_world import QUICK, bounds

KINDS = ("Deployment", "StatefulSet")
LABELS = {"app": "oah", "process": "worker"}
SCALING = {
    *("get deployments.apps", "list deployments.apps", "get deployments/scale.apps", "patch deployments/scale.apps"),
    *("list pods", "patch pods"),
}


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    with KubeApi().serving() as api:
        yield api


@pytest.fixture
def cluster(kube: KubeApi) -> Iterator[Cluster]:
    cluster = cluster_of(kube)
    yield cluster
    cluster.close()


@pytest.fixture
def world_of(kube: KubeApi, sqlite_template: Path, tmp_path: Path) -> Iterator[Callable[..., KubeWorld]]:
    made: list[KubeWorld] = []

    def make(kind: str, **how: bool) -> KubeWorld:
        made.append(KubeWorld(Path(shutil.copy(sqlite_template, tmp_path)), kube, kind, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


Worlds = Callable[..., KubeWorld]


def target_of(
    cluster: Cluster, name: str | None = "w", *, kind: str | None = None, labels: str = ""
) -> KubernetesTarget:
    wanted = Wanted(kind, name, labels_of(labels) if labels else {})
    return KubernetesTarget(cluster, wanted, pause=lambda _: None)


# --- through the service that scales ---


def test_of_six_busy_and_four_idle_pods_the_idle_go_then_two_drain(kube: KubeApi, world_of: Worlds) -> None:
    """A Deployment, whose controller takes a busy one wherever it has the choice."""
    world = world_of("Deployment")
    world.have(busy=6, idle=4)
    pods = kube.pods_of("oah-worker")
    idle = set(pods[6:])
    leader = world.leader(bounds(0, 4))
    world.passes(leader, 4)
    assert (world.size, set(kube.deleted)) == (6, idle)
    assert world.pauses == [HEARD.total_seconds()]
    two = world.going()
    assert len(two) == 2
    world.passes(leader, 10)
    assert (world.size, world.going()) == (6, two), "they work, and are waited for"
    for name in two:
        world.units[name].busy = 0
    world.passes(leader, 4)
    assert (world.size, set(kube.deleted), world.interrupted) == (4, idle | two, [])
    assert all(unit.busy and not unit.heard for unit in world.units.values())
    assert not any(kube.cost(pod) for pod in kube.pods_of("oah-worker"))
    [only] = world.decisions()
    assert (only.target, only.current, only.desired, only.outcome) == ("kubernetes", 10, 4, Outcome.SCALED)


def test_of_a_stateful_set_the_highest_ordinals_go_and_the_busy_ones_among_them_are_waited_for(
    kube: KubeApi, world_of: Worlds
) -> None:
    world = world_of("StatefulSet")
    world.have(busy=6, idle=4)
    leader = world.leader(bounds(0, 4))
    world.passes(leader, 4)
    assert (world.size, set(kube.deleted)) == (6, {f"oah-worker-{number}" for number in (6, 7, 8, 9)})
    world.passes(leader, 10)
    assert (world.size, world.going()) == (6, {"oah-worker-4", "oah-worker-5"})
    world.units["oah-worker-4"].busy = 0
    world.passes(leader, 4)
    assert world.size == 6, "the one above it works"
    world.units["oah-worker-5"].busy = 0
    world.passes(leader, 4)
    assert (world.size, world.interrupted) == (4, [])
    assert not any(request.startswith("PATCH") and "/pods/" in request for request in kube.requests)


def test_without_the_pause_the_controllers_have_not_heard_of_the_costs(kube: KubeApi, world_of: Worlds) -> None:
    """That the fake punishes haste: what the test above shows is due to the pause."""
    world = world_of("Deployment", heard=False)
    world.have(busy=6, idle=4)
    leader = world.leader(bounds(0, 4))
    world.passes(leader, 4)
    assert len(world.interrupted) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_pods_that_are_being_made_are_counted_and_nobody_shrinks_for_them(
    kube: KubeApi, world_of: Worlds, kind: str
) -> None:
    world = world_of(kind)
    world.have(busy=2)
    world.ready = 3
    leader = world.leader(QUICK)
    world.passes(leader, 8)
    assert (world.size, len(kube.pods_of("oah-worker"))) == (5, 5)
    assert [each.desired for each in world.decisions()] == [5]
    world.tick(60)
    world.ready = 0
    for unit in world.units.values():
        unit.busy = 1
    world.passes(leader, 6)
    assert (world.size, world.interrupted, kube.deleted) == (5, [], [])


@pytest.mark.parametrize("kind", KINDS)
def test_another_leader_goes_on_where_the_first_died(kube: KubeApi, world_of: Worlds, kind: str) -> None:
    world = world_of(kind)
    world.have(busy=2, idle=2)
    kube.refuse("PATCH .*/scale", 503)
    first = world.leader(bounds(0, 2))
    with pytest.raises(Unavailable):
        world.passes(first, 4)
    assert world.size == 4
    world.passes(world.leader(bounds(0, 2), "two"), 5)
    assert (world.size, world.interrupted) == (2, [])


def test_a_pod_that_is_not_ready_and_works_is_drained_before_any_other_goes(kube: KubeApi, world_of: Worlds) -> None:
    """Kubernetes would end it first, whatever its cost."""
    world = world_of("Deployment")
    world.have(busy=2, idle=2)
    sick = kube.pods_of("oah-worker")[0]
    follow = world._follow

    def and_stays_sick() -> None:
        follow()
        if sick in world.units:
            kube.pod_is(sick, ready=False)

    world._follow = and_stays_sick  # type: ignore[method-assign]
    world.tick(0)
    leader = world.leader(bounds(3, 3))
    world.passes(leader, 10)
    assert (world.going(), world.size) == ({sick}, 4)
    world.units[sick].busy = 0
    world.passes(leader, 4)
    assert (world.size, kube.deleted, world.interrupted) == (3, [sick], [])


# --- what is found, and its size ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_that_of_the_specification(kube: KubeApi, cluster: Cluster, kind: str) -> None:
    kube.workload(kind, "w", size=3, labels=LABELS)
    target = target_of(cluster)
    state = target.read()
    assert (state.size, set(state.members), state.settled) == (3, set(kube.pods_of("w")), True)
    resource = "deployments" if kind == "Deployment" else "statefulsets"
    document = kube.get(resource, "w")
    document["status"]["replicas"] = 7
    del document["spec"]["replicas"]
    kube.put(resource, document)
    state = target.read()
    assert (state.size, state.settled) == (1, False), "it says nothing: one, as the API server has it"
    document["spec"]["replicas"] = 0
    kube.put(resource, document)
    assert target.read().size == 0
    target.resize(target.read(), 2)
    assert kube.get(resource, "w")["spec"]["replicas"] == 2


def test_labels_must_match_exactly_one(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=1, labels=LABELS)
    kube.workload("StatefulSet", "other", size=1, labels=LABELS | {"canary": "yes"})
    kube.workload("Deployment", "api", size=1, labels={"app": "oah", "process": "api"})
    found = target_of(cluster, None, kind="Deployment", labels="app=oah,process=worker").read()
    assert (found.detail["kind"], found.detail["name"], found.detail["namespace"]) == ("Deployment", "w", "fleet")
    assert target_of(cluster, None, labels="process=worker, canary").read().detail["name"] == "other"
    for labels, code in (("app=oah,process=worker", "workload_ambiguous"), ("app=nobody", "workload_absent")):
        with pytest.raises(Broken) as caught:
            target_of(cluster, None, labels=labels).read()
        assert caught.value.code == code
    with pytest.raises(Broken, match="Deployment w, StatefulSet other"):
        target_of(cluster, None, labels="process=worker").read()


@pytest.mark.parametrize("text", ["", " , ", "=x", "a!=b", "a in (b)", "!a"])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        labels_of(text)


def test_a_name_must_be_somebodys(kube: KubeApi, cluster: Cluster) -> None:
    with pytest.raises(Broken, match="there is none"):
        target_of(cluster, "w").read()
    kube.workload("Deployment", "w", size=1, labels=LABELS)
    kube.workload("StatefulSet", "w", size=1, labels=LABELS)
    with pytest.raises(Broken, match="more than one"):
        target_of(cluster, "w").read()
    assert target_of(cluster, "w", kind="StatefulSet").read().detail["kind"] == "StatefulSet"


def test_pods_of_others_and_pods_that_end_are_no_members(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=4, labels=LABELS)
    one, two, three, four = kube.pods_of("w")
    ending = kube.get("pods", one)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kube.put("pods", ending)
    kube.pod_is(two, phase="Failed", ready=False)
    foreign = kube.get("pods", three)
    foreign["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "w-canary-7c9f", "controller": True}]
    kube.put("pods", foreign)
    kube.put("pods", {"metadata": {"name": "bare", "labels": {"owner": "w"}}, "spec": {}, "status": {}})
    state = target_of(cluster).read()
    assert (set(state.members), state.settled) == ({four}, False)
    assert target_of(cluster).choose(state, [four], 2) == [], "a smaller size would take none of them"


# --- who goes ---


def test_a_stateful_set_takes_from_the_top_as_far_as_there_is_somebody(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("StatefulSet", "w", size=12, labels=LABELS, ordinals={"start": 5})
    target = target_of(cluster)
    state = target.read()
    assert list(target.choose(state, ["w-5"], 3)) == ["w-16", "w-15", "w-14"]
    kube.objects.pop(("pods", "w-15"))
    assert list(target.choose(target.read(), [], 3)) == ["w-16"]
    with pytest.raises(Unavailable, match="w-14"):
        target.resize(target.read(), 9, victims=["w-16"])
    target.resize(target.read(), 11, victims=["w-16"])
    assert kube.get("statefulsets", "w")["spec"]["replicas"] == 11
    left = target.read()
    assert "w-16" not in left.members, "nothing keeps it, although it is still there"
    assert not left.settled


def test_those_that_go_anyhow_are_chosen_first_then_the_idle_in_their_order(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=6, labels=LABELS)
    a, b, c, d, e, f = kube.pods_of("w")
    kube.pod_is(c, ready=False)
    kube.pod_is(d, ready=False, phase="Pending", assigned=False)
    target = target_of(cluster)
    state = target.read()
    chosen = list(target.choose(state, [b, a, c], 6))
    assert chosen[:4] == [d, c, b, a]
    assert [list(target.choose(state, [b, a, c], count)) for count in range(7)] == [chosen[:n] for n in range(7)]
    for pod in (a, b, e, f):
        kube.pod_is(pod, ready=False)
    kube.pod_is(d, ready=False)
    assert list(target.choose(target.read(), [b, e], 2)) == [b, e], "when nobody is ready the cost is heard again"


def test_nothing_is_written_when_another_would_go(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=4, labels=LABELS)
    a, b, c, _ = kube.pods_of("w")
    target = target_of(cluster)
    state = target.read()
    kube.pod_is(c, ready=False)
    kube.requests.clear()
    for size, victims in ((3, [a]), (2, [a, b]), (2, [c])):
        with pytest.raises(Unavailable, match="not known to be empty") as caught:
            target.resize(state, size, victims=victims)
        assert caught.value.code == "victims_uncertain"
    assert not any(request.startswith("PATCH") for request in kube.requests)
    target.resize(state, 2, victims=[a, c])
    assert kube.get("deployments", "w")["spec"]["replicas"] == 2


def test_who_becomes_unready_while_costs_are_heard_is_not_taken_instead(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=3, labels=LABELS)
    a, busy, _ = kube.pods_of("w")
    target = KubernetesTarget(cluster, Wanted(None, "w", {}), pause=lambda _: kube.pod_is(busy, ready=False))
    with pytest.raises(Unavailable) as caught:
        target.resize(target.read(), 2, victims=[a])
    assert caught.value.code == "victims_uncertain"
    assert kube.get("deployments", "w")["spec"]["replicas"] == 3


def test_more_victims_than_go_are_no_matter(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=4, labels=LABELS)
    a, b, c, _ = kube.pods_of("w")
    target = target_of(cluster)
    target.resize(target.read(), 3, victims=[a, b, c])
    assert [kube.cost(pod) for pod in (a, b, c)] == [FIRST_TO_GO] * 3
    kube.tell()
    kube.reconcile()
    assert target.read().size == 3
    target.resize(target.read(), 3)
    assert not any(kube.cost(pod) for pod in kube.pods_of("w")), "those that stay are no longer first"


def test_marks_of_a_decision_that_came_to_nothing_keep_nobody_from_going(kube: KubeApi, cluster: Cluster) -> None:
    """Two were marked, then the leader died, and they work again; now a third is empty."""
    kube.workload("Deployment", "w", size=4, labels=LABELS)
    a, b, c, _ = kube.pods_of("w")
    target = target_of(cluster)
    state = target.read()
    kube.refuse("PATCH .*/scale", 503)
    with pytest.raises(Unavailable):
        target.resize(state, 2, victims=[a, b])
    assert kube.cost(a) == kube.cost(b) == FIRST_TO_GO
    target.resize(target.read(), 3, victims=[c])
    kube.tell()
    kube.reconcile()
    assert kube.deleted == [c]


def test_costs_of_others_are_left_alone(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=3, labels=LABELS)
    a, b, _ = kube.pods_of("w")
    for pod, cost in ((a, "-7"), (b, "100")):
        kube.objects["pods", pod]["metadata"]["annotations"] = {COST: cost, "team": "x"}
    target = target_of(cluster)
    target.resize(target.read(), 2, victims=[b])
    assert (kube.cost(a), kube.cost(b)) == ("-7", FIRST_TO_GO)
    kube.tell()
    kube.reconcile()
    assert kube.deleted == [b]
    target.resize(target.read(), 3)
    assert kube.cost(a) == "-7"


@pytest.mark.parametrize("sign", ["pods", "status", "generation"])
def test_a_deployment_that_is_rolled_out_grows_but_does_not_shrink(kube: KubeApi, cluster: Cluster, sign: str) -> None:
    kube.workload("Deployment", "w", size=3, labels=LABELS)
    a, b, _ = kube.pods_of("w")
    document, new = kube.get("deployments", "w"), kube.get("pods", b)
    if sign == "pods":
        new["metadata"]["labels"]["pod-template-hash"] = "9d4e"
    elif sign == "status":
        document["status"]["updatedReplicas"] = 0
    else:
        document["metadata"]["generation"] += 1
    kube.put("pods", new)
    kube.put("deployments", document)
    target = target_of(cluster)
    with pytest.raises(Unavailable) as caught:
        target.resize(target.read(), 2, victims=[a])
    assert caught.value.code == "rollout_in_progress"
    target.resize(target.read(), 4)
    assert kube.get("deployments", "w")["spec"]["replicas"] == 4


# --- what a server may answer ---


def test_a_status_that_changes_meanwhile_is_no_conflict_and_a_size_that_does_is(
    kube: KubeApi, cluster: Cluster
) -> None:
    kube.workload("StatefulSet", "w", size=2, labels=LABELS)
    target = target_of(cluster)
    state = target.read()
    touch = lambda: kube.put("statefulsets", kube.objects["statefulsets", "w"]) and None  # noqa: E731
    kube.on("PATCH .*/scale", times=2)(touch)
    target.resize(state, 5)
    assert kube.get("statefulsets", "w")["spec"]["replicas"] == 5
    with pytest.raises(Unavailable) as caught:
        target.resize(state, 6)
    assert caught.value.code == "size_changed"
    kube.on("PATCH .*/scale", times=3)(touch)
    with pytest.raises(Unavailable, match="faster"):
        target.resize(target.read(), 6)
    assert kube.get("statefulsets", "w")["spec"]["replicas"] == 5


def test_a_pod_that_changes_faster_than_it_is_marked_is_asked_again(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=2, labels=LABELS)
    a, _ = kube.pods_of("w")
    target = target_of(cluster)
    kube.refuse("PATCH .*pods", 409)
    with pytest.raises(Unavailable) as caught:
        target.resize(target.read(), 1, victims=[a])
    assert caught.value.code == "kubernetes_conflict"
    target.resize(target.read(), 1, victims=[a])


def test_a_size_that_somebody_writes_between_is_not_overwritten(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("StatefulSet", "w", size=2, labels=LABELS)
    other = target_of(cluster)
    target = target_of(cluster)
    state = target.read()
    kube.on("PATCH .*/scale")(lambda: other.resize(other.read(), 9))
    with pytest.raises(Unavailable):
        target.resize(state, 3)
    assert kube.get("statefulsets", "w")["spec"]["replicas"] == 9


@pytest.mark.parametrize("code", [429, 500, 504])
def test_a_busy_server_is_an_absence(kube: KubeApi, cluster: Cluster, code: int) -> None:
    kube.workload("Deployment", "w", size=2, labels=LABELS)
    target = target_of(cluster, kind="Deployment")
    state = target.read()
    for pattern, call in (("deployments/w", target.read), ("PATCH .*/scale", lambda: target.resize(state, 5))):
        kube.refuse(pattern, code)
        with pytest.raises(Unavailable):
            call()
    target.resize(state, 5)
    assert target.read().size == 5


def test_a_server_that_hangs_costs_no_more_than_the_timeout(kube: KubeApi) -> None:
    kube.workload("Deployment", "w", size=2, labels=LABELS)
    clock = StillClock()
    cluster = cluster_of(kube, timeout=5, monotonic=clock.monotonic)
    target = target_of(cluster, kind="Deployment")
    state = target.read()

    def long() -> None:
        clock.seconds += 5

    for pattern, call in (
        ("GET .*deployments/w", target.read),
        ("GET .*pods", target.read),
        ("PATCH .*/scale", lambda: target.resize(state, 3)),
    ):
        kube.hang(pattern, passes=long)
        with pytest.raises(Unavailable, match="in time"):
            call()
    cluster.close()


def test_a_server_that_says_nothing_at_all_costs_no_more_than_the_timeout(kube: KubeApi) -> None:
    kube.workload("Deployment", "w", size=2, labels=LABELS)
    cluster = cluster_of(kube, timeout=0.15)
    kube.hang("GET .*deployments/w")
    with pytest.raises(Unavailable, match="in time"):
        target_of(cluster, kind="Deployment").read()
    cluster.close()


def test_rights_that_are_missing_are_named(kube: KubeApi, tmp_path: Path) -> None:
    kube.workload("Deployment", "w", size=3, labels=LABELS)
    token = tmp_path / "token"
    token.write_text("me")
    cluster = cluster_of(kube, token_file=token)
    target = target_of(cluster, kind="Deployment")
    kube.rights = {"me": set(SCALING)}
    state = target.read()
    a, *_ = kube.pods_of("w")
    for right in ("patch pods", "patch deployments/scale.apps", "list pods"):
        kube.rights = {"me": SCALING - {right}}
        with pytest.raises(Broken, match=f"cannot {right}"):
            target.resize(state, 2, victims=[a])
            target.read()
    kube.rights = {"me": SCALING}
    target.resize(state, 2, victims=[a])
    assert target.read().size == 2
    kube.rights = {"you": SCALING}
    with pytest.raises(Broken, match="401"):
        target.read()
    cluster.close()


def test_a_workload_that_disappears_is_looked_for_again(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=2, labels=LABELS)
    target = target_of(cluster)
    state = target.read()
    kept = kube.objects.pop(("deployments", "w"))
    with pytest.raises(Unavailable):
        target.resize(state, 3)
    with pytest.raises(Broken, match="there is none"):
        target.read()
    kube.put("deployments", kept)
    target.resize(target.read(), 3)


def test_a_pod_that_is_gone_before_it_is_marked_is_no_matter(kube: KubeApi, cluster: Cluster) -> None:
    kube.workload("Deployment", "w", size=3, labels=LABELS)
    a, b, _ = kube.pods_of("w")
    target = target_of(cluster)
    state = target.read()
    kube.on("PATCH .*/pods/")(lambda: kube.objects.pop(("pods", a)) and None)
    target.resize(state, 1, victims=[a, b])
    assert kube.get("deployments", "w")["spec"]["replicas"] == 1
