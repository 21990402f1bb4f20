"""Retries, as the worker that saw an attempt fail plans them.

The plan travels with the outcome, also to this machine's disk: whoever delivers it later settles a retry. SQL has the
last word: a cancel that came meanwhile, or the deadline, makes the outcome the run's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from oah.core.model.retry import NO_WISH, RetryWish, retry_wish
from oah.core.model.run import Run
from oah.core.policy.retry import GiveUp, Retry, Rules, View, decide, merged
from oah.errors import InvalidRequest
from oah.ports.store import RetryPlan, Settlement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanRetries:
    """``rules``: of a profile, over those of the deployment. ``chance``: 0 to 1."""

    rules: Callable[[str], Rules]
    chance: Callable[[], float]

    def __call__(self, settlement: Settlement, run: Run, profile: str, *, left: timedelta | None) -> Settlement:
        """The settlement, with a plan if there is to be another attempt. ``left``: until the run's deadline."""
        rules = merged(self.rules(profile), _wish_of(run))
        error = settlement.outcome.error
        view = View(
            status=settlement.outcome.status,
            error_code=None if error is None else error.code,
            failed_attempts=run.failed_attempts,
            left=left,
        )
        match decide(view, rules, chance=self.chance()):
            case Retry(delay=delay):
                return replace(settlement, retry=RetryPlan(delay, rules.max_retries))
            case GiveUp():
                return settlement


def _wish_of(run: Run) -> RetryWish:
    try:
        wish = NO_WISH if run.retry is None else retry_wish(run.retry)
    except InvalidRequest as error:  # accepted by a release that let more through
        log.warning("run %s: %s", run.id, error.message)
        wish = NO_WISH
    return wish if run.max_retries is None else replace(wish, max_retries=run.max_retries)
