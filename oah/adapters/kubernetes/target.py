"""The size of a Deployment or StatefulSet through its ``/scale``, and who goes when it shrinks.

Its specification is the size. A Deployment is told whom to take by ``pod-deletion-cost``; a StatefulSet takes its
highest ordinals. Before it is made smaller it is looked at once more: when anybody would go who is not known to be
empty, nothing is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from oah.adapters.kubernetes.cluster import Absent, Cluster, Conflicting, Refused
from oah.adapters.kubernetes.pods import DELETION_COST, EARLIER, FIRST_TO_GO, Pod, endangered, ordinal_of, pods_of
from oah.adapters.kubernetes.workload import Wanted, Workload, find
from oah.errors import Broken, Unavailable
from oah.ports.scaling import TargetState

log = logging.getLogger(__name__)

_TRIES = 3
"""Writes of a size against a workload that others change: its status does with every pod that becomes ready."""
HEARD = timedelta(seconds=1)
"""From writing deletion costs to writing the size: the controller of ReplicaSets learns of pods and of sizes on two
watches, and must have heard of the former first. What it takes is milliseconds; nobody promises that."""


class KubernetesTarget:
    """A `ScaleTarget`. Workers are known by the names of their pods. One thread at a time."""

    name = "kubernetes"

    def __init__(self, cluster: Cluster, wanted: Wanted, *, pause: Callable[[float], object]) -> None:
        """`pause`: waits so many seconds."""
        self._cluster = cluster
        self._wanted = wanted
        self._pause = pause

    def read(self) -> TargetState:
        """Raises Unavailable; Broken when the workload is not exactly one, or may not be read."""
        try:
            return self._state(find(self._cluster, self._wanted))
        except (Refused, Absent) as error:
            raise Broken(error.message, code=error.code, hint=error.hint) from error

    def choose(self, state: TargetState, idle: Sequence[str], count: int) -> Sequence[str]:
        """Nobody when units are missing that would count as the first to go: a smaller size takes nobody then. Of a
        Deployment, those that are not ready before those that are: Kubernetes never keeps one of these instead."""
        members = list(state.members)
        if state.detail.get("kind") == "StatefulSet":
            return _highest(members, int(state.detail.get("first_ordinal") or 0) + state.size, count)
        if len(members) < state.size:
            return []
        early: Mapping[str, int] = state.detail.get("early") or {}
        preferred = {name: number for number, name in enumerate(idle)}
        last = len(preferred)
        members.sort(key=lambda name: (early.get(name, EARLIER), preferred.get(name, last)))
        return members[:count]

    def resize(self, state: TargetState, size: int, *, victims: Sequence[str] = ()) -> None:
        """Raises Unavailable: conflict, no answer, or somebody else would go; Broken: refused for good."""
        kind, name = str(state.detail["kind"]), str(state.detail["name"])
        try:
            if size < state.size:
                self._prepare(Workload(kind, name, self._cluster.workload(kind, name)), size, frozenset(victims))
            else:
                self._unmark(kind, name)
            self._write(kind, name, was=state.size, size=size)
        except Refused as error:
            raise Broken(error.message, code=error.code, hint=error.hint) from error
        except Absent as error:
            raise Unavailable(error.message, code=error.code) from error

    def close(self) -> None:
        """Let go of the connections."""
        self._cluster.close()

    def _state(self, workload: Workload) -> TargetState:
        pods = self._pods(workload)
        here = len(pods)
        if workload.kind == "StatefulSet":
            end = workload.first_ordinal + workload.size
            pods = sorted((pod for pod in pods if pod.ordinal < end), key=lambda pod: pod.ordinal, reverse=True)
        elif len({pod.template for pod in pods}) == 1:
            pods = pods[max(here - workload.size, 0) :]
        same = all(workload.count(each) == workload.size for each in ("replicas", "readyReplicas", "updatedReplicas"))
        detail: dict[str, Any] = {
            "kind": workload.kind,
            "name": workload.name,
            "namespace": self._cluster.namespace,
            "first_ordinal": workload.first_ordinal,
            "ready": workload.count("readyReplicas"),
            "early": {pod.name: pod.standing for pod in pods if pod.standing < EARLIER},
        }
        return TargetState(
            size=workload.size,
            members={pod.name: pod.name for pod in pods},
            settled=workload.observed and same and here == workload.size,
            detail=detail,
        )

    def _pods(self, workload: Workload) -> list[Pod]:
        return pods_of(self._cluster.pods(workload.selector), kind=workload.kind, name=workload.name)

    def _prepare(self, workload: Workload, size: int, victims: frozenset[str]) -> None:
        """Look once more whether all that will go are victims, and mark these."""
        pods = self._sure(workload, size, victims)
        if workload.kind == "Deployment" and self._mark(pods, victims):
            self._pause(HEARD.total_seconds())
            # One that has become unready meanwhile goes before all that are marked.
            self._sure(
                Workload(workload.kind, workload.name, self._cluster.workload(workload.kind, workload.name)),
                size,
                victims,
            )

    def _sure(self, workload: Workload, size: int, victims: frozenset[str]) -> list[Pod]:
        """Its pods, when nobody would go but victims. Raises Unavailable."""
        pods = self._pods(workload)
        if workload.kind == "StatefulSet":
            _only(victims, [pod for pod in pods if pod.ordinal >= workload.first_ordinal + size])
            return pods
        if len({pod.template for pod in pods}) > 1 or workload.rolling:
            raise Unavailable(
                f"{workload.kind} {workload.name} is being rolled out: who goes cannot be chosen",
                code="rollout_in_progress",
            )
        _only(victims, endangered(pods, keep=size, victims=victims))
        return pods

    def _mark(self, pods: Sequence[Pod], victims: frozenset[str]) -> bool:
        """Deletion costs as they have to be; whether any had to be written."""
        changed = False
        for pod in pods:
            if pod.name in victims and pod.cost > int(FIRST_TO_GO):
                changed |= self._annotate(pod.name, FIRST_TO_GO)
            elif pod.marked and pod.name not in victims:
                changed |= self._annotate(pod.name, None)
        return changed

    def _unmark(self, kind: str, name: str) -> None:
        """Who was to go once and stays is no longer first."""
        if kind == "Deployment":
            self._mark(self._pods(Workload(kind, name, self._cluster.workload(kind, name))), frozenset())

    def _annotate(self, pod: str, cost: str | None) -> bool:
        try:
            self._cluster.annotate(pod, {DELETION_COST: cost})
        except Absent:
            return False
        except Conflicting as error:
            raise Unavailable(error.message, code="kubernetes_conflict") from error
        return True

    def _write(self, kind: str, name: str, *, was: int, size: int) -> None:
        for _ in range(_TRIES):
            now, version = self._cluster.scale(kind, name)
            if now != was:
                raise Unavailable(f"{kind} {name}: somebody else asked for {now}, not {was}", code="size_changed")
            try:
                self._cluster.resize(kind, name, size=size, version=version)
            except Conflicting:
                continue
            log.info("scaled", extra={"workload": f"{kind}/{name}", "was": was, "size": size})
            return
        raise Unavailable(f"{kind} {name} changes faster than its size can be written", code="kubernetes_conflict")


def _highest(members: Sequence[str], end: int, count: int) -> list[str]:
    """As many as `count` from the highest ordinal downwards, up to the first that is missing."""
    by_ordinal = {ordinal_of(name): name for name in members}
    found = []
    for number in range(end - 1, end - 1 - count, -1):
        if number not in by_ordinal:
            break
        found.append(by_ordinal[number])
    return found


def _only(victims: frozenset[str], going: Sequence[Pod]) -> None:
    others = [pod.name for pod in going if pod.name not in victims]
    if others:
        raise Unavailable(
            f"would take pods that are not known to be empty: {', '.join(others)}", code="victims_uncertain"
        )
