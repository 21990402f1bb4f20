"""What ``oah doctor`` judges of a Kubernetes cluster: pure functions from what was read to findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oah.cli.findings import Finding, bad, ok, warn

if TYPE_CHECKING:
    from oah.ports.cluster import ClusterFacts, WorkloadFacts
    from oah.settings import Settings

AFTER_DRAIN_SECONDS = 30
"""What a worker needs behind its drain at most: claims under way 5, outcomes 10, hooks 5, threads 3, agents that are
killed. At its end Kubernetes kills everything: nothing is lost by it, but runs are recovered that could have ended."""

_DRAIN = "OAH_WORKER__DRAIN_GRACE_SECONDS"
_THEN = "OAH_WORKER__DRAIN_THEN"
_NAME = "OAH_WORKER__NAME"
_DEFAULT_GRACE = 30
"""Of Kubernetes."""


def judge_election(settings: Settings) -> Iterator[Finding]:
    """Whether requests that hang leave a leader its lease."""
    section, timeout = settings.controller, settings.kubernetes.timeout_seconds
    if section.election == "kubernetes" and section.leader_renew_seconds + 2 * timeout > section.leader_lease_seconds:
        yield warn(
            "settings",
            f"two requests that hang for {timeout:g} s end a leadership of {section.leader_lease_seconds:g} s that is "
            f"renewed every {section.leader_renew_seconds:g} s",
            "OAH_KUBERNETES__TIMEOUT_SECONDS",
        )


def judge_cluster(facts: ClusterFacts, settings: Settings) -> Iterator[Finding]:
    """Rights, the Lease, and every workload that is scaled."""
    yield ok("kubernetes", f"namespace {facts.namespace} at {facts.server}")
    for right in facts.missing:
        yield bad("rbac", f"no right to {right}", "the role of the controller; see docs/explanation/kubernetes.md")
    if not facts.missing:
        yield ok("rbac", "every right that is needed")
    if facts.elects:
        yield ok("lease", facts.holder) if facts.holder else warn("lease", "nobody holds it", "start oah-controller")
    for each in facts.workloads:
        yield from judge_workload(each, settings)


def judge_workload(facts: WorkloadFacts, settings: Settings) -> Iterator[Finding]:
    """One that is scaled."""
    check = f"workload_{facts.pool}"
    if facts.trouble is not None or facts.template is None:
        yield bad(check, str(facts.trouble), "OAH_KUBERNETES__WORKLOAD, OAH_KUBERNETES__KIND")
        return
    yield ok(check, f"{facts.kind} {facts.name}: {facts.size} asked for, {facts.ready} ready")
    drain = settings.worker.drain_grace_seconds
    yield from judge_pods(facts.template, drain=drain, then=str(settings.worker.drain_then))


def judge_pods(template: Mapping[str, Any], *, drain: float, then: str) -> Iterator[Finding]:
    """The specification of a worker's pods: time to stop, its name, no token for agents. ``drain`` and ``then``: of
    workers that are not told in the template itself."""
    container = _container(template.get("containers") or ())
    told = {str(each.get("name")): each for each in container.get("env") or ()}
    seconds = told.get(_DRAIN, {}).get("value")
    drain = float(seconds) if seconds is not None and re.fullmatch(r"\d+(\.\d+)?", seconds) else drain
    yield _grace(template, container, drain=drain, then=told.get(_THEN, {}).get("value") or then)
    name = told.get(_NAME)
    path = ((name or {}).get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
    if name is not None and path != "metadata.name":
        yield bad(
            "worker_name",
            f"{_NAME} is not the name of the pod: who is empty and who goes cannot be told",
            "valueFrom: fieldRef: fieldPath: metadata.name",
        )
    if template.get("automountServiceAccountToken") is not False:
        yield warn(
            "agents_token",
            "agents can read a token of the cluster, unless the service account of workers says otherwise",
            "automountServiceAccountToken: false",
        )


def _grace(template: Mapping[str, Any], container: Mapping[str, Any], *, drain: float, then: str) -> Finding:
    given = template.get("terminationGracePeriodSeconds")
    grace = _DEFAULT_GRACE if given is None else int(given)
    before = _pre_stop((container.get("lifecycle") or {}).get("preStop") or {})
    if then == "wait":
        return warn(
            "stop_grace",
            f"runs may take as long as they need, and Kubernetes kills them after {grace} s",
            f"{_THEN}=requeue",
        )
    needed = before + drain + AFTER_DRAIN_SECONDS
    parts = f"a drain of {drain:g} s, {AFTER_DRAIN_SECONDS} s behind it" + (f", preStop {before:g} s" if before else "")
    if grace < needed:
        return bad(
            "stop_grace",
            f"a worker is killed {grace} s after it was asked to stop; it needs {needed:g} s ({parts})",
            f"terminationGracePeriodSeconds: {math.ceil(needed)}",
        )
    return ok("stop_grace", f"{grace} s for {parts}")


def _container(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    def works(each: Mapping[str, Any]) -> bool:
        return "oah-worker" in [*(each.get("command") or ()), *(each.get("args") or ())] or each.get("name") == "worker"

    return next((each for each in containers if works(each)), containers[0] if containers else {})


def _pre_stop(hook: Mapping[str, Any]) -> float:
    """Seconds that it takes, as far as it says: ``sleep: {seconds: N}``, or a command that sleeps."""
    if hook.get("sleep"):
        return float(hook["sleep"].get("seconds") or 0)
    words = " ".join(str(each) for each in (hook.get("exec") or {}).get("command") or ())
    return sum(float(each) for each in re.findall(r"\bsleep\s+(\d+(?:\.\d+)?)", words))
