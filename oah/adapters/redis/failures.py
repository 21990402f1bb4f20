"""What Redis and its client library raise, as the errors of this project."""

from __future__ import annotations

from redis import exceptions as foreign

from oah.errors import Backpressure, Broken, OahError, Unavailable

_UNWELL = {
    "READONLY": "connection",
    "LOADING": "loading",
    "BUSY": "other",
    "MISCONF": "other",
    "MASTERDOWN": "connection",
    "NOREPLICAS": "connection",
    "CLUSTERDOWN": "moved",
    "MOVED": "moved",
    "ASK": "moved",
    "TRYAGAIN": "moved",
    "NOAUTH": "connection",
    "NOPERM": "connection",
    "WRONGPASS": "connection",
    "UNBLOCKED": "other",
}
"""First words of error answers that pass, or that an operator must end, and the kind they are counted as."""


def kind(error: Exception) -> str:
    """The label under which it is counted."""
    if isinstance(error, foreign.TimeoutError):
        return "timeout"
    if isinstance(error, foreign.BusyLoadingError):
        return "loading"
    if isinstance(error, foreign.OutOfMemoryError):
        return "backpressure"
    if isinstance(error, foreign.NoScriptError):
        return "noscript"
    if isinstance(error, foreign.ResponseError):
        return _UNWELL.get(first_word(error), "other")
    return "connection"


def first_word(error: Exception) -> str:
    """The code of an error answer; the client library cuts it off where it has a class for it."""
    if isinstance(error, foreign.ReadOnlyError):
        return "READONLY"
    if isinstance(error, foreign.OutOfMemoryError):
        return "OOM"
    if isinstance(error, foreign.NoPermissionError):
        return "NOPERM"
    return str(error).split(" ", 1)[0].rstrip(":")


def misfit(answer: object) -> bool:
    """Whether the key holds something of another type than the command is for."""
    return isinstance(answer, foreign.ResponseError) and first_word(answer) == "WRONGTYPE"


def translate(error: Exception, *, address: str) -> OahError:
    """Connection trouble → Unavailable, over maxmemory → Backpressure, an error of a script → Broken (a bug)."""
    if isinstance(error, OahError):
        return error
    if isinstance(error, foreign.OutOfMemoryError):
        return Backpressure("Redis is over maxmemory", hint="raise maxmemory or let the workers finish; it is repeated")
    if isinstance(error, foreign.AuthenticationError):
        return Unavailable(f"Redis at {address} refuses the credentials: {error}", code="redis_refused")
    if isinstance(error, foreign.TimeoutError):
        return Unavailable(f"Redis at {address} did not answer in time", code="redis_timeout")
    if isinstance(error, foreign.ResponseError):
        if first_word(error) in _UNWELL:
            return Unavailable(f"Redis at {address}: {error}", code="redis_unwell")
        return Broken(f"Redis at {address} answered: {error}")
    return Unavailable(f"Redis at {address} cannot be reached: {error}", code="redis_unreachable")
