"""Sections of what a fleet lives in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from oah.core.model.drain import AtDeadline
from oah.settings.section import PoolName, Section


class PoolScaleSettings(Section):
    """What is different for one pool; the rest is as ``scale`` and ``kubernetes`` say."""

    minimum: int | None = Field(default=None, ge=0)
    maximum: int | None = Field(default=None, ge=0)
    slots: int | None = Field(default=None, ge=1)
    """Of each of its workers; None: ``worker.slots``."""
    per_worker: int | None = Field(default=None, ge=1)
    target_wait_seconds: float | None = Field(default=None, gt=0)
    drain_seconds: float | None = Field(default=None, gt=0)
    drain_then: AtDeadline | None = None
    kind: Literal["Deployment", "StatefulSet"] | None = None
    workload: str | None = None
    selector: str | None = None


class ScaleSettings(Section):
    """How large a pool is, and who makes it so. Read by whoever leads."""

    target: Literal["none", "processes", "kubernetes"] = "none"
    """``none``: what would be wanted is shown, and nothing is done. ``processes``: workers of this machine, under
    `oah up` or `oah worker supervise`. ``kubernetes``: a Deployment or StatefulSet."""
    pool: PoolName = "default"
    """The pool that is scaled, where ``pools`` names none."""
    pools: dict[PoolName, PoolScaleSettings] = Field(default_factory=dict)
    """Pools by name, each with what is different for it."""
    minimum: int = Field(default=1, ge=0)
    """Workers; 0: with nothing to do there is none."""
    maximum: int = Field(default=10, ge=0)
    per_worker: int | None = Field(default=None, ge=1)
    """Runs, waiting and running, that ask for one worker; None: as many as it has slots (``worker.slots``, which is to
    be set for the controller as for the workers)."""
    subagent_reserve: int = Field(default=1, ge=0)
    """Slots kept for runs of subagents while such wait."""
    busy_ratio: float = Field(default=0.75, ge=0, le=1)
    """So much of the slots in use, and ``oldest_wait_seconds`` reached: one worker more."""
    oldest_wait_seconds: float = Field(default=2, ge=0)
    target_wait_seconds: float | None = Field(default=None, gt=0)
    """The p95 of waiting that is aimed at; None: not looked at."""
    every_seconds: float = Field(default=5, ge=0.1)
    """Between two samples."""
    up_window: int = Field(default=2, ge=1)
    """Samples in a row that must ask for more."""
    down_window: int = Field(default=3, ge=1)
    up_cooldown_seconds: float = Field(default=1, ge=0)
    down_cooldown_seconds: float = Field(default=15, ge=0)
    """Since the last change of either kind."""
    memory_seconds: float = Field(default=600, ge=0)
    """How long a size that waiting times proved too small is not gone back to."""
    drain_seconds: float | None = Field(default=None, gt=0)
    """How long a worker that is to go may finish its runs; None: as long as they take."""
    drain_then: AtDeadline = AtDeadline.WAIT
    """What becomes of what still runs then."""
    patience_seconds: float = Field(default=30, ge=0)
    """One that is to go and works on for so long stays, when another is idle and can go instead."""
    missing_seconds: float = Field(default=60, gt=0)
    """One that has been silent for so long, and owns nothing, is believed to be gone."""

    @model_validator(mode="after")
    def _ordered(self) -> ScaleSettings:
        for pool, own in {self.pool: PoolScaleSettings(), **self.pools}.items():
            least = self.minimum if own.minimum is None else own.minimum
            most = self.maximum if own.maximum is None else own.maximum
            if least > most:
                raise ValueError(f"of pool {pool} the minimum, {least}, is more than the maximum, {most}")
        return self


class KubernetesSettings(Section):
    """The API server, for ``scale.target = kubernetes`` and ``controller.election = kubernetes``. Without ``api_url``
    and ``kubeconfig``: the service account of the pod, else $KUBECONFIG, else ~/.kube/config."""

    namespace: str | None = None
    """None: that of the pod, or of the context."""
    kind: Literal["Deployment", "StatefulSet"] | None = None
    """Of the workload that is scaled; None: whichever there is."""
    workload: str | None = None
    """Its name."""
    selector: str | None = None
    """Instead of a name: labels (``app=oah,process=worker``) that exactly one workload has."""
    lease: str = "oah-controller"
    """Name of the Lease of the election."""
    timeout_seconds: float = Field(default=3, gt=0, le=30)
    """Of every request as a whole, however slowly it is answered."""
    api_url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
