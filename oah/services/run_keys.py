"""Keys of runs: what the agent of an attempt proves itself with when it speaks of its own run.

``oahr.<run>.<attempt>.<mac>``: the mac is HMAC-SHA256 over run and attempt under the claim token of the attempt, which
only its worker and SQL know. Nothing is stored and nothing has to be revoked: when the attempt is over its token is
gone from SQL, so its key opens nothing; the next attempt has another token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from oah.core.model.ids import RunId
from oah.errors import Unauthorized
from oah.ports.rows import RunFence
from oah.ports.steps import StepStore

PREFIX = "oahr."
LONGEST = 256


def run_key(fence: RunFence) -> str:
    """The key of an attempt."""
    return f"{PREFIX}{fence.run_id}.{fence.attempt}.{_mac(fence)}"


def is_run_key(secret: str) -> bool:
    """Whether a secret says of itself that it is a run's."""
    return secret.startswith(PREFIX)


def opened(store: StepStore, secret: str) -> RunFence:
    """The attempt whose key this is. Raises Unauthorized, also when it is over; Unavailable."""
    run_id = _run_of(secret)
    fence = store.active_fence(run_id) if run_id is not None else None
    if fence is None or not _opens(secret, fence):
        raise Unauthorized("the key of the run is unknown, or its attempt is over")
    return fence


def holding(store: StepStore, secrets: Iterable[str]) -> set[str]:
    """Those whose attempts are under way, of many. Raises Unavailable."""
    named = {secret: run_id for secret in secrets if (run_id := _run_of(secret)) is not None}
    fences = store.active_fences(set(named.values()))
    return {
        secret
        for secret, run_id in named.items()
        if (fence := fences.get(run_id)) is not None and _opens(secret, fence)
    }


def _run_of(secret: str) -> RunId | None:
    """The run that a key says it is of."""
    if len(secret) > LONGEST or not secret.isascii():
        return None
    run_id = secret.removeprefix(PREFIX).rpartition(".")[0].rpartition(".")[0]
    return RunId(run_id) if run_id else None


def _opens(secret: str, fence: RunFence) -> bool:
    rest, _, mac = secret.removeprefix(PREFIX).rpartition(".")
    return rest == f"{fence.run_id}.{fence.attempt}" and hmac.compare_digest(mac, _mac(fence))


def _mac(fence: RunFence) -> str:
    said = f"oah run key\n{fence.run_id}\n{fence.attempt}"
    return hmac.new(fence.token.encode(), said.encode(), hashlib.sha256).hexdigest()
