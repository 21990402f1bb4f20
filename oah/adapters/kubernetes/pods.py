"""Which pod goes when a workload shrinks: the order of Kubernetes' own controllers, as far as it can be foretold.

A ReplicaSet's controller removes, in this order: pods without a node, pending ones, unready ones, those of the lowest
``pod-deletion-cost``; beyond that by figures that only it knows. A StatefulSet's removes the highest ordinals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FIRST_TO_GO = "-2147483648"
"""What is written for a pod that shall go: the lowest there is, so that no cost of somebody's comes before. The only
value that is taken away again."""

_ORDINAL = re.compile(r"-(\d+)$")
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
EARLIER = 11
"""The standing of a pod that runs and is ready; all others go earlier."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What is asked about a pod. Those that end or have ended are none."""

    name: str
    assigned: bool
    phase: str
    ready: bool
    cost: int
    marked: bool
    created: str
    template: str
    """Hash of the template that it was made from: two of them are a rollout."""

    @property
    def standing(self) -> int:
        """Lower goes first, whatever the costs are; EARLIER when it runs and is ready."""
        return 6 * self.assigned + 2 * _PHASES.get(self.phase, 1) + self.ready

    def rank(self, cost: int | None = None) -> tuple[int, int]:
        """Lower goes first; with another cost, if one is given."""
        return self.standing, self.cost if cost is None else cost

    @property
    def ordinal(self) -> int:
        """Of a pod of a StatefulSet; -1: it has none."""
        return ordinal_of(self.name)


def ordinal_of(name: str) -> int:
    """Of a pod of a StatefulSet, by its name; -1: it has none."""
    found = _ORDINAL.search(name)
    return int(found[1]) if found else -1


def pods_of(documents: Iterable[Mapping[str, Any]], *, kind: str, name: str) -> list[Pod]:
    """The living pods of a workload, those that would go first before others, newest before oldest among equals."""
    found = [_pod(each) for each in documents if _alive(each) and _owned(each, kind=kind, name=name)]
    found.sort(key=lambda pod: pod.created, reverse=True)
    return sorted(found, key=lambda pod: pod.rank())


def endangered(pods: Sequence[Pod], *, keep: int, victims: frozenset[str]) -> list[Pod]:
    """Which of a ReplicaSet's pods may go when `keep` stay and only `victims` have the lowest cost, and are no victims.
    A mark from a decision that came to nothing is taken away with that."""

    def rank(pod: Pod) -> tuple[int, int]:
        if pod.name in victims:
            return pod.rank(int(FIRST_TO_GO))
        return pod.rank(0 if pod.marked else None)

    going = sorted(map(rank, pods))[: max(len(pods) - keep, 0)]
    return [pod for pod in pods if going and rank(pod) <= going[-1] and pod.name not in victims]


def _alive(document: Mapping[str, Any]) -> bool:
    ended = (document.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not ended and not document["metadata"].get("deletionTimestamp")


def _owned(document: Mapping[str, Any], *, kind: str, name: str) -> bool:
    """By its controller. A Deployment's pods belong to a ReplicaSet that is named after it and the template's hash:
    asking for ReplicaSets would need one more right."""
    for owner in document["metadata"].get("ownerReferences") or ():
        if not owner.get("controller"):
            continue
        if kind == "StatefulSet":
            return bool(owner.get("kind") == kind and owner.get("name") == name)
        return bool(owner.get("kind") == "ReplicaSet" and str(owner.get("name")).rpartition("-")[0] == name)
    return False


def _pod(document: Mapping[str, Any]) -> Pod:
    metadata, status = document["metadata"], document.get("status") or {}
    labels = metadata.get("labels") or {}
    cost = (metadata.get("annotations") or {}).get(DELETION_COST, "0")
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    return Pod(
        name=str(metadata["name"]),
        assigned=bool((document.get("spec") or {}).get("nodeName")),
        phase=str(status.get("phase") or "Unknown"),
        ready=conditions.get("Ready") == "True",
        cost=int(cost) if re.fullmatch(r"[+-]?\d{1,10}", cost) else 0,
        marked=cost == FIRST_TO_GO,
        created=str(metadata.get("creationTimestamp") or ""),
        template=str(labels.get("pod-template-hash") or labels.get("controller-revision-hash") or ""),
    )
