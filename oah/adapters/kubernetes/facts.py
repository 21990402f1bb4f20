"""What this identity may do in the cluster, and what stands there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from oah.adapters.kubernetes.cluster import PLURALS, Absent, Cluster, Refused, Right
from oah.adapters.kubernetes.workload import Wanted, find
from oah.errors import Broken
from oah.ports.cluster import ClusterFacts, WorkloadFacts


def facts(cluster: Cluster, *, lease: str | None, wanted: Mapping[str, Wanted]) -> ClusterFacts:
    """``lease``: of the election, if a Lease elects; ``wanted``: what is scaled, by pool. Raises Unavailable."""
    needed = [*(rights_of_election(lease) if lease else ()), *rights_of_scaling(wanted.values())]
    missing = tuple(str(right) for right in dict.fromkeys(needed) if not cluster.may(right))
    return ClusterFacts(
        server=cluster.server,
        namespace=cluster.namespace,
        missing=missing,
        elects=lease is not None,
        holder=None if lease is None else _holder(cluster, lease),
        workloads=tuple(_workload(cluster, pool, each) for pool, each in wanted.items()),
    )


def rights_of_election(lease: str) -> Iterator[Right]:
    """What a controller needs that is elected by this Lease."""
    group = "coordination.k8s.io"
    yield Right(group, "leases", "create")
    yield from (Right(group, "leases", verb, name=lease) for verb in ("get", "update"))


def rights_of_scaling(wanted: Iterable[Wanted]) -> Iterator[Right]:
    """What a controller needs that scales these. Without a kind it looks for both, and needs both."""
    for each in wanted:
        yield Right("", "pods", "list")
        for kind in each.kinds:
            plural, name = PLURALS[kind], each.name or ""
            if each.name is None:
                yield Right("apps", plural, "list")
            yield Right("apps", plural, "get", name=name)
            yield from (Right("apps", plural, verb, "scale", name) for verb in ("get", "patch"))
            if kind == "Deployment":
                yield Right("", "pods", "patch")


def _holder(cluster: Cluster, lease: str) -> str | None:
    try:
        spec = cluster.lease(lease).get("spec") or {}
    except (Absent, Refused):
        return None
    return spec.get("holderIdentity") or None


def _workload(cluster: Cluster, pool: str, wanted: Wanted) -> WorkloadFacts:
    try:
        found = find(cluster, wanted)
    except (Broken, Refused) as error:
        return WorkloadFacts(pool, trouble=error.message)
    return WorkloadFacts(
        pool,
        kind=found.kind,
        name=found.name,
        size=found.size,
        ready=found.count("readyReplicas"),
        template=found.template,
    )
