"""The settings to the adapters, and `oah doctor --direct` in a cluster."""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from oah.adapters.kubernetes.cluster import Cluster, ClusterOptions
from oah.adapters.kubernetes.facts import rights_of_election, rights_of_scaling
from oah.adapters.kubernetes.workload import Wanted
from oah.bootstrap.kubernetes import kubernetes_target, open_cluster, open_election
from oah.cli.main import oah
from oah.errors import InvalidRequest, Unavailable
from oah.runtime.election import Announced
from oah.settings import ControllerSettings, KubernetesSettings, Settings
from tests.support.clock import StillClock
from tests.support.kube_api import KubeApi
from tests.support.source import ROOT, name, python


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    """And an environment that points to it."""
    (tmp_path / "token").write_text("controller")
    with KubeApi().serving() as api:
        for variable, value in {
            "OAH_DATA_DIR": str(tmp_path),
            "OAH_CONTROLLER__ELECTION": "kubernetes",
            "OAH_SCALE__TARGET": "kubernetes",
            "OAH_KUBERNETES__API_URL": api.url,
            "OAH_KUBERNETES__TOKEN_FILE": str(tmp_path / "token"),
            "OAH_KUBERNETES__NAMESPACE": "fleet",
            "OAH_KUBERNETES__WORKLOAD": "oah-worker",
            "OAH_KUBERNETES__KIND": "Deployment",
        }.items():
            monkeypatch.setenv(variable, value)
        yield api


def needed(lease: str, *wanted: Wanted) -> set[str]:
    rights = [*rights_of_election(lease), *rights_of_scaling(wanted)]
    return {str(right).removesuffix(f" {right.name}") if right.name else str(right) for right in rights}


def doctor() -> list[dict[str, Any]]:
    answer = CliRunner().invoke(oah, ["doctor", "--direct", "--json"], catch_exceptions=False)
    return list(json.loads(answer.output)["findings"])


def of(findings: list[dict[str, Any]], *checks: str) -> list[tuple[str, str, str]]:
    return [(each["check"], each["level"], each["message"]) for each in findings if each["check"] in checks]


def test_the_rights_that_doctor_asks_for_are_those_that_are_needed(kube: KubeApi) -> None:
    """With them and no others everything works; what is taken away is named."""
    wanted = Wanted("Deployment", "oah-worker", {})
    kube.rights = {"controller": needed("oah-controller", wanted)}
    spec = {"template": {"spec": {"terminationGracePeriodSeconds": 90, "automountServiceAccountToken": False}}}
    kube.workload("Deployment", "oah-worker", size=3, labels={}, **spec)
    settings = Settings()
    clock = StillClock()
    election = open_election(settings, clock, broker=Board(), hasty=Board())
    assert isinstance(election, Announced)
    assert election.lead("c.1", lease=timedelta(seconds=15))
    assert election.lead("c.1", lease=timedelta(seconds=15))
    target = kubernetes_target(settings)
    target.resize(target.read(), 4)
    kube.settle("deployments", "oah-worker")
    target._pause = lambda _: None  # type: ignore[attr-defined]
    target.resize(target.read(), 3, victims=kube.pods_of("oah-worker")[:1])
    target.close()
    found = doctor()
    assert of(found, "kubernetes", "rbac", "lease", "workload_default", "stop_grace") == [
        ("kubernetes", "ok", f"namespace fleet at {kube.url}"),
        ("rbac", "ok", "every right that is needed"),
        ("lease", "ok", "c.1"),
        ("workload_default", "ok", "Deployment oah-worker: 3 asked for, 4 ready"),
        ("stop_grace", "ok", "90 s for a drain of 60 s, 30 s behind it"),
    ]
    kube.rights["controller"] -= {"patch pods", "update leases.coordination.k8s.io"}
    assert of(doctor(), "rbac") == [
        ("rbac", "error", "no right to update leases.coordination.k8s.io oah-controller"),
        ("rbac", "error", "no right to patch pods"),
    ]


def test_a_workload_without_a_kind_needs_the_rights_of_both() -> None:
    one, both = needed("l", Wanted("StatefulSet", "w", {})), needed("l", Wanted(None, None, {"a": "b"}))
    assert "patch pods" not in one
    assert one | {"patch pods", "list deployments.apps", "list statefulsets.apps"} < both


