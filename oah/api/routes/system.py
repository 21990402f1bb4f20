"""/healthz, /readyz, /metrics: open to whoever can connect, they say nothing about sessions"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from oah.api.render import answer
from oah.api.state import Desk
from oah.errors import OahError

router = APIRouter(tags=["system"])


@router.get("/healthz")
async def healthz(desk: Desk) -> Response:
    """The process is alive: 503 when a worker inside it is stuck."""
    stuck = list(desk.context.stuck())
    if stuck:
        return answer({"status": "stuck", "reasons": stuck, "version": desk.context.version}, 503)
    return answer({"status": "ok", "version": desk.context.version})


@router.get("/readyz")
def readyz(desk: Desk) -> Response:
    """Whether the process can serve: every dependency answers, and it does not go away."""
    checks: dict[str, str] = {}
    for name, check in desk.context.ready.items():
        try:
            check()
        except OahError as error:
            checks[name] = error.message
        else:
            checks[name] = "ok"
    for component in desk.components:
        if component.failure is not None:
            checks[component.name] = "has failed"
    ready = not desk.stopping.is_set() and all(state == "ok" for state in checks.values())
    document = {
        "status": "ready" if ready else "not_ready",
        "code": "ready" if ready else "unavailable",
        "detail": "ready" if ready else _why(checks, stopping=desk.stopping.is_set()),
        "draining": desk.stopping.is_set(),
        "checks": checks,
    }
    return answer(document, 200) if ready else answer(document, 503, {"retry-after": "1"})


def _why(checks: dict[str, str], *, stopping: bool) -> str:
    if stopping:
        return "draining"
    return "; ".join(f"{name}: {state}" for name, state in checks.items() if state != "ok")


@router.get("/metrics")
async def metrics(desk: Desk) -> Response:
    """Every figure of this process, for Prometheus."""
    body, content_type = desk.context.exposition()
    return Response(body, media_type=content_type)
