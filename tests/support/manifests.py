"""What a cluster would be told: the chart rendered by Helm, kustomize trees built by the few rules that they use."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

from oah.settings import Settings
from tests.support.source import ROOT

Document = dict[str, Any]
CHART = ROOT / "deploy" / "helm" / "oah"
TREES = ROOT / "deploy" / "kubernetes"
OLDEST, NEWEST = "1.27", "1.37"
"""Releases of Kubernetes whose schemas are asked: what Chart.yaml says it needs, and the newest that there is."""
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)  # megabytes each
# Definitions that are installed into a cluster by others; their schemas are not Kubernetes'.
OTHERS = {"monitoring.coreos.com/v1", "keda.sh/v1alpha1"}
_MERGED_BY = {
    "containers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def load(text: str) -> list[Document]:
    """Documents of a YAML text."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each is not None]


@functools.cache
def chart() -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


def values(environment: str) -> Document:
    """Of an environment's file."""
    (found,) = load((CHART / f"values-{environment}.yaml").read_text())
    return found


def render(given: Mapping[str, Any], *, upgrade: bool = False) -> list[Document]:
    """What Helm would send, hooks included."""
    texts = chart().render(dict(given), name="oah", namespace="oah", is_install=not upgrade, is_upgrade=upgrade)
    return [each for path, text in texts.items() if path.endswith(".yaml") for each in load(text)]


def notes(given: Mapping[str, Any]) -> str:
    """What Helm would say."""
    texts = chart().render(dict(given), name="oah", namespace="oah")
    return next(text for path, text in texts.items() if path.endswith("NOTES.txt"))


def validate(document: Document) -> None:
    """By the strict schemas of two releases: no field that they do not know. Raises what kubernetes-validate raises."""
    if document["apiVersion"] not in OTHERS:
        for release in (OLDEST, NEWEST):
            kubernetes_validate.validate(document, release, strict=True)


def build(folder: Path) -> list[Document]:
    """What `kubectl kustomize` makes of a kustomization that uses resources, components, patches, images, replicas and
    a namespace, and nothing else."""
    return _built(folder, [])


def _built(folder: Path, documents: list[Document]) -> list[Document]:
    (wishes,) = load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "resources", "components", "patches", "images", "replicas", "namespace"}
    assert wishes.keys() <= known, wishes.keys() - known
    for name in wishes.get("resources", ()):
        place = folder / name
        documents = documents + (build(place) if place.is_dir() else load(place.read_text()))
    for name in wishes.get("components", ()):
        documents = _built(folder / name, documents)
    for patch in wishes.get("patches", ()):
        for wish in load((folder / patch["path"]).read_text()):
            documents = _patched(documents, wish)
    for each in documents:
        if "namespace" in wishes and each["kind"] != "Namespace":
            each["metadata"]["namespace"] = wishes["namespace"]
            for subject in each.get("subjects", ()):
                subject["namespace"] = wishes["namespace"]
        for count in wishes.get("replicas", ()):
            if each["metadata"]["name"] == count["name"] and each["kind"] in {"Deployment", "StatefulSet"}:
                each["spec"]["replicas"] = count["count"]
        for container in pods_of(each).get("containers", ()):
            for image in wishes.get("images", ()):
                if container["image"].partition(":")[0] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return documents


def _patched(documents: list[Document], wish: Document) -> list[Document]:
    def same(each: Document) -> bool:
        return each["kind"] == wish["kind"] and each["metadata"]["name"] == wish["metadata"]["name"]

    assert sum(map(same, documents)) == 1, wish["metadata"]
    if wish.get("$patch") == "delete":
        return [each for each in documents if not same(each)]
    return [_merged(each, wish) if same(each) else each for each in documents]


def _merged(have: Any, wish: Any, name: str = "") -> Any:
    if isinstance(have, dict) and isinstance(wish, dict):
        both = {key: value for key, value in have.items() if key not in wish}
        changed = {key: _merged(have.get(key), value, key) for key, value in wish.items() if value is not None}
        return {**both, **changed}
    if isinstance(have, list) and isinstance(wish, list) and name in _MERGED_BY:
        key = _MERGED_BY[name]
        told = {each[key]: each for each in wish}
        rest = [each for each in wish if each[key] not in {one[key] for one in have}]
        return [_merged(each, told[each[key]]) if each[key] in told else each for each in have] + rest
    return wish


def pods_of(document: Document) -> Document:
    """The specification of its pods; empty when it has none."""
    if document["kind"] == "Pod":
        return document["spec"]
    return ((document.get("spec") or {}).get("template") or {}).get("spec") or {}


def by_name(documents: list[Document], kind: str) -> dict[str, Document]:
    """Those of a kind."""
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def containers(documents: list[Document]) -> Iterator[tuple[Document, Document, Document]]:
    """(document, specification of its pods, container)."""
    for each in documents:
        pods = pods_of(each)
        for container in pods.get("containers", ()):
            yield each, pods, container


def environment(documents: list[Document], container: Document) -> dict[str, str]:
    """What the process finds; values that Kubernetes fills in are their paths."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            found |= by_name(documents, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for each in container.get("env") or ():
        found[each["name"]] = each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"]
    return found


def settings(documents: list[Document], container: Document) -> Settings:
    """What the process makes of it. Raises when a value is none, or a name is unknown."""
    given = {name: value for name, value in environment(documents, container).items() if name.startswith("OAH_")}
    kept = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith("OAH_")]:
            del os.environ[name]
        os.environ.update(given)
        return Settings()
    finally:
        os.environ.clear()
        os.environ.update(kept)
