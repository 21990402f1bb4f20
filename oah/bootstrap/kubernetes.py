"""What of a cluster the settings ask for: nothing of it is imported otherwise."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from oah.errors import InvalidRequest
from oah.ports.clock import Clock
from oah.ports.cluster import ClusterFacts
from oah.ports.election import Election
from oah.ports.scaling import ScaleTarget
from oah.runtime.election import Announced
from oah.settings import KubernetesSettings, PoolScaleSettings, Settings

if TYPE_CHECKING:
    from oah.adapters.kubernetes.cluster import Cluster
    from oah.adapters.kubernetes.workload import Wanted


def open_election(settings: Settings, clock: Clock, *, broker: Election, hasty: Election) -> Election:
    """Where leaders are elected. `hasty`: the broker with short time-outs, to announce the winner of another election.

    Raises InvalidRequest."""
    if settings.controller.election == "redis":
        return broker
    cluster = open_cluster(settings)
    from oah.adapters.kubernetes.lease import LeaseElection

    return Announced(LeaseElection(cluster, name=settings.kubernetes.lease, clock=clock), hasty)


def kubernetes_target(settings: Settings, stopping: threading.Event | None = None) -> ScaleTarget:
    """The workload that is scaled. `stopping` ends its pauses. Raises InvalidRequest."""
    cluster = open_cluster(settings)
    from oah.adapters.kubernetes.target import KubernetesTarget

    return KubernetesTarget(cluster, wanted(settings.kubernetes), pause=(stopping or threading.Event()).wait)


def open_cluster(settings: Settings) -> Cluster:
    """The API server. Raises InvalidRequest when there is no way to it, or the extra is not installed."""
    try:
        from oah.adapters.kubernetes.cluster import Cluster, ClusterOptions
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"Kubernetes is asked for, but {error.name} is not installed",
            code="invalid_settings",
            hint="pip install 'oah[kubernetes]'",
        ) from error
    section = settings.kubernetes
    options = ClusterOptions(
        namespace=section.namespace,
        api_url=section.api_url,
        token_file=section.token_file,
        ca_file=section.ca_file,
        kubeconfig=section.kubeconfig,
        context=section.context,
        timeout=timedelta(seconds=section.timeout_seconds),
        longest_hold=timedelta(seconds=min(4, settings.controller.leader_lease_seconds / 4)),
    )
    return Cluster(options)


def cluster_facts(settings: Settings) -> ClusterFacts:
    """For `oah doctor`. Raises InvalidRequest, Unavailable."""
    cluster = open_cluster(settings)
    from oah.adapters.kubernetes.facts import facts

    scale = settings.scale
    pools = scale.pools or {scale.pool: PoolScaleSettings()}
    scaled = pools if scale.target == "kubernetes" else {}
    lease = settings.kubernetes.lease if settings.controller.election == "kubernetes" else None
    try:
        asked = {pool: wanted(of_pool(settings.kubernetes, own)) for pool, own in scaled.items()}
        return facts(cluster, lease=lease, wanted=asked)
    finally:
        cluster.close()


def of_pool(section: KubernetesSettings, own: PoolScaleSettings) -> KubernetesSettings:
    """The section with what is different for a pool."""
    said: dict[str, str | None] = {"kind": own.kind or section.kind}
    if own.workload or own.selector:
        said |= {"workload": own.workload, "selector": own.selector}
    return section.model_copy(update=said)


def wanted(section: KubernetesSettings) -> Wanted:
    """Which workload is scaled. Raises InvalidRequest."""
    if (section.workload is None) == (section.selector is None):
        raise InvalidRequest(
            "which workload is scaled? A name or a selector is needed, and not both",
            code="invalid_settings",
            hint="OAH_KUBERNETES__WORKLOAD=oah-worker",
        )
    from oah.adapters.kubernetes.workload import Wanted, labels_of

    labels = {} if section.selector is None else labels_of(section.selector)
    return Wanted(section.kind, section.workload, labels)
