"""Claim: take sessions for idle slots.

Redis first, and only here. The request id is entered into the worker's table before it is sent and stays pending until
an answer came, so that a lost reply is repeated (the same request answers again), never popped twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from oah.errors import Backpressure, EpochMismatch, Rebuilding, Unavailable
from oah.ports.broker import ClaimReply, ClaimRequest, Dispatch
from oah.ports.epochs import EpochSource
from oah.ports.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class ClaimSessions:
    """One claim. Raises what the broker raises; on ``EpochMismatch`` the epoch has been read again."""

    broker: Dispatch
    epochs: EpochSource
    telemetry: Telemetry

    def __call__(self, request: ClaimRequest) -> ClaimReply:
        """Send the request, or repeat it: both give the same sessions."""
        try:
            reply = self.broker.claim(self.epochs.current(), request)
        except EpochMismatch:
            self.telemetry.count("oah_claims_total", answer="epoch")
            self.epochs.refresh()
            raise
        except Rebuilding:
            self.telemetry.count("oah_claims_total", answer="rebuilding")
            raise
        except (Backpressure, Unavailable):
            self.telemetry.count("oah_claims_total", answer="error")
            raise
        self.telemetry.count("oah_claims_total", answer="ok" if reply.sessions else "empty")
        for claimed in reply.sessions:
            self.telemetry.count("oah_sessions_claimed_total", kind="parked" if claimed.parked else "new")
        return reply
