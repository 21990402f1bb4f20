"""What tests share: waiting for a condition with a deadline, and the servers they run against.

No test sleeps to let something happen; it waits here, and fails with what it was waiting for.
"""

from tests.support.waiting import eventually

__all__ = ["eventually"]
