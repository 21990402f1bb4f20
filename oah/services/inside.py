"""What a run says of itself, judged and written; and what somebody says to a run that waits for it.

The callers are the agent of an attempt (by the key of its run) and ordinary keys. SQL is the truth; the broker hears of
new events best effort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from oah.core.model.ids import RunId
from oah.core.model.run import Run, Step
from oah.core.policy import admission
from oah.errors import Conflict, InDoubt, InvalidRequest, Unavailable
from oah.ports.broker import Broker
from oah.ports.commands import Delivery
from oah.ports.steps import Inside, NewStep, StepKind, StepOutcome, Told
from oah.ports.store import Store
from oah.services import steer

NAME_BYTES = 200
REASON_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Speaking:
    """One caller's words about one run. Raises what the store's ``begin_step`` raises, and InvalidRequest."""

    store: Store
    broker: Broker
    rules: admission.Rules
    inside: Inside

    def begin(self, kind: str, name: str, *, timeout: float | None, data: Mapping[str, Any]) -> Step:
        """A step begins; ``timeout`` in seconds, None: the run's own limit of steps."""
        if kind not in (StepKind.TOOL, StepKind.MODEL, StepKind.STEP):
            raise InvalidRequest(f"'{kind}' is no kind of step", hint="tool, model or step")
        name = admission.clean(name, what="name", limit=NAME_BYTES, empty=False)
        limit = admission.duration(timeout, what="timeout_seconds", rules=self.rules)
        step = NewStep(StepKind(kind), name, limit, self._document(data))
        return self.store.begin_step(self.inside, step)

    def end(self, number: int, *, failed: bool, data: Mapping[str, Any]) -> Step:
        """A step has ended."""
        outcome = StepOutcome.FAILED if failed else StepOutcome.COMPLETED
        return self.store.end_step(self.inside, number, outcome, self._document(data))

    def progress(self, text: str | None, percent: float | None) -> Told:
        """A sign of life; the event carries what is given."""
        if percent is not None and not 0 <= percent <= 100:
            raise InvalidRequest("percent is 0 to 100")
        if text is not None:
            admission.clean(text, what="text", limit=REASON_BYTES)
        data = {name: value for name, value in (("text", text), ("percent", percent)) if value is not None}
        return self._told(self.store.note_progress(self.inside, data))

    def wait(self, reason: str, *, timeout: float | None, children: bool = False) -> Told:
        """The run waits for a person or for something outside; its slot stays occupied. ``children``: for its own
        child runs; its slot is free meanwhile."""
        reason = admission.clean(reason, what="reason", limit=REASON_BYTES, empty=False)
        limit = admission.duration(timeout, what="timeout_seconds", rules=self.rules)
        told = self._told(self.store.wait_run(self.inside, reason, timeout=limit, children=children))
        if children and told.event_number and told.run.worker_id is not None:
            with contextlib.suppress(Unavailable):
                self.broker.look([told.run.worker_id], quick=True)
        return told

    def resume(self) -> Told:
        """What it waited for is over."""
        return self._told(self.store.resume_run(self.inside))

    def answer(self, text: str, request: RunId, pause: Callable[[], object], *, tries: int) -> tuple[Run, Delivery]:
        """Say it to the run that waits; the run afterwards. ``pause``: called between ``tries`` looks for the answer.

        Raises InvalidRequest, NotFound, Conflict (``run_not_waiting``, ``input_unsupported``), Unavailable: nothing was
        and will be said; InDoubt: it may have been, a repetition could answer another question.
        """
        admission.run_input(text, self.rules)
        admission.spoken(text)
        owner = self.store.ask_input(self.inside, text, request_id=request)
        if owner is not None:
            with contextlib.suppress(Unavailable):
                self.broker.look([owner], quick=True)
        try:
            delivery = self._answered(request, pause, tries)
            run = self.store.run(self.inside.run_id, self.inside.workspace_id)
        except Unavailable as error:
            if error.code == steer.SILENT:
                raise
            raise InDoubt(f"the text may have been said: {error.message}") from error
        if delivery is Delivery.MISSED:
            raise Conflict("the run did not wait any more; nothing was said", code="run_not_waiting")
        if delivery is Delivery.UNSUPPORTED:
            raise Conflict("the agent of this run takes no input while it works", code="input_unsupported")
        return run, delivery

    def _answered(self, request: RunId, pause: Callable[[], object], tries: int) -> Delivery:
        for _ in range(tries):
            found = steer.answer(self.store, request)
            if found is not None:
                return found
            pause()
        return steer.last_answer(self.store, request)

    def _told(self, told: Told) -> Told:
        if told.event_number:
            with contextlib.suppress(Unavailable):
                self.broker.publish([(told.run.session_id, told.event_number)])
        return told

    def _document(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return admission.document(data, what="data", rules=self.rules)


LOOK_EVERY = timedelta(seconds=0.1)
"""How often an answer to an input is looked for: people give few of them."""


def as_agent(inside: Inside) -> Inside:
    """What the agent says of its run is its own."""
    return inside if inside.fence is None else replace(inside, by="agent")
