"""What ``oah doctor`` asks a cluster about: shapes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """A workload that a controller scales, or why it is none (``trouble``). ``template``: the specification of its
    pods."""

    pool: str
    kind: str = ""
    name: str = ""
    size: int = 0
    ready: int = 0
    template: Mapping[str, Any] | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``missing``: rights that are needed and not given. ``elects``: a Lease of it elects; ``holder``: who is written
    there, None when nobody is."""

    server: str
    namespace: str
    missing: tuple[str, ...] = ()
    elects: bool = False
    holder: str | None = None
    workloads: tuple[WorkloadFacts, ...] = ()
