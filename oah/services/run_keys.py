"""Keys of runs: what the agent of an attempt proves itself with when it speaks of its own run.

``oahr.<run>.<attempt>.<mac>``: the mac is HMAC-SHA256 over run and attempt under the claim token of the attempt, which
only its worker and SQL know. Nothing is stored and nothing has to be revoked: when the attempt is over its token is
gone from SQL, so its key opens nothing; the next attempt has another token.
"""

from __future__ import annotations

import hashlib
import hmac

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
    if len(secret) > LONGEST or not secret.isascii():
        raise _unknown()
    run_id, _, rest = secret.removeprefix(PREFIX).rpartition(".")[0].rpartition(".")
    mac = secret.rpartition(".")[2]
    fence = store.active_fence(RunId(run_id)) if run_id else None
    if fence is None or rest != str(fence.attempt) or not hmac.compare_digest(mac, _mac(fence)):
        raise _unknown()
    return fence


def _mac(fence: RunFence) -> str:
    said = f"oah run key\n{fence.run_id}\n{fence.attempt}"
    return hmac.new(fence.token.encode(), said.encode(), hashlib.sha256).hexdigest()


def _unknown() -> Unauthorized:
    return Unauthorized("the key of the run is unknown, or its attempt is over")
