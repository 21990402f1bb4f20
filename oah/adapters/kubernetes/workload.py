"""The one workload that is scaled, found by its name or by labels that must match exactly one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oah.adapters.kubernetes.cluster import KINDS, Absent, Cluster, Document
from oah.errors import Broken, InvalidRequest


@dataclass(frozen=True, slots=True)
class Wanted:
    """`kind`: None, Deployment or StatefulSet, whichever there is. `name`, or else `labels`."""

    kind: str | None
    name: str | None
    labels: Mapping[str, str | None]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that are looked at."""
        return KINDS if self.kind is None else (self.kind,)

    def __str__(self) -> str:
        kinds = " or ".join(self.kinds)
        if self.name is not None:
            return f"{kinds} {self.name}"
        said = ",".join(key if value is None else f"{key}={value}" for key, value in self.labels.items())
        return f"{kinds} with {said}"


@dataclass(frozen=True, slots=True)
class Workload:
    """What a Deployment or StatefulSet says of itself."""

    kind: str
    name: str
    document: Document

    @property
    def size(self) -> int:
        """The specification's; 1 where it says nothing, as the API server has it."""
        replicas = self._spec.get("replicas")
        return 1 if replicas is None else int(replicas)

    @property
    def selector(self) -> Mapping[str, Any]:
        """Of its pods."""
        return self._spec.get("selector") or {}

    @property
    def first_ordinal(self) -> int:
        """Of a StatefulSet."""
        return int((self._spec.get("ordinals") or {}).get("start") or 0)

    @property
    def template(self) -> Mapping[str, Any]:
        """The specification of its pods."""
        return (self._spec.get("template") or {}).get("spec") or {}

    def count(self, name: str) -> int:
        """A figure of its status: ``replicas``, ``readyReplicas``, ``updatedReplicas`` …"""
        return int((self.document.get("status") or {}).get(name) or 0)

    @property
    def observed(self) -> bool:
        """Whether its controller has seen the specification as it is."""
        return self.count("observedGeneration") >= int(self.document["metadata"].get("generation") or 0)

    @property
    def rolling(self) -> bool:
        """Whether not all its pods are of its newest template, as far as its controller has told."""
        return not self.observed or self.count("updatedReplicas") < self.count("replicas")

    @property
    def _spec(self) -> Mapping[str, Any]:
        return self.document.get("spec") or {}


def labels_of(text: str) -> dict[str, str | None]:
    """``app=oah,process=worker,canary``: equal to a value, or there at all. Raises InvalidRequest."""
    found: dict[str, str | None] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = each.partition("=")
        key, value = key.strip(), value.removeprefix("=").strip()
        if not key or any(letter in "!() " for letter in key + value):
            raise InvalidRequest(
                f"{each!r} is no label to look for", code="invalid_settings", hint="key=value or key, comma between"
            )
        found[key] = value if equals else None
    if not found:
        raise InvalidRequest("no label to look for", code="invalid_settings", hint="OAH_KUBERNETES__WORKLOAD")
    return found


def find(cluster: Cluster, wanted: Wanted) -> Workload:
    """Raises Broken when there is none or more than one, Unavailable, Refused."""
    found = list(_named(cluster, wanted) if wanted.name is not None else _labelled(cluster, wanted))
    if len(found) == 1:
        return found[0]
    many = ", ".join(f"{each.kind} {each.name}" for each in found)
    raise Broken(
        f"{wanted} in namespace {cluster.namespace}: {f'more than one: {many}' if found else 'there is none'}",
        code="workload_ambiguous" if found else "workload_absent",
        hint="OAH_KUBERNETES__KIND and OAH_KUBERNETES__WORKLOAD, or labels of exactly one",
    )


def _named(cluster: Cluster, wanted: Wanted) -> list[Workload]:
    found = []
    for kind in wanted.kinds:
        try:
            document = cluster.workload(kind, str(wanted.name))
        except Absent:
            continue
        found.append(Workload(kind, str(wanted.name), document))
    return found


def _labelled(cluster: Cluster, wanted: Wanted) -> list[Workload]:
    return [
        Workload(kind, str(document["metadata"]["name"]), document)
        for kind in wanted.kinds
        for document in cluster.workloads(kind, wanted.labels)
    ]
