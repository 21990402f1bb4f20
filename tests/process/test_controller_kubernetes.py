"""Controllers in a cluster: a Lease elects one of two, and whoever leads keeps the size of a workload."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oah.testing.fleet import CONTROLLER, Fleet
from tests.support.kube_api import NAMESPACE, KubeApi
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LEASE = 3.0


def test_another_leads_within_the_lease_and_goes_on_scaling(start_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    names = (CONTROLLER, f"{CONTROLLER}-2")
    for name in names:
        (tmp_path / name).write_text(name)
    with KubeApi(rights={name: {"*"} for name in names}).serving() as kube:
        kube.workload("StatefulSet", "oah-worker", size=1, labels={"app": "oah"})
        fleet = start_fleet(
            workers=0,
            controllers=2,
            own={name: {"OAH_KUBERNETES__TOKEN_FILE": str(tmp_path / name)} for name in names},
            env={
                "OAH_CONTROLLER__ELECTION": "kubernetes",
                "OAH_CONTROLLER__LEADER_LEASE_SECONDS": f"{LEASE:g}",
                "OAH_CONTROLLER__LEADER_RENEW_SECONDS": "1",
                "OAH_KUBERNETES__API_URL": kube.url,
                "OAH_KUBERNETES__NAMESPACE": NAMESPACE,
                "OAH_KUBERNETES__WORKLOAD": "oah-worker",
                "OAH_KUBERNETES__KIND": "StatefulSet",
                "OAH_KUBERNETES__TIMEOUT_SECONDS": "1",
                "OAH_SCALE__TARGET": "kubernetes",
                "OAH_SCALE__MINIMUM": "2",
                "OAH_SCALE__EVERY_SECONDS": "0.2",
            },
        )

        def holder() -> str:
            lease = kube.objects.get(("leases", "oah-controller"))
            return "" if lease is None else str(lease["spec"]["holderIdentity"])

        def leader() -> str | None:
            """The living process that the Lease names."""
            return next((name for name in names if f".{fleet.pids.get(name)}." in holder()), None)

        def size() -> int:
            return int(kube.get("statefulsets", "oah-worker")["spec"]["replicas"])

        first = eventually(leader, within=30, what="somebody leads")
        second = next(name for name in names if name != first)
        eventually(lambda: size() == 2, within=20, what="the smallest size")
        eventually(lambda: fleet.client.controller()["leader"] == holder(), within=10, what="the API shows the leader")

        fleet.kill(first)
        began = time.monotonic()
        kube.objects["statefulsets", "oah-worker"]["spec"]["replicas"] = 1  # somebody's mistake
        eventually(lambda: leader() == second, within=20, what="the other leads")
        assert time.monotonic() - began < LEASE + 1 + 2, "its lease, a look, and what a busy machine needs"
        eventually(lambda: size() == 2, within=20, what="it goes on scaling")

        kube.callers.clear()
        fleet.restart(first)
        eventually(lambda: first in kube.callers, within=20, what="the standby looks")
        fleet.signal(second, signal.SIGTERM)
        assert fleet.wait_exit(second) == 0
        began = time.monotonic()
        eventually(lambda: leader() == first, within=20, what="the standby leads")
        assert time.monotonic() - began < LEASE, "its next look, not the end of a lease"
        assert kube.get("leases", "oah-controller")["spec"]["leaseTransitions"] == 2
