"""Sections of what a fleet lives in."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from oah.settings.section import Section


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
    """Of connecting, of sending and of each wait for an answer, in every request."""
    api_url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
