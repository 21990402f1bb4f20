"""/v1/rollouts: rolling restarts"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.responses import Response

from oah.api.auth import Caller, needs
from oah.api.render import Document, answer, moment, page, seconds
from oah.api.schemas import Body, Cursor, Filter, Limit, Named, Number
from oah.api.state import Desk
from oah.core.model.drain import AtDeadline, Drain
from oah.core.model.rollout import Member, Rollout, RolloutRules, Stage
from oah.core.model.workspace import Scope
from oah.core.policy import admission
from oah.services import rollouts as service

router = APIRouter(prefix="/v1", tags=["fleet"])

_ENDED = (Stage.DONE, Stage.SKIPPED)


def _said(text: str | None) -> str | None:
    return None if text is None else admission.clean(text, what="reason", limit=1000)


class RolloutBody(Body):
    """POST /rollouts. ``deadline_seconds`` and ``then`` as of a drain."""

    pool: str = Field(max_length=64)
    batch: int = Field(default=1, ge=1, le=1000)
    deadline_seconds: Number | None = Field(default=None, ge=0, le=604_800)
    then: AtDeadline | None = None
    settle_seconds: Number = Field(default=5, ge=0, le=3600)
    health_seconds: Number = Field(default=120, gt=0, le=86_400)
    version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$")
    reason: Annotated[str | None, AfterValidator(_said)] = None

    @property
    def rules(self) -> RolloutRules:
        """What is asked for."""
        deadline = self.deadline_seconds
        return RolloutRules(
            batch=self.batch,
            drain=Drain(None if deadline is None else timedelta(seconds=deadline), self.then),
            settle=timedelta(seconds=self.settle_seconds),
            health=timedelta(seconds=self.health_seconds),
            version=self.version,
        )


@router.get("/rollouts", **needs(Scope.OPERATE))
def rollouts(desk: Desk, caller: Caller, pool: Filter = None, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Rolling restarts, newest first."""
    found = desk.context.store.rollouts(pool=pool, cursor=cursor, limit=limit)
    return page((rollout_document(each, named=caller.admin) for each in found.items), found.next_cursor)


@router.post("/rollouts", status_code=201, **needs(Scope.ADMIN))
def restart(body: RolloutBody, desk: Desk, caller: Caller) -> Response:
    """Drain the workers of a pool a batch at a time and wait until their successors are healthy: of the same name on
    the same host, serving what they served, for `settle_seconds`, within `health_seconds`, of `version` if that is
    said. What fails ends the rollout and leaves the rest alone. Whoever supervises the worker processes starts them
    again."""
    context = desk.context
    found = service.restart(
        context.store, context.broker, context.ids, body.pool, body.rules, by=caller.by, reason=body.reason
    )
    return answer(rollout_document(found, named=caller.admin), 201)


@router.get("/rollouts/{rollout_id}", **needs(Scope.OPERATE))
def rollout(rollout_id: Named, desk: Desk, caller: Caller) -> Response:
    """One rolling restart: where each worker stands."""
    return answer(rollout_document(desk.context.store.rollout(rollout_id), named=caller.admin))


@router.post("/rollouts/{rollout_id}/abort", **needs(Scope.ADMIN))
def abort(rollout_id: Named, desk: Desk, caller: Caller) -> Response:
    """No more of it: workers that drain serve again, those that were not restarted never are."""
    context = desk.context
    ended = service.abort(context.store, context.broker, rollout_id, by=caller.by)
    return answer(rollout_document(ended, named=caller.admin))


def rollout_document(found: Rollout, *, named: bool) -> Document:
    """A rolling restart. ``named``: whether the caller may see who wanted it and why."""
    rules = found.rules
    return {
        "id": found.id,
        "pool": found.pool,
        "state": found.state,
        "batch": rules.batch,
        "deadline_seconds": seconds(rules.drain.deadline),
        "then": rules.drain.then,
        "settle_seconds": seconds(rules.settle),
        "health_seconds": seconds(rules.health),
        "version": rules.version,
        "workers": len(found.members),
        "done": found.count(_ENDED),
        "members": [_member(each) for each in found.members],
        "reason": found.reason if named else None,
        "error": found.error,
        "created_by": found.created_by if named else None,
        "created_at": moment(found.created_at),
        "updated_at": moment(found.updated_at),
        "ended_at": moment(found.ended_at),
    }


def _member(member: Member) -> Document:
    return {
        "worker_id": member.worker_id,
        "name": member.name,
        "host": member.host,
        "stage": member.stage,
        "since": moment(member.since),
        "version": member.version,
        "successor": member.successor,
        "successor_version": member.successor_version,
        "reason": member.reason,
    }
