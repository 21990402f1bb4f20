"""Whether the broker's data is the incarnation that SQL believes in (I9).

Missing, other and unknown ids are suspect, and so is a known id in a server that restarted: an old snapshot speaks
of the right epoch with yesterday's queues. Where the server hides its run id, or lives in process, the id alone counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from oah.core.model.epoch import EpochState, EpochView
from oah.core.model.ids import EpochId


class Suspicion(StrEnum):
    """Why an epoch is not believed; the label of `oah_epochs_minted_total`."""

    FIRST = "first"
    """SQL has none yet."""
    MISSING = "missing"
    """The broker has none: flushed, evicted or new."""
    OLDER = "older"
    """The broker has one that SQL has left behind: an old snapshot, or a leader that died between the stores."""
    UNKNOWN = "unknown"
    """The broker has one that SQL never knew: another deployment's data, or SQL went back in time."""
    SERVER_CHANGED = "server_changed"
    """The right id in a server that restarted or was replaced."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """Go on."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The right epoch, still rebuilding: whoever leads continues."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The leader mints a new epoch over `seen`."""

    why: Suspicion


Decision = Trusted | Unfinished | Suspect


def judge(view: EpochView, newest: EpochId | None, *, known: bool) -> Decision:
    """Compare what the broker says with the `newest` id of SQL; `known`: SQL has the broker's id among all it had."""
    if newest is None:
        return Suspect(Suspicion.FIRST)
    if view.id is None:
        return Suspect(Suspicion.MISSING)
    if view.id != newest:
        return Suspect(Suspicion.OLDER if known else Suspicion.UNKNOWN)
    if view.run_id is not None and view.server_run_id is not None and view.run_id != view.server_run_id:
        return Suspect(Suspicion.SERVER_CHANGED)
    if view.state is not EpochState.OPEN:
        return Unfinished()
    return Trusted()
