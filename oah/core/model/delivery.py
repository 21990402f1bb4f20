"""How the delivery of a text to a program ended, as far as its terminal showed."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What is known of a text that was typed."""

    CONFIRMED = "confirmed"
    """It was seen to be taken."""
    UNVERIFIED = "unverified"
    """It was typed, and nothing says what became of it."""
    FAILED = "failed"
    """It did not appear, or was not taken."""