def test_our_role_gives_what_is_needed_and_nothing_else() -> None:
    rights = ROOT / "deploy" / "kubernetes" / "components" / "scaling" / "rights.yaml"
    [role] = [each for each in yaml.safe_load_all(rights.read_text()) if each["kind"] == "Role"]
    given = {
        (group, resource, verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    wanted = Wanted("StatefulSet", "oah-worker", {})
    asked = [*rights_of_election(KubernetesSettings().lease), *rights_of_scaling([wanted])]
    assert given == {
        (each.group, "/".join(filter(None, (each.resource, each.subresource))), each.verb, each.name) for each in asked
    }


def test_a_server_that_is_away_is_a_finding(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_KUBERNETES__API_URL", "http://127.0.0.1:1")
    [(_, level, message)] = of(doctor(), "kubernetes")
    assert (level, "127.0.0.1" in message or "refused" in message) == ("error", True)


def test_without_a_cluster_doctor_asks_none(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OAH_CONTROLLER__ELECTION", "OAH_SCALE__TARGET"):
        monkeypatch.delenv(variable)
    assert of(doctor(), "kubernetes", "rbac", "lease") == []
    assert kube.requests == []


class Board:
    def lead(self, holder: str, *, lease: timedelta) -> bool:
        return True

    def resign(self, holder: str) -> None:
        """Nothing."""

    def leader(self) -> str | None:
        return None


def test_redis_elects_unless_it_is_told_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    board, clock = Board(), StillClock()
    assert open_election(Settings(), clock, broker=board, hasty=Board()) is board
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    told = Settings(controller=ControllerSettings(election="kubernetes"))
    with pytest.raises(InvalidRequest, match="no way to reach"):
        open_election(told, clock, broker=board, hasty=board)


def test_a_short_lease_is_not_lost_for_being_polite_either(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAH_CONTROLLER__LEADER_LEASE_SECONDS", "6")
    cluster = open_cluster(Settings())
    kube.refuse("leases", 429, headers={"Retry-After": "3600"})
    with pytest.raises(Unavailable) as caught:
        cluster.lease("oah-controller")
    assert caught.value.retry_after == timedelta(seconds=1.5)
    cluster.close()


def test_a_token_of_another_cluster_is_told_of_as_one(kube: KubeApi) -> None:
    kube.rights = {"somebody": set()}
    [(_, level, message)] = of(doctor(), "kubernetes")
    assert level == "error" and "401" in message
    [hint] = [each["hint"] for each in doctor() if each["check"] == "kubernetes"]
    assert "TOKEN_FILE" in hint


@pytest.mark.parametrize("text", ["", "[]", "{{: -", "clusters: []", "who: knows"])
def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="no way to reach") as caught:
        Cluster(ClusterOptions(kubeconfig=path))
    assert caught.value.hint
    with pytest.raises(InvalidRequest, match=str(tmp_path / "none")):
        Cluster(ClusterOptions(api_url="https://127.0.0.1:1", ca_file=tmp_path / "none"))


def test_a_workload_is_named_or_described_and_not_both(kube: KubeApi) -> None:
    for said in ({"workload": None}, {"selector": "app=oah"}):
        section = Settings().kubernetes.model_copy(update=said)
        with pytest.raises(InvalidRequest, match="not both"):
            kubernetes_target(Settings(kubernetes=section))


def test_a_kubeconfig_and_its_context_are_used(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
        "clusters:\n- {name: here, cluster: {server: 'http://here:1'}}\n"
        "- {name: there, cluster: {server: 'http://there:2'}}\n"
        "users:\n- {name: me, user: {token: secret}}\n"
        "contexts:\n- {name: one, context: {cluster: here, user: me}}\n"
        "- {name: two, context: {cluster: there, user: me, namespace: fleet}}\n"
    )
    from oah.bootstrap.kubernetes import open_cluster

    for context, server, namespace in ((None, "http://here:1", "default"), ("two", "http://there:2", "fleet")):
        cluster = open_cluster(Settings(kubernetes=KubernetesSettings(kubeconfig=path, context=context)))
        assert (cluster.server, cluster.namespace) == (server, namespace)
        cluster.close()
    with pytest.raises(InvalidRequest, match="three"):
        open_cluster(Settings(kubernetes=KubernetesSettings(kubeconfig=path, context="three")))


def test_without_the_extra_a_cluster_is_refused_in_one_line(kube: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [each for each in sys.modules if each.startswith("oah.adapters.kubernetes.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "lightkube", None)
    with pytest.raises(InvalidRequest, match="is not installed") as caught:
        kubernetes_target(Settings())
    assert caught.value.hint == "pip install 'oah[kubernetes]'"


def test_nothing_imports_the_adapters_before_a_setting_asks() -> None:
    """Imports in functions, and those for types alone, are indented."""
    outside = [path for path in python() if not name(path).startswith("oah/adapters/kubernetes/")]
    assert not [name(path) for path in outside if "\nfrom oah.adapters.kubernetes" in path.read_text()]
