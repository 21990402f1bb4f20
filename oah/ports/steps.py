"""Steps inside a run, its waits and what may not take longer."""

from __future__ import annotations

from typing import Protocol


class StepStore(Protocol):
    """Rows of ``run_steps``, and what a time-out ends."""
