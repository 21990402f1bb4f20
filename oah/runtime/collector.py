"""The garbage collector of a process that starts.

What a program imports and builds at first stays for good. Looking through it again and again while it grows finds
nothing and takes a seventh of the start, so the collector stands still meanwhile, and never looks at it later.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def still() -> Iterator[None]:
    """No collections until the end of the block, or until ``set_apart``."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_apart() -> None:
    """Everything that there is now is not looked at any more; collections begin."""
    gc.freeze()
    gc.enable()
