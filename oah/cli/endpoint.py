"""Reading a process's own small HTTP endpoint (readiness, a controller's pages), past any proxy of the environment."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from oah.errors import Broken, Unavailable

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""These are processes of this deployment: a proxy for the wide world does not know them."""


def answers(url: str, *, timeout: float) -> bool:
    """Whether a GET is answered with success."""
    try:
        with _DIRECT.open(url, timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def document(url: str, *, timeout: float, hint: str) -> Any:
    """The JSON document there. Raises Unavailable with ``hint`` when nobody answers, Broken when it is none."""
    try:
        with _DIRECT.open(url, timeout=timeout) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unavailable(f"no answer from {url}: {reason}", hint=hint) from error
    except ValueError as error:
        raise Broken(f"{url} did not answer with JSON", hint=hint) from error
