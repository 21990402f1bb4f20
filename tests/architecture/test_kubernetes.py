"""What deploy/ tells a cluster: valid by the schemas of Kubernetes, accepted by the settings, with the rights that the
adapters need and no others, and time to drain. Offline."""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import urlsplit

import helm_python
import pytest

from oah.adapters.kubernetes.facts import rights_of_election, rights_of_scaling
from oah.adapters.kubernetes.workload import Wanted
from oah.cli.cluster import judge_pods
from oah.cli.findings import Level
from tests.support.manifests import (
    CHART,
    OTHERS,
    TREES,
    Document,
    build,
    by_name,
    containers,
    environment,
    load,
    notes,
    pods_of,
    render,
    settings,
    validate,
    values,
)
from tests.support.source import ROOT, pyproject

GIVEN = {"secret": {"existing": "oah"}}
ENVIRONMENTS = ("development", "staging", "production")
EVERYTHING: dict[str, Any] = {
    "secret": {"databaseUrl": "postgresql://a/b", "redisUrl": "redis://c", "extra": {"OAH_API_KEY": "k"}},
    "imagePullSecrets": [{"name": "pull"}],
    "sharedStorage": {"enabled": True, "storageClass": "nfs"},
    "worker": {"kind": "Deployment", "env": {"OAH_WORKER__PARKED": 3}, "priorityClassName": "batch"},
    "pools": {
        "default": {"scaling": {"by": "controller"}},
        "keda": {"kind": "StatefulSet", "scaling": {"by": "keda", "minimum": 0}},
        "hpa": {"scaling": {"by": "hpa", "perWorker": 6}},
        "fixed": {"replicas": 3, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    },
}
TREE = [*(f"overlays/{name}" for name in ("development", "production")), "base"]
COMPONENTS = [each.name for each in sorted((TREES / "components").iterdir())]


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Document]]:
    """By what they are of; nobody changes them."""
    return {
        **{f"chart {name}": render(values(name)) for name in ENVIRONMENTS},
        "chart": render(GIVEN),
        "chart everything": render(EVERYTHING),
        **{name: build(TREES / name) for name in TREE},
        "base and components": load_components(),
    }


def load_components() -> list[Document]:
    return [
        document
        for name in COMPONENTS
        for path in sorted((TREES / "components" / name).glob("*.yaml"))
        for document in load(path.read_text())
        if "apiVersion" in document and document["kind"] != "Component" and not _is_patch(name, path.name)
    ]


def _is_patch(component: str, file: str) -> bool:
    (wishes,) = load((TREES / "components" / component / "kustomization.yaml").read_text())
    return file in {patch["path"] for patch in wishes.get("patches", ())}


class TestValid:
    def test_every_document_is_one_of_kubernetes(self, rendered: dict[str, list[Document]]) -> None:
        seen = set()
        for documents in rendered.values():
            for document in documents:
                key = repr(document.get("spec", document))
                if key not in seen:
                    validate(document)
                seen.add(key)
        kinds = {each["kind"] for documents in rendered.values() for each in documents}
        assert kinds >= {"Deployment", "StatefulSet", "Job", "NetworkPolicy", "HorizontalPodAutoscaler", "Ingress"}
        assert len(seen) > 60

    def test_a_field_that_kubernetes_does_not_know_is_found(self) -> None:
        wrong = copy.deepcopy(by_name(build(TREES / "base"), "StatefulSet")["oah-worker"])
        wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 3
        with pytest.raises(Exception, match="terminationGraceSeconds"):
            validate(wrong)

    @pytest.mark.parametrize("name", ENVIRONMENTS)
    def test_helm_has_nothing_to_say_about_the_chart(self, name: str) -> None:
        report = helm_python.lint(CHART, values(name), strict=True)
        assert report["errors"] == []
        assert [each for each in report["messages"] if each["severity"] > 1] == []

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"secret": {}}, "secret.existing"),
            ({"worker": {"slotz": 3}}, "slotz"),
            ({"pools": {"gpu": {"slots": 0}}}, "slots"),
            ({"pools": {"GPU": {}}}, "GPU"),
            ({"controller": {"election": "etcd"}}, "election"),
            ({"worker": {"scaling": {"by": "both"}}}, "by"),
            ({"controller": {"enabled": False}, "worker": {"scaling": {"by": "controller"}}}, "not enabled"),
        ],
    )
    def test_values_that_cannot_be_meant_are_refused(self, changes: Document, says: str) -> None:
        with pytest.raises(helm_python.HelmError, match=says):
            render({**GIVEN, **changes})

    def test_the_chart_is_of_this_release(self) -> None:
        (chart,) = load((CHART / "Chart.yaml").read_text())
        assert chart["appVersion"] == pyproject()["project"]["version"]
        images = {container["image"] for _, _, container in containers(render(GIVEN))}
        assert images == {f"oah:{chart['appVersion']}"}

    def test_alerts_and_dashboards_are_those_of_the_repository(self, rendered: dict[str, list[Document]]) -> None:
        documents = rendered["chart production"]
        (rules,) = load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text())
        assert by_name(documents, "PrometheusRule")["oah"]["spec"] == rules
        boards = by_name(documents, "ConfigMap")["oah-dashboards"]["data"]
        for path in (ROOT / "grafana" / "dashboards").glob("*.json"):
            assert boards[path.name].strip() == path.read_text().strip()


