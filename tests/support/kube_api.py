"""A Kubernetes API server that keeps state and is strict: formats, versions, rights; and the controllers behind it.

What it refuses, the real one refuses, in the same words where they matter; whole documents are also held against
Kubernetes' own schemas. The controllers act when `reconcile` is
called, on pods as they were when `tell` was called last: two watches that lag. Where Kubernetes leaves a choice to
chance, `grudge` makes it the worst one.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

Document = dict[str, Any]
NAMESPACE = "fleet"
RELEASE = "1.37"
"""Whose schemas are asked."""
COST = "controller.kubernetes.io/pod-deletion-cost"
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
LEASE_FIELDS = {
    "holderIdentity": str,
    "leaseDurationSeconds": int,
    "acquireTime": "time",
    "renewTime": "time",
    "leaseTransitions": int,
    "strategy": str,
    "preferredHolder": str,
}
KINDS = {
    ("apps", "deployments"): "Deployment",
    ("apps", "statefulsets"): "StatefulSet",
    ("", "pods"): "Pod",
    ("coordination.k8s.io", "leases"): "Lease",
}
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[\w.]+)/v1)/namespaces/(?P<namespace>[\w-]+)/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[\w.-]+)(?:/(?P<sub>\w+))?)?"
)
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Refusal(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, headers or {}

    def document(self) -> Document:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True)
class Drip:
    """An answer of which so many bytes come one by one, of its head or of its body. `each` is called before each.
    Unless `ends`, the rest never comes."""

    where: str
    count: int
    each: Callable[[], None]
    ends: bool = True

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """What comes at once, what comes slowly, and the rest."""
        slow, body = b"x" * self.count, b'{"metadata":{"name":"%s"}}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-Slow: %s\r\n\r\n"
        if self.where == "head":
            before, after = (head % (len(body % b""), b"|")).split(b"|")
            return before, slow, after + body % b""
        before, after = (body % b"|").split(b"|")
        return head % (len(body % slow), b"") + before, slow, after


@dataclass
class Trick:
    """What happens to requests (`METHOD path`) that a pattern matches."""

    pattern: re.Pattern[str]
    times: int
    do: Callable[[], Refusal | Drip | tuple[int, Mapping[str, str], bytes] | None]


@dataclass
class KubeApi:
    """The server; one namespace. `rights`: bearer token → what it may (`verb resource.group`, or ``*``)."""

    rights: dict[str, set[str]] = field(default_factory=dict)
    grudge: Callable[[str], bool] = lambda name: False
    requests: list[str] = field(default_factory=list)
    callers: list[str] = field(default_factory=list)
    """Tokens of who asked."""
    objects: dict[tuple[str, str], Document] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.tricks: list[Trick] = []
        self.versions = itertools.count(1000)
        self.seconds = itertools.count()
        self.heard: dict[str, Document] = {}
        self.over = threading.Event()
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @contextmanager
    def serving(self) -> Iterator[KubeApi]:
        self.thread.start()
        try:
            yield self
        finally:
            self.over.set()
            self.server.shutdown()
            self.server.server_close()
            self.thread.join(60)

    # --- what tests arrange -------------------------------------------------------------------------------------

    def workload(self, kind: str, name: str, *, size: int, labels: Mapping[str, str], **spec: Any) -> None:
        """A Deployment or StatefulSet, its pods running and ready."""
        body = {
            "metadata": {"name": name, "labels": dict(labels), "generation": 1},
            "spec": {
                "replicas": size,
                "selector": {"matchLabels": {"owner": name}},
                "template": {"spec": {}},
                **spec,
            },
        }
        resource = "deployments" if kind == "Deployment" else "statefulsets"
        self.put(resource, {"apiVersion": "apps/v1", "kind": kind, **body})
        self.settle(resource, name)

    def settle(self, resource: str, name: str) -> None:
        """The controllers act until nothing is to be done, and every pod becomes ready."""
        self.tell()
        self.reconcile()
        for pod in self.pods_of(name):
            self.pod_is(pod, ready=True)
        self.tell()
        self.reconcile()

    def put(self, resource: str, document: Document) -> Document:
        with self.lock:
            name = document["metadata"]["name"]
            document["metadata"] |= {
                "namespace": NAMESPACE,
                "uid": document["metadata"].get("uid") or f"uid-{resource}-{name}-{next(self.seconds)}",
                "resourceVersion": str(next(self.versions)),
            }
            self.objects[resource, name] = document
            return document

    def get(self, resource: str, name: str) -> Document:
        with self.lock:
            return copy.deepcopy(self.objects[resource, name])

    def pods_of(self, name: str) -> list[str]:
        with self.lock:
            owned = [
                pod for (kind, pod), each in self.objects.items() if kind == "pods" and _label(each, "owner") == name
            ]
        return sorted(owned)

    def pod_is(self, name: str, *, ready: bool = True, phase: str = "Running", assigned: bool = True) -> None:
        with self.lock:
            pod = self.objects["pods", name]
            pod["status"] = {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            }
            pod["spec"] = {"nodeName": "node-1"} if assigned else {}
            self.put("pods", pod)

    def cost(self, name: str) -> str | None:
        with self.lock:
            return (self.objects["pods", name]["metadata"].get("annotations") or {}).get(COST)

    def on(self, pattern: str, *, times: int = 1) -> Callable[[Callable[[], Any]], None]:
        """Do something instead of answering requests that match, so often; None: and then answer."""

        def add(do: Callable[[], Any]) -> None:
            with self.lock:
                self.tricks.append(Trick(re.compile(pattern), times, do))

        return add

    def refuse(
        self, pattern: str, code: int, *, times: int = 1, headers: Mapping[str, str] | None = None, message: str = "no"
    ) -> None:
        self.on(pattern, times=times)(lambda: Refusal(code, "Refused", message, headers))

    def hang(self, pattern: str, *, times: int = 1, passes: Callable[[], None] | None = None) -> None:
        """Answer nothing until the test is over. `passes`: moves the client's clock beyond its patience meanwhile: the
        client is shown one byte, and finds that its time is up, however the machine's own time goes."""
        if passes is None:
            self.on(pattern, times=times)(lambda: self.over.wait(30) and None)
        else:
            self.on(pattern, times=times)(lambda: Drip("head", 1, passes, ends=False))

    # --- the controllers ----------------------------------------------------------------------------------------

    def tell(self) -> None:
        """The controllers hear of pods as they are now."""
        with self.lock:
            self.heard = {name: copy.deepcopy(each) for (kind, name), each in self.objects.items() if kind == "pods"}

    def reconcile(self) -> None:
        """They make the number of pods what the specification says, by what they have heard of pods."""
        with self.lock:
            for (resource, name), document in list(self.objects.items()):
                if resource in ("deployments", "statefulsets"):
                    self._reconcile(resource, name, document)

    def _reconcile(self, resource: str, name: str, document: Document) -> None:
        wanted = document["spec"]["replicas"]
        heard = [each for each in self.heard.values() if _label(each, "owner") == name]
        if resource == "statefulsets":
            start = (document["spec"].get("ordinals") or {}).get("start", 0)
            names = {f"{name}-{number}" for number in range(start, start + wanted)}
            for pod in heard:
                if pod["metadata"]["name"] not in names:
                    self._delete(pod["metadata"]["name"])
            for missing in sorted(names - {pod["metadata"]["name"] for pod in heard}):
                self._create(missing, name, {"kind": "StatefulSet", "name": name, "controller": True}, {})
        else:
            heard.sort(key=self._removal)
            for pod in heard[: max(len(heard) - wanted, 0)]:
                self._delete(pod["metadata"]["name"])
            owner = {"kind": "ReplicaSet", "name": f"{name}-7c9f", "controller": True}
            for _ in range(wanted - len(heard)):
                pod = f"{name}-7c9f-{next(self.seconds):05d}"
                self._create(pod, name, owner, {"pod-template-hash": "7c9f"})
        self._status(resource, name, document, wanted)

    def _status(self, resource: str, name: str, document: Document, wanted: int) -> None:
        pods = [self.objects["pods", pod] for pod in self.pods_of(name)]
        status = {
            "observedGeneration": document["metadata"].get("generation", 1),
            "replicas": len(pods),
            "updatedReplicas": len(pods),
            "readyReplicas": sum(_ready(pod) for pod in pods),
        }
        if document.get("status") != status:
            document["status"] = status
            self.put(resource, document)

    def _removal(self, pod: Document) -> tuple[Any, ...]:
        """Lower goes first: kubernetes/pkg/controller, ActivePodsWithRanks."""
        phase = {"Pending": 0, "Unknown": 1, "Running": 2}[pod["status"]["phase"]]
        cost = int((pod["metadata"].get("annotations") or {}).get(COST, "0"))
        return bool(pod["spec"].get("nodeName")), phase, _ready(pod), cost, not self.grudge(pod["metadata"]["name"])

    def _create(self, name: str, owner: str, reference: Document, labels: Mapping[str, str]) -> None:
        moment = next(self.seconds)
        body = {
            "metadata": {
                "name": name,
                "labels": {"owner": owner, **labels},
                "ownerReferences": [reference],
                "creationTimestamp": f"2026-01-01T{moment // 3600:02d}:{moment // 60 % 60:02d}:{moment % 60:02d}Z",
            },
            "spec": {},
            "status": {"phase": "Pending"},
        }
        self.put("pods", {"apiVersion": "v1", "kind": "Pod", **body})

    def _delete(self, name: str) -> None:
        if self.objects.pop(("pods", name), None) is not None:
            self.deleted.append(name)

    # --- requests -----------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Document:
        """Raises Refusal."""
        url = urlsplit(target)
        who = self._who(headers)
        data = _body(method, headers, body)
        if url.path == REVIEWS:
            return self._review(who, data)
        found = PATH.fullmatch(url.path)
        key = (found["group"] or "", found["resource"]) if found else ("", "")
        if found is None or key not in KINDS or found["namespace"] != NAMESPACE or found["sub"] not in (None, "scale"):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "GET": "get" if found["name"] else "list"}[method]
        whole = found["resource"] + (f"/{found['sub']}" if found["sub"] else "")
        self._allow(who, f"{verb} {whole}{'.' + key[0] if key[0] else ''}")
        with self.lock:
            return copy.deepcopy(self._do(verb, found, KINDS[key], url.query, data, headers))

    def _who(self, headers: Mapping[str, str]) -> str:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        self.callers.append(token)
        if self.rights and token not in self.rights:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return token

    def _allow(self, who: str, wanted: str) -> None:
        if self.rights and not {wanted, "*"} & self.rights[who]:
            raise Refusal(403, "Forbidden", f'User "{who}" cannot {wanted} in the namespace "{NAMESPACE}"')

    def _review(self, who: str, data: Document) -> Document:
        asked = data["spec"]["resourceAttributes"]
        whole = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
        right = f"{asked['verb']} {whole}{'.' + asked['group'] if asked.get('group') else ''}"
        allowed = not self.rights or bool({right, "*"} & self.rights[who])
        return {**data, "status": {"allowed": allowed and asked.get("namespace") == NAMESPACE}}

    def _do(
        self, verb: str, found: re.Match[str], kind: str, query: str, data: Document, headers: Mapping[str, str]
    ) -> Document:
        resource, name, sub = found["resource"], found["name"], found["sub"]
        if verb == "list":
            matches = _selector(parse_qs(query).get("labelSelector", [""])[0])
            items = [each for (own, _), each in self.objects.items() if own == resource and matches(each)]
            return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
        if verb == "create":
            return self._new(resource, kind, data)
        if (resource, name) not in self.objects:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
        now = self.objects[resource, name]
        if verb == "get":
            return _scale(now) if sub else now
        _same(kind if sub is None else "Scale", name, data)
        if verb == "patch":
            if headers.get("Content-Type") != "application/merge-patch+json":
                raise Refusal(415, "UnsupportedMediaType", f"not understood here: {headers.get('Content-Type')}")
            changed = _merged(_scale(now) if sub else now, data)
        else:
            changed = data
        version = (data.get("metadata") or {}).get("resourceVersion")
        if verb == "update" and not version:
            _invalid(f"{resource}: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
        if version and version != now["metadata"]["resourceVersion"]:
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; please apply '
                "your changes to the latest version and try again",
            )
        return self._rescaled(resource, now, changed) if sub else self._changed(resource, kind, now, changed)

    def _new(self, resource: str, kind: str, data: Document) -> Document:
        if resource != "leases":
            raise Refusal(405, "MethodNotAllowed", "create is not for tests")
        metadata = data.get("metadata") or {}
        _same(kind, metadata.get("name"), data)
        if not metadata.get("name"):
            _invalid("metadata.name: Required value: name or generateName is required")
        if metadata.get("resourceVersion"):
            raise Refusal(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if (resource, metadata["name"]) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists')
        _check_lease(data)
        return self.put(resource, copy.deepcopy(data))

    def _changed(self, resource: str, kind: str, now: Document, changed: Document) -> Document:
        if kind == "Lease":
            _check_lease(changed)
        elif kind == "Pod":
            _check_pod(changed)
        else:
            raise Refusal(405, "MethodNotAllowed", "the size is written to /scale")
        uid = changed["metadata"].get("uid", now["metadata"]["uid"])
        if uid != now["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "Precondition failed: UID in precondition")
        changed["metadata"]["uid"] = uid
        return self.put(resource, changed)

    def _rescaled(self, resource: str, now: Document, changed: Document) -> Document:
        _check(changed)
        size = (changed.get("spec") or {}).get("replicas", 0)
        if not isinstance(size, int) or isinstance(size, bool):
            raise Refusal(400, "BadRequest", "cannot unmarshal replicas into Go struct field ScaleSpec of type int32")
        if size < 0:
            _invalid("spec.replicas: Invalid value: must be greater than or equal to 0")
        if size != now["spec"]["replicas"]:
            now["spec"]["replicas"] = size
            now["metadata"]["generation"] += 1
            self.put(resource, now)
        return _scale(now)


class _Handler(BaseHTTPRequestHandler):
    api: KubeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {self.path}"
        try:
            with self.api.lock:
                self.api.requests.append(request)
                trick = next((one for one in self.api.tricks if one.times and one.pattern.search(request)), None)
                if trick is not None:
                    trick.times -= 1
            done = trick.do() if trick is not None else None
            if isinstance(done, Refusal):
                raise done
            if isinstance(done, tuple):
                self._send(*done)
                return
            if isinstance(done, Drip):
                self._drip(done)
                return
            document = self.api.answer(self.command, self.path, self.headers, body)
            self._send(201 if self.command == "POST" else 200, _JSON, json.dumps(document).encode())
        except Refusal as refusal:
            self._send(refusal.code, {**_JSON, **refusal.headers}, json.dumps(refusal.document()).encode())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = handle_one

    def _send(self, code: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self, drip: Drip) -> None:
        before, slow, after = drip.parts()
        self.wfile.write(before)
        for byte in slow:
            drip.each()
            self.wfile.write(bytes([byte]))
            self.api.over.wait(0.01 if drip.ends else 30)
        if drip.ends:
            self.wfile.write(after)
        else:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Not to standard error."""


_JSON = {"Content-Type": "application/json"}


def _body(method: str, headers: Mapping[str, str], body: bytes) -> Document:
    if method == "GET":
        return {}
    kind = headers.get("Content-Type", "")
    if method != "PATCH" and kind != "application/json":
        raise Refusal(415, "UnsupportedMediaType", f"not understood: {kind}")
    try:
        data = json.loads(body)
    except ValueError:
        raise Refusal(400, "BadRequest", "the object provided is unrecognized") from None
    if not isinstance(data, dict):
        raise Refusal(400, "BadRequest", "the object provided is unrecognized")
    return data


def _same(kind: str, name: str | None, data: Document) -> None:
    if data.get("kind", kind) != kind:
        raise Refusal(400, "BadRequest", f"{data['kind']} does not match the expected {kind}")
    metadata = data.get("metadata") or {}
    if metadata.get("name", name) != name:
        raise Refusal(400, "BadRequest", "the name of the object does not match the name on the URL")
    if metadata.get("namespace", NAMESPACE) != NAMESPACE:
        raise Refusal(400, "BadRequest", "the namespace of the provided object does not match the namespace sent")


def _check(document: Document) -> None:
    """By the strict schema of a release."""
    try:
        kubernetes_validate.validate(document, RELEASE, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise Refusal(400, "BadRequest", f"strict decoding error: {error.message}") from None


def _check_lease(data: Document) -> None:
    _check(data)
    spec = data.get("spec") or {}
    for name, value in spec.items():
        wanted = LEASE_FIELDS.get(name)
        if wanted is None:
            raise Refusal(400, "BadRequest", f'strict decoding error: unknown field "spec.{name}"')
        if wanted == "time" and not MICRO_TIME.fullmatch(str(value)):
            raise Refusal(
                400,
                "BadRequest",
                f'Lease in version "v1" cannot be handled as a Lease: parsing time "{value}" as '
                '"2006-01-02T15:04:05.000000Z07:00": cannot parse as ".000000"',
            )
        if isinstance(wanted, type) and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise Refusal(400, "BadRequest", f"json: cannot unmarshal into Go struct field LeaseSpec.spec.{name}")
    if spec.get("leaseDurationSeconds", 1) <= 0:
        _invalid("spec.leaseDurationSeconds: Invalid value: must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        _invalid("spec.leaseTransitions: Invalid value: must be greater than or equal to 0")


def _check_pod(pod: Document) -> None:
    annotations = pod["metadata"].get("annotations") or {}
    if not all(isinstance(value, str) for value in annotations.values()):
        raise Refusal(400, "BadRequest", "cannot unmarshal number into Go struct field ObjectMeta.annotations")
    cost = annotations.get(COST, "0")
    if not re.fullmatch(r"0|-?[1-9]\d*", cost) or not -(2**31) <= int(cost) < 2**31:
        _invalid(f"metadata.annotations[{COST}]: Invalid value: must be a 32bit integer")


def _invalid(message: str) -> None:
    raise Refusal(422, "Invalid", message)


def _merged(now: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(now) if isinstance(now, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _scale(document: Document) -> Document:
    metadata = document["metadata"]
    labels = document["spec"]["selector"]["matchLabels"]
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {each: metadata[each] for each in ("name", "namespace", "uid", "resourceVersion")},
        # `omitempty`: a size of zero is not in the answer
        "spec": {"replicas": document["spec"]["replicas"]} if document["spec"]["replicas"] else {},
        "status": {
            "replicas": (document.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={value}" for key, value in labels.items()),
        },
    }


def _selector(text: str) -> Callable[[Document], bool]:
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    for part in re.split(r",(?![^(]*\))", text) if text else []:
        if found := re.fullmatch(r"([\w./-]+)=={0,1}([\w.-]*)", part):
            tests.append(lambda labels, key=found[1], value=found[2]: labels.get(key) == value)
        elif found := re.fullmatch(r"([\w./-]+) (in|notin) \(([\w.,-]+)\)", part):
            key, values, within = found[1], set(found[3].split(",")), found[2] == "in"
            tests.append(lambda labels, k=key, v=values, w=within: (labels.get(k) in v) == w)
        elif found := re.fullmatch(r"(!?)([\w./-]+)", part):
            tests.append(lambda labels, key=found[2], wanted=not found[1]: (key in labels) == wanted)
        else:
            raise Refusal(400, "BadRequest", f"unable to parse requirement: {part!r}")
    return lambda each: all(test(each["metadata"].get("labels") or {}) for test in tests)


def _label(document: Document, name: str) -> str | None:
    return (document["metadata"].get("labels") or {}).get(name)


def _ready(pod: Document) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions") or ()}
    return conditions.get("Ready") == "True"
