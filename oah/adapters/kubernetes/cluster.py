"""The API server: few calls on plain documents, each with a time-out, and its errors in the words of this house."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
from lightkube import operators
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster as ClusterConfig
from lightkube.config.models import User
from lightkube.core.client import Client
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.types import PatchType

from oah.adapters.kubernetes.network import Deadline, bound
from oah.errors import InvalidRequest, OahError, Unavailable

Document = dict[str, Any]
T = TypeVar("T")

PLURALS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
KINDS = tuple(PLURALS)
_WORKLOADS: dict[str, Any] = {kind: create_namespaced_resource("apps", "v1", kind, PLURALS[kind]) for kind in KINDS}
_PODS: Any = create_namespaced_resource("", "v1", "Pod", "pods")
_LEASES: Any = create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases")
_REVIEWS: Any = create_global_resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"
)


class Absent(OahError):
    """No such object (404)."""

    code = "kubernetes_absent"


class Conflicting(OahError):
    """The object has changed since it was read, or is there already (409)."""

    code = "kubernetes_conflict"


class Refused(OahError):
    """The server will not do it, now or later: no credentials, no right, a malformed request (400, 401, 403, 422)."""

    code = "kubernetes_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to reach the API server. Without `api_url` and `kubeconfig`: as a pod does (its service account), else
    $KUBECONFIG, else ~/.kube/config. `timeout`: of each request as a whole."""

    namespace: str | None = None
    api_url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    timeout: timedelta = timedelta(seconds=3)
    longest_hold: timedelta = timedelta(seconds=4)
    """However long a server asks to be left alone: a leader must not lose its lease by being polite. Of a lease of 15 s
    that is renewed every 5 s this leaves two more tries."""


@dataclass(frozen=True, slots=True)
class Right:
    """What a role must allow."""

    group: str
    resource: str
    verb: str
    subresource: str = ""
    name: str = ""
    """Of the one object; empty: of any."""

    def __str__(self) -> str:
        whole = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {whole}{'.' + self.group if self.group else ''}{' ' + self.name if self.name else ''}"


class Cluster:
    """One namespace of a cluster; from any thread. Raises Absent, Conflicting, Refused, Unavailable."""

    def __init__(self, options: ClusterOptions, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidRequest when there is no way to reach a cluster."""
        self._monotonic = monotonic
        self._held_until = 0.0
        self._longest_hold = options.longest_hold
        try:
            self._client = Client(
                config=_config(options),
                namespace=options.namespace,
                timeout=httpx2.Timeout(options.timeout.total_seconds()),
                field_manager="oah",
                trust_env=options.api_url is None,
            )
        except Exception as error:  # noqa: BLE001 - whatever the client makes of a file that is no kubeconfig
            raise InvalidRequest(
                f"no way to reach a Kubernetes API server: {_why(error, options)}",
                code="invalid_settings",
                hint="run in a pod with a service account, or set OAH_KUBERNETES__KUBECONFIG or …__API_URL",
            ) from None
        self._deadline = Deadline(options.timeout.total_seconds(), monotonic)
        bound(self._client._client._client, self._deadline)
        self.namespace = str(self._client.namespace)
        self.server = str(self._client.config.cluster.server)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def workload(self, kind: str, name: str) -> Document:
        """The Deployment or StatefulSet."""
        return self._call(f"{kind} {name}", lambda: _plain(self._client.get(_WORKLOADS[kind], name)))

    def workloads(self, kind: str, labels: Mapping[str, str | None]) -> list[Document]:
        """Those that have these labels (None: with any value)."""
        return self._list(_WORKLOADS[kind], labels)

    def pods(self, selector: Mapping[str, Any]) -> list[Document]:
        """Those that a workload's own selector (matchLabels and matchExpressions) selects."""
        return self._list(_PODS, _requirements(selector))

    def scale(self, kind: str, name: str) -> tuple[int, str]:
        """Size that is asked for, and the version of it that `resize` wants to be told."""
        return self._call(f"{kind}/scale {name}", lambda: _size(self._client.get(_WORKLOADS[kind].Scale, name)))

    def resize(self, kind: str, name: str, *, size: int, version: str) -> None:
        """Ask for a size, unless the workload has changed since `version`."""
        body = {"metadata": {"resourceVersion": version}, "spec": {"replicas": size}}
        scale = _WORKLOADS[kind].Scale
        self._call(f"{kind}/scale {name}", lambda: self._client.patch(scale, name, body, patch_type=PatchType.MERGE))

    def annotate(self, pod: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a pod; None removes one."""
        body = {"metadata": {"annotations": dict(annotations)}}
        self._call(f"Pod {pod}", lambda: self._client.patch(_PODS, pod, body, patch_type=PatchType.MERGE))

    def lease(self, name: str) -> Document:
        """The Lease."""
        return self._call(f"Lease {name}", lambda: _plain(self._client.get(_LEASES, name)))

    def create_lease(self, lease: Document) -> Document:
        """A new Lease; Conflicting when there is one."""
        name = lease["metadata"]["name"]
        return self._call(f"Lease {name}", lambda: _plain(self._client.create(_LEASES(lease))))

    def replace_lease(self, lease: Document) -> Document:
        """The Lease as a whole; Conflicting unless its resourceVersion is still the newest."""
        name = lease["metadata"]["name"]
        return self._call(f"Lease {name}", lambda: _plain(self._client.replace(_LEASES(lease))))

    def may(self, right: Right) -> bool:
        """Whether this identity has the right in the namespace."""
        attributes = {
            "namespace": self.namespace,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "name": right.name,
            "verb": right.verb,
        }
        review = _REVIEWS({"metadata": {}, "spec": {"resourceAttributes": attributes}})
        answer = self._call("SelfSubjectAccessReview", lambda: _plain(self._client.create(review)))
        return bool((answer.get("status") or {}).get("allowed"))

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """With the client's errors in our words. A server that has asked to be left alone (``Retry-After``) is."""
        held = self._held_until - self._monotonic()
        if held > 0:
            wait = timedelta(seconds=held)
            raise Unavailable(
                f"{what}: not asked yet, the API server is busy", code="kubernetes_busy", retry_after=wait
            )
        try:
            with self._deadline.begun():
                return call()
        except httpx2.HTTPStatusError as error:
            self._hold(error.response)
            raise _error_of(what, error.response, self._retry_after(error.response)) from error
        except httpx2.TimeoutException as error:
            raise Unavailable(f"{what}: no answer of the API server in time", code="kubernetes_timeout") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigError, OSError) as error:
            said = str(error) or type(error).__name__
            raise Unavailable(f"{what}: {said}", code="kubernetes_unreachable") from error
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError) as error:
            # What the client makes of an answer that no API server gives: an error page of something between, for one.
            raise Unavailable(f"{what}: unreadable answer ({error!r})", code="kubernetes_unreadable") from error

    def _hold(self, response: httpx2.Response) -> None:
        if response.status_code == 429 or response.status_code >= 500:
            asked = self._retry_after(response)
            if asked is not None:
                self._held_until = self._monotonic() + asked.total_seconds()

    def _retry_after(self, response: httpx2.Response) -> timedelta | None:
        said = response.headers.get("Retry-After", "")
        seconds = min(float(said), self._longest_hold.total_seconds()) if said.isdecimal() else None
        return None if seconds is None else timedelta(seconds=seconds)

    def _list(self, resource: Any, labels: Mapping[str, Any]) -> list[Document]:
        listed = self._call(
            resource.__name__, lambda: [_plain(each) for each in self._client.list(resource, labels=dict(labels))]
        )
        return sorted(listed, key=lambda each: str(each["metadata"]["name"]))


