"""Calling hooks: whatever a hook does is an answer, and takes no longer than it may."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from oah.core.model.hook import Hook

EXCERPT_BYTES = 2_048
"""Of what a hook says: its beginning."""


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """`reason` None: it went well. Else a stable word: `timeout`, `exit_status`, `not_started`, `interrupted`,
    `http_status`, or the fault of an HTTP call (ports/http.py)."""

    reason: str | None
    message: str
    took: timedelta
    output: str = ""


class HookCaller(Protocol):
    """Safe to use from many threads."""

    def call(self, hook: Hook, facts: Mapping[str, str], *, stop: Callable[[], bool] = lambda: False) -> HookAnswer:
        """Call it with these facts: a command gets them as its environment (NAME → value), a URL as a JSON document
        (name → value). `stop`: asked a few times a second whether nobody needs the answer any more. Never raises."""
        ...


class NoHookCaller:
    """Where there are no hooks to be called."""

    def call(self, hook: Hook, facts: Mapping[str, str], *, stop: Callable[[], bool] = lambda: False) -> HookAnswer:
        """Nothing is called."""
        return HookAnswer("not_started", "hooks are not called here", timedelta(0))