class TestPods:
    def test_none_is_more_than_it_needs_to_be(self, rendered: dict[str, list[Document]]) -> None:
        for name, documents in rendered.items():
            for document, pods, container in containers(documents):
                where = f"{name}: {document['metadata']['name']}"
                assert pods["enableServiceLinks"] is False, where  # a Service oah-api would set OAH_API_PORT
                assert pods["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
                assert container["securityContext"]["allowPrivilegeEscalation"] is False, where
                assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], where
                if container["name"] == "worker":
                    added = set(container["securityContext"]["capabilities"]["add"])
                    assert added == {"SETUID", "SETGID", "KILL", "CHOWN", "DAC_OVERRIDE"}, where
                    assert pods["automountServiceAccountToken"] is False, where  # agents run here
                else:
                    assert pods["securityContext"]["runAsNonRoot"] is True, where
                    assert container["securityContext"]["readOnlyRootFilesystem"] is True, where
                if document["kind"] != "Pod":
                    assert container["resources"]["requests"].keys() == {"cpu", "memory"}, where

    def test_only_a_controller_that_asks_the_cluster_is_handed_a_token(
        self, rendered: dict[str, list[Document]]
    ) -> None:
        for documents in rendered.values():
            asks = bool(by_name(documents, "Role")) and bool(by_name(documents, "Deployment"))
            for document, pods, _ in containers(documents):
                controller = document["metadata"]["name"] == "oah-controller"
                assert pods["automountServiceAccountToken"] is (controller and asks)

    def test_every_process_is_asked_how_it_is(self, rendered: dict[str, list[Document]]) -> None:
        for documents in rendered.values():
            for _, _, container in containers(documents):
                if not container.get("ports"):
                    continue
                paths = {
                    probe: container[f"{probe}Probe"]["httpGet"]["path"]
                    for probe in ("startup", "readiness", "liveness")
                }
                assert paths == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
                patience = container["livenessProbe"]["periodSeconds"] * container["livenessProbe"]["failureThreshold"]
                assert patience >= 60  # busy is not dead
                assert {port["name"] for port in container["ports"]} >= {"http"}

    def test_doctor_has_nothing_to_say_about_workers(self, rendered: dict[str, list[Document]]) -> None:
        seen = 0
        for documents in rendered.values():
            for _, pods, container in containers(documents):
                if container["name"] == "worker":
                    findings = list(judge_pods(pods, drain=60, then="requeue"))
                    assert {finding.level for finding in findings} == {Level.OK}, findings
                    grace = int(environment(documents, container)["OAH_WORKER__DRAIN_GRACE_SECONDS"])
                    assert pods["terminationGracePeriodSeconds"] == grace + 30
                    seen += 1
        assert seen >= 9

    def test_the_settings_take_every_environment(self, rendered: dict[str, list[Document]]) -> None:
        for name, documents in rendered.items():
            for _, _, container in containers(documents) if name != "base and components" else ():
                if container["name"] not in {"migrate", "ready"}:
                    settings(documents, container)

    def test_processes_listen_where_they_are_asked(self, rendered: dict[str, list[Document]]) -> None:
        documents = rendered["chart production"]
        for _, _, container in containers(documents):
            found = settings(documents, container)
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
            match container["name"]:
                case "worker":
                    assert (found.worker.host, found.worker.port) == ("0.0.0.0", ports["http"])
                case "controller":
                    assert (found.controller.host, found.controller.port) == ("0.0.0.0", ports["http"])
                case "gateway":
                    assert (found.gateway.host, found.gateway.port) == ("0.0.0.0", ports["nats"])
                    assert found.gateway.probe_port == ports["http"]
                case "api":
                    assert found.api_port == ports["http"]


