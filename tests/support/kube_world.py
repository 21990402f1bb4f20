"""A pool whose workers are pods of a fake cluster: what its controllers end is ended, working or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from oah.adapters.kubernetes.cluster import Cluster, ClusterOptions
from oah.adapters.kubernetes.target import KubernetesTarget
from oah.adapters.kubernetes.workload import Wanted
from oah.core.policy import scaling
from oah.services.scale import ScaleFleet
from tests.support.kube_api import NAMESPACE, KubeApi
from tests.support.scale_world import QUICK, STARTS, ScaleWorld


def cluster_of(
    kube: KubeApi,
    *,
    timeout: float = 5,
    token_file: Path | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Cluster:
    """Whoever uses it closes it."""
    seconds = timedelta(seconds=timeout)
    options = ClusterOptions(api_url=kube.url, namespace=NAMESPACE, timeout=seconds, token_file=token_file)
    return Cluster(options, monotonic=monotonic)


class KubeWorld(ScaleWorld):
    """`world.target` is that of a workload ``oah-worker``. Between two passes the cluster's controllers act."""

    def __init__(self, books: Path, kube: KubeApi, kind: str, *, heard: bool = True) -> None:
        super().__init__(books)
        self.kube = kube
        self.kind = kind
        self.cluster = cluster_of(kube)
        self.pauses: list[float] = []
        wanted = Wanted(kind=None, name="oah-worker", labels={})
        self.target: Any = KubernetesTarget(self.cluster, wanted, pause=self._pause if heard else lambda _: None)
        kube.grudge = lambda name: bool(self.units[name].busy) if name in self.units else False

    def close(self) -> None:
        self.cluster.close()
        super().close()

    @property
    def resource(self) -> str:
        return "deployments" if self.kind == "Deployment" else "statefulsets"

    @property
    def size(self) -> int:
        return int(self.kube.get(self.resource, "oah-worker")["spec"]["replicas"])

    def have(self, busy: int, idle: int = 0) -> None:
        """The first ones are busy: of a StatefulSet those of the lowest ordinals."""
        self.kube.workload(self.kind, "oah-worker", size=busy + idle, labels={"app": "oah"})
        for number, pod in enumerate(self.kube.pods_of("oah-worker")):
            unit = self.start(pod, timedelta(0))
            unit.born -= 1000 - number
            unit.busy = 1 if number < busy else 0

    def leader(self, rules: scaling.Rules = QUICK, holder: str = "one", **more: Any) -> ScaleFleet:
        return super().leader(rules, holder, target=self.target, **more)

    def tick(self, seconds: float) -> None:
        self.kube.reconcile()  # on what they have heard of pods
        self.kube.tell()
        self.kube.reconcile()
        self._follow()
        super().tick(seconds)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.kube.tell()

    def _follow(self) -> None:
        there = set(self.kube.pods_of("oah-worker"))
        for name in [each for each in self.units if each not in there]:
            self.end(name)
        for name in sorted(there - set(self.units)):
            self.start(name, STARTS)
        for unit in self.units.values():
            begun = unit.begins <= self.clock.seconds
            self.kube.pod_is(unit.name, ready=begun, phase="Running" if begun else "Pending")