def _why(error: Exception, options: ClusterOptions) -> str:
    if options.ca_file is not None and isinstance(error, OSError):
        return f"{options.ca_file}: {error.strerror or error}"
    if isinstance(error, KeyError):
        return f"nothing is named {error}"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _config(options: ClusterOptions) -> SingleConfig | None:
    if options.api_url is not None:
        ca = None if options.ca_file is None else str(options.ca_file)
        token = None if options.token_file is None else str(options.token_file)
        server = ClusterConfig(server=options.api_url, certificate_auth=ca)
        return KubeConfig.from_one(cluster=server, user=User(token_file=token)).get()
    if options.kubeconfig is not None:
        return KubeConfig.from_file(options.kubeconfig).get(options.context)
    return KubeConfig.from_env().get(options.context)


def _plain(answer: Any) -> Document:
    """The document, if it is one of Kubernetes: the adapters rely on these parts."""
    found = dict(answer)
    parts = (found.get("metadata"), found.get("spec") or {}, found.get("status") or {})
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError("not an object of Kubernetes")
    return found


def _size(answer: Any) -> tuple[int, str]:
    size = None if answer.spec is None else answer.spec.replicas  # a size of zero is left out of the answer
    return int(size or 0), str(answer.metadata.resourceVersion)


def _requirements(selector: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(selector.get("matchLabels") or {})
    for each in selector.get("matchExpressions") or ():
        found[each["key"]] = _operator(str(each["operator"]), each.get("values") or ())
    return found


def _operator(name: str, values: Sequence[str]) -> Any:
    match name:
        case "In":
            return operators.in_(values)
        case "NotIn":
            return operators.not_in(values)
        case "Exists":
            return operators.exists()
        case _:
            return operators.not_exists()


def _error_of(what: str, response: httpx2.Response, retry_after: timedelta | None) -> OahError:
    status = response.status_code
    message = f"{what}: {status} {_message(response)}"
    match status:
        case 404:
            return Absent(message)
        case 409:
            return Conflicting(message)
        case 401:
            return Refused(message, hint="the token is none of this cluster: OAH_KUBERNETES__TOKEN_FILE")
        case 403:
            return Refused(message, hint="RBAC: oah doctor lists the rights that are missing")
        case 400 | 405 | 415 | 422:
            return Refused(message)
        case _:
            code = "kubernetes_busy" if status == 429 else "kubernetes_unavailable"
            return Unavailable(message, code=code, retry_after=retry_after or timedelta(seconds=1))


def _message(response: httpx2.Response) -> str:
    try:
        said = response.json().get("message")
    except (ValueError, AttributeError):
        said = None
    return str(said or response.reason_phrase)[:300]
