"""What an attempt leaves beside its rows: where its recording and the rest of a long answer lie among the blobs.

Rows name the blob that counts. A lost attempt's recording, and the long answer of one that was tried again, are named
by no row; whoever removes a run finds them by these names.
"""

from __future__ import annotations

import re


def recording_key(run_id: str, attempt: int) -> str:
    """Of the recording of an attempt."""
    return f"recordings/{_part(run_id)}/{attempt}.cast"


def output_key(run_id: str, attempt: int) -> str:
    """Of an answer that is longer than its row takes."""
    return f"outputs/{_part(run_id)}/{attempt}.txt"


def prefixes(run_id: str) -> tuple[str, ...]:
    """Of all keys of a run."""
    return (f"recordings/{_part(run_id)}/", f"outputs/{_part(run_id)}/")


def archives(session_id: str) -> str:
    """Of all packed homes of a session."""
    return f"homes/{session_id}/"


def _part(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:120] or "_"