class TestTogether:
    def test_agents_reach_what_they_speak_to(self, rendered: dict[str, list[Document]]) -> None:
        seen = 0
        for name, documents in rendered.items():
            services = by_name(documents, "Service")
            for _, _, container in containers(documents) if name != "base and components" else ():
                if container["name"] != "worker":
                    continue
                found = settings(documents, container)
                for url, scheme in ((found.api_url, "http"), (found.gateway.url, "nats")):
                    assert url is not None, name
                    parts = urlsplit(url)
                    assert parts.scheme == scheme and parts.hostname in services, (name, url)
                    assert parts.port in {port["port"] for port in services[parts.hostname]["spec"]["ports"]}, (
                        name,
                        url,
                    )
                    seen += 1
        assert seen >= 18

    def test_where_agents_speak_to_can_be_said(self) -> None:
        elsewhere = {"OAH_API_URL": "https://oah.example", "OAH_GATEWAY__URL": "nats://x:1"}
        for changes in ({"config": elsewhere}, {"worker": {"env": elsewhere}}):
            documents = render({**GIVEN, **changes})
            (worker,) = (each for _, _, each in containers(documents) if each["name"] == "worker")
            names = [each["name"] for each in worker["env"]]
            assert len(names) == len(set(names))
            assert environment(documents, worker).items() >= elsewhere.items()
        documents = render({**GIVEN, "gateway": {"enabled": False}})
        (worker,) = (each for _, _, each in containers(documents) if each["name"] == "worker")
        assert "OAH_GATEWAY__URL" not in environment(documents, worker)

    def test_services_budgets_and_monitors_find_their_pods(self, rendered: dict[str, list[Document]]) -> None:
        for name, documents in rendered.items():
            if name == "base and components":
                continue
            templates = [each["spec"]["template"] for each in documents if pods_of(each) and each["kind"] != "Pod"]
            for document in documents:
                wanted = _selected(document)
                if wanted is None:
                    continue
                found = [each for each in templates if wanted.items() <= each["metadata"]["labels"].items()]
                assert found, f"{name}: {document['kind']} {document['metadata']['name']}"
                for port in document["spec"].get("ports", ()) if document["kind"] == "Service" else ():
                    assert port["targetPort"] in {each["name"] for each in found[0]["spec"]["containers"][0]["ports"]}
            for monitor in by_name(documents, "ServiceMonitor").values():
                wanted = monitor["spec"]["selector"]["matchLabels"]
                services = [
                    each
                    for each in by_name(documents, "Service").values()
                    if wanted.items() <= each["metadata"]["labels"].items()
                    and any(port["name"] == "http" for port in each["spec"]["ports"])
                ]
                assert len(services) >= 4

    @pytest.mark.parametrize("name", ["chart staging", "chart production", "chart everything", "overlays/production"])
    def test_the_controller_has_the_rights_that_it_needs_and_no_others(
        self, name: str, rendered: dict[str, list[Document]]
    ) -> None:
        documents = rendered[name]
        container = next(each for _, _, each in containers(documents) if each["name"] == "controller")
        found = settings(documents, container)
        assert found.scale.target == "kubernetes"
        pools = found.scale.pools or {found.scale.pool: found.kubernetes}
        wanted = [Wanted(own.kind, own.workload, {}) for own in pools.values()]
        needed = {
            (right.group, f"{right.resource}/{right.subresource}".strip("/"), right.name, right.verb)
            for right in (
                *(rights_of_election(found.kubernetes.lease) if found.controller.election == "kubernetes" else ()),
                *rights_of_scaling(wanted),
            )
        }
        given = {
            (group, resource, resource_name, verb)
            for rule in by_name(documents, "Role")["oah-controller"]["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for resource_name in rule.get("resourceNames", [""])
            for verb in rule["verbs"]
        }
        assert given == needed
        (binding,) = by_name(documents, "RoleBinding").values()
        accounts = by_name(documents, "ServiceAccount")
        assert binding["subjects"][0]["name"] in accounts
        for pool, own in found.scale.pools.items():
            workers = next(each for _, _, each in containers(documents) if _serves(documents, each, pool))
            assert own.slots == settings(documents, workers).worker.slots
        for workload in wanted:
            assert workload.name in by_name(documents, str(workload.kind))

    def test_one_who_scales_and_nobody_else_writes_the_size(self, rendered: dict[str, list[Document]]) -> None:
        documents = rendered["chart everything"]
        sizes = {name: each["spec"].get("replicas") for name, each in by_name(documents, "Deployment").items()}
        sizes |= {name: each["spec"].get("replicas") for name, each in by_name(documents, "StatefulSet").items()}
        workers = {name: size for name, size in sizes.items() if "-worker-" in name}
        assert workers == {
            "oah-worker-default": None,
            "oah-worker-keda": None,
            "oah-worker-hpa": None,
            "oah-worker-fixed": 3,
        }
        (scaled,) = by_name(documents, "ScaledObject").values()
        trigger = scaled["spec"]["triggers"][0]["metadata"]
        assert trigger["url"] == "http://oah-api.oah.svc:8787/v1/pools/keda/metric"
        assert trigger["targetValue"] == "8"
        metric = by_name(documents, "HorizontalPodAutoscaler")["oah-worker-hpa"]["spec"]["metrics"][0]["external"]
        assert metric["target"] == {"type": "AverageValue", "averageValue": "6"}
        said = notes(EVERYTHING)
        assert "Pool keda: scaled by keda." in said
        assert "Pool fixed: of a fixed size." in said
        assert "replicas" not in by_name(rendered["overlays/production"], "StatefulSet")["oah-worker"]["spec"]

    def test_the_chart_and_the_plain_manifests_are_the_same_system(self, rendered: dict[str, list[Document]]) -> None:
        ours, plain = ({**_processes(rendered[name])} for name in ("chart", "base"))
        for process, (pods, container) in plain.items():
            pods_here, here = ours[process]
            for key in ("args", "ports", "securityContext", "resources", "volumeMounts"):
                assert here[key] == container[key], (process, key)
            for key in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
                assert here.get(key) == container.get(key), (process, key)
            assert pods_here["terminationGracePeriodSeconds"] == pods["terminationGracePeriodSeconds"]
            told = {each["name"]: each.get("value") for each in container.get("env", ())}
            said = {each["name"]: each.get("value") for each in here.get("env") or ()}
            extra = {"OAH_CONTROLLER__ELECTION", "OAH_WORKER__DRAIN_THEN"}  # their defaults, said aloud
            assert {name: value for name, value in said.items() if name not in extra} == told, process

    def test_a_migration_comes_before_an_upgrade_and_not_before_there_is_anything(self) -> None:
        (job,) = (each for each in render(GIVEN, upgrade=True) if each["kind"] == "Job")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
        assert pods_of(job)["containers"][0]["args"] == ["oah", "db", "upgrade"]
        assert not [each for each in render({**GIVEN, "migration": {"enabled": False}}) if each["kind"] == "Job"]

    def test_large_numbers_stay_whole(self) -> None:
        documents = render({**GIVEN, "config": {"OAH_GATEWAY__MAX_PENDING_BYTES": 67_108_864}, "worker": {"slots": 12}})
        config = by_name(documents, "ConfigMap")["oah"]["data"]
        assert config["OAH_GATEWAY__MAX_PENDING_BYTES"] == "67108864"

    def test_what_others_define_is_used_only_where_it_is_asked_for(self) -> None:
        assert not [each for each in render(GIVEN) if each["apiVersion"] in OTHERS]
        assert not [each for each in build(TREES / "base") if each["apiVersion"] in OTHERS]


def _selected(document: Document) -> dict[str, str] | None:
    match document["kind"]:
        case "Service":
            return document["spec"]["selector"]
        case "PodDisruptionBudget":
            return document["spec"]["selector"]["matchLabels"]
        case "NetworkPolicy":
            return document["spec"]["podSelector"]["matchLabels"]
        case _:
            return None


def _serves(documents: list[Document], container: Document, pool: str) -> bool:
    return container["name"] == "worker" and environment(documents, container)["OAH_WORKER__POOL"] == pool


def _processes(documents: list[Document]) -> dict[str, tuple[Document, Document]]:
    return {
        container["name"]: (pods, container)
        for document, pods, container in containers(documents)
        if document["kind"] in {"Deployment", "StatefulSet"}
    }


def test_the_image_is_what_the_manifests_believe() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["tini", "--"]' in text  # process 1 reaps; manifests give args, no command
    assert "USER 10001:10001" in text
    assert '".[kubernetes]"' in text
    assert "useradd --uid 10002 --gid agent" in text
    for documents in (render(GIVEN), build(TREES / "base")):
        for _, _, container in containers(documents):
            assert "command" not in container
