"""Why a run timed out: one code per limit, the same in SQL, events, metrics and answers. The table with what each means
is docs/explanation/timeouts.md."""

from __future__ import annotations

from enum import StrEnum

from oah.core.model.run import RunError, StopReason


class TimeoutReason(StrEnum):
    """The error code of a run that ends as ``timed_out``."""

    RUN = "run_timeout"
    """One attempt took longer than the run's time-out."""
    DEADLINE = "deadline_exceeded"
    """The run's deadline passed, queued or active."""
    START = "start_timeout"
    """It was not started in time."""
    IDLE = "idle_timeout"
    """No progress for too long."""
    STEP = "step_timeout"
    """A step in it took too long."""
    MODEL = "model_timeout"
    """A call of a model in it took too long."""
    WAIT = "wait_timeout"
    """What it waited for (an answer, for one) did not come in time."""

    @property
    def error(self) -> RunError:
        """As an error of a run."""
        return RunError(self.value, _SAID[self])

    @classmethod
    def of_stop(cls, reason: StopReason | None) -> TimeoutReason | None:
        """The limit behind a stop; None: somebody asked for it."""
        match reason:
            case StopReason.STEP_TIMEOUT:
                return cls.STEP
            case StopReason.MODEL_TIMEOUT:
                return cls.MODEL
            case StopReason.WAIT_TIMEOUT:
                return cls.WAIT
            case _:
                return None


_SAID = {
    TimeoutReason.RUN: "no end within the run's time-out",
    TimeoutReason.DEADLINE: "the run's deadline passed",
    TimeoutReason.START: "not started within its start time-out",
    TimeoutReason.IDLE: "no progress within the idle time-out",
    TimeoutReason.STEP: "a step took longer than its time-out",
    TimeoutReason.MODEL: "a call of a model took longer than its time-out",
    TimeoutReason.WAIT: "what it waited for did not come in time",
}
