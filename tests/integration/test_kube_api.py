"""That the fake API server is strict: what a test of ours gets past it has been read by somebody who minds."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.support.kube_api import COST, KubeApi

LEASES = "/apis/coordination.k8s.io/v1/namespaces/fleet/leases"
APPS = "/apis/apps/v1/namespaces/fleet"
MOMENT = "2026-05-01T12:00:00.000000Z"
JSON = "application/json"
MERGE = "application/merge-patch+json"


@pytest.fixture
def kube() -> Iterator[KubeApi]:
    with KubeApi().serving() as api:
        yield api


class Caller:
    def __init__(self, kube: KubeApi) -> None:
        self.connection = HTTPConnection(kube.url.removeprefix("http://"), timeout=10)

    def __call__(self, method: str, path: str, body: Any = None, kind: str = JSON, token: str = "") -> tuple[int, Any]:
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": kind, "Authorization": f"Bearer {token}"}
        self.connection.request(method, path, None if body is None else text, headers)
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.fixture
def call(kube: KubeApi) -> Iterator[Caller]:
    caller = Caller(kube)
    yield caller
    caller.connection.close()


def lease(*, name: str = "l", version: str | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({} if version is None else {"resourceVersion": version})}
    told = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": MOMENT, **spec}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": told}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({}, 201),
        ({"renewTime": "2026-05-01T12:00:00.123Z"}, 400),
        ({"renewTime": "2026-05-01T12:00:00Z"}, 400),
        ({"acquireTime": "2026-05-01T12:00:00.1234567Z"}, 400),
        ({"acquireTime": "2026-05-01T14:00:00.123456+02:00"}, 201),
        ({"leaseDurationSeconds": 15.5}, 400),
        ({"leaseDurationSeconds": "15"}, 400),
        ({"leaseDurationSeconds": 0}, 422),
        ({"leaseTransitions": -1}, 422),
        ({"holder": "a"}, 400),
    ],
)
def test_formats_of_a_lease(call: Caller, spec: dict[str, Any], code: int) -> None:
    assert call("POST", LEASES, lease(**spec))[0] == code


def test_versions(call: Caller) -> None:
    status, made = call("POST", LEASES, lease())
    version = made["metadata"]["resourceVersion"]
    assert call("POST", LEASES, lease())[0] == 409
    assert call("POST", LEASES, lease(name="other", version="1"))[0] == 400
    assert call("PUT", f"{LEASES}/l", lease())[0] == 422
    assert call("PUT", f"{LEASES}/l", lease(version="1"))[0] == 409
    assert call("PUT", f"{LEASES}/l", lease(name="x", version=version))[0] == 400
    assert call("PUT", f"{LEASES}/none", lease(name="none", version="1"))[0] == 404
    status, changed = call("PUT", f"{LEASES}/l", lease(version=version))
    assert (status, changed["metadata"]["resourceVersion"] != version) == (200, True)


def test_sizes_are_written_to_scale_as_a_merge_patch(kube: KubeApi, call: Caller) -> None:
    kube.workload("StatefulSet", "w", size=1, labels={})
    path = f"{APPS}/statefulsets/w/scale"
    assert call("GET", path)[1]["spec"] == {"replicas": 1}
    for body, kind, code in (
        ({"spec": {"replicas": 2}}, JSON, 415),
        ({"spec": {"replicas": "2"}}, MERGE, 400),
        ({"spec": {"replicas": -1}}, MERGE, 422),
        ({"spec": {"size": 2}}, MERGE, 400),
        ("{", MERGE, 400),
        ({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 2}}, MERGE, 409),
        ({"spec": {"replicas": 0}}, MERGE, 200),
    ):
        assert call("PATCH", path, body, kind)[0] == code, body
    assert call("GET", path)[1]["spec"] == {}, "a size of zero is left out"
    assert call("PATCH", f"{APPS}/statefulsets/w", {"spec": {"replicas": 2}}, MERGE)[0] == 405


@pytest.mark.parametrize(("cost", "code"), [("-5", 200), (None, 200), (-5, 400), ("x", 422), ("9999999999", 422)])
def test_costs_are_small_numbers_in_text(kube: KubeApi, call: Caller, cost: object, code: int) -> None:
    kube.workload("Deployment", "w", size=1, labels={})
    [pod] = kube.pods_of("w")
    body = {"metadata": {"annotations": {COST: cost}}}
    assert call("PATCH", f"/api/v1/namespaces/fleet/pods/{pod}", body, MERGE)[0] == code


def test_selectors(kube: KubeApi, call: Caller) -> None:
    for name, labels in (("one", {"a": "1", "b": "x"}), ("two", {"a": "2"}), ("three", {})):
        kube.workload("Deployment", name, size=0, labels=labels)

    def found(selector: str) -> set[str]:
        items = call("GET", f"{APPS}/deployments?labelSelector={selector}")[1]["items"]
        return {each["metadata"]["name"] for each in items}

    assert found("a%3D1") == {"one"}
    assert found("a") == {"one", "two"}
    assert found("!b,a") == {"two"}
    assert found("a%20in%20(1,2),b%20notin%20(x)") == {"two"}
    assert call("GET", f"{APPS}/deployments?labelSelector=a%3E1")[0] == 400


def test_rights(kube: KubeApi, call: Caller) -> None:
    kube.workload("Deployment", "w", size=1, labels={})
    kube.rights = {"reader": {"get deployments.apps"}}
    assert call("GET", f"{APPS}/deployments/w", token="nobody")[0] == 401
    assert call("GET", f"{APPS}/deployments/w", token="reader")[0] == 200
    for method, path in (("GET", "deployments"), ("GET", "deployments/w/scale"), ("GET", "statefulsets/w")):
        assert call(method, f"{APPS}/{path}", token="reader")[0] == 403
    assert call("GET", "/apis/apps/v1/namespaces/other/deployments/w", token="reader")[0] == 404
