"""The outbox of webhooks after the event: deliveries taken for a try, what came of it, and what operators see of that.

A try is counted and logged before anything is sent, so that one which a crash ends is in the log as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, case, exists, func, insert, or_, select, text, update

from oah.adapters.sql.aggregate import Aggregate, Transaction, picked
from oah.adapters.sql.columns import MICROSECOND, age_us, later, now, to_us
from oah.adapters.sql.governance_tables import DEAD, dead_letters, webhook_deliveries, webhooks
from oah.adapters.sql.letters import put
from oah.adapters.sql.pages import paged
from oah.adapters.sql.rows import moment, parsed, required
from oah.adapters.sql.webhook_bodies import body_of
from oah.adapters.sql.webhooks import PENDING, found_webhook, locked, written_down
from oah.core.model.event import EventType
from oah.core.model.ids import RunId, SessionId, WorkspaceId
from oah.core.policy.webhooks import TEST, Again, Delivered, GivenUp
from oah.errors import Conflict, NotFound
from oah.ports.dead_letters import LetterKind, LetterState
from oah.ports.rows import Page
from oah.ports.webhooks import LOGGED, Backlog, Delivery, DeliveryState, Round, Sending, Tried, Webhook

COLUMNS = (
    "id", "webhook_id", "workspace_id", "session_id", "number", "type", "run_id", "state", "attempts", "log", "next_at",
    "created_at", "ended_at",
)  # fmt: skip
SENDING = "sending"
INTERRUPTED = "interrupted"
"""What became of a try whose process did not live to record it."""
SYSTEM = "webhooks"
"""Who switches off."""


class Deliveries(Aggregate):
    """The aggregate of deliveries."""

    def deliveries(
        self,
        webhook_id: str,
        workspace_id: WorkspaceId | None,
        *,
        state: DeliveryState | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Delivery]:
        """Newest first. Raises NotFound (webhook)."""
        statement = select(*picked(webhook_deliveries, COLUMNS)).where(webhook_deliveries.c.webhook_id == webhook_id)
        if state is not None:
            statement = statement.where(webhook_deliveries.c.state == state.value)
        with self._database.read() as connection:
            found_webhook(connection, webhook_id, workspace_id)
            return paged(
                connection,
                statement,
                webhook_deliveries,
                delivery_of,
                lambda item: (item.created_at, item.id),
                cursor=cursor,
                limit=limit,
            )

    def delivery(self, webhook_id: str, delivery_id: str, workspace_id: WorkspaceId | None) -> Delivery:
        """Raises NotFound."""
        with self._database.read() as connection:
            found_webhook(connection, webhook_id, workspace_id)
            return _delivery(connection, webhook_id, delivery_id)

    def add_test_delivery(self, webhook_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Delivery:
        """Of no session; numbered by itself."""
        with self._database.write() as connection:
            webhook = _active(locked(connection, webhook_id, workspace_id))
            last = select(func.coalesce(func.max(webhook_deliveries.c.number), 0)).where(
                webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.session_id == ""
            )
            number = connection.execute(last).scalar_one() + 1
            delivery_id = f"{webhook_id.replace('wh_', 'whd_', 1)}-{number}"
            connection.execute(
                insert(webhook_deliveries).values(
                    id=delivery_id,
                    webhook_id=webhook_id,
                    workspace_id=webhook.workspace_id,
                    session_id="",
                    number=number,
                    type=TEST,
                    next_at=now(),
                    created_at=now(),
                )
            )
            _ask_now(connection, webhook_id)
            return _delivery(connection, webhook_id, delivery_id)

    def redeliver(self, webhook_id: str, delivery_id: str, workspace_id: WorkspaceId | None, *, by: str) -> Delivery:
        """Its dead letter, if it left one, is redriven with it."""
        with self._database.read() as connection:
            found_webhook(connection, webhook_id, workspace_id)
            session_id = _delivery(connection, webhook_id, delivery_id).session_id
        with self._transaction([session_id] if session_id else []) as transaction:
            deliver_again(transaction, delivery_id, by=by)
            _end_letter(transaction, delivery_id, session_id, by=by)
            return _delivery(transaction.connection, webhook_id, delivery_id)

    def due_webhooks(self, *, limit: int) -> Sequence[str]:
        """An index probe per active webhook."""
        statement = (
            select(webhooks.c.id)
            .where(
                webhooks.c.active,
                or_(webhooks.c.not_before.is_(None), webhooks.c.not_before <= now()),
                exists().where(
                    webhook_deliveries.c.webhook_id == webhooks.c.id, PENDING, webhook_deliveries.c.next_at <= now()
                ),
            )
            .order_by(webhooks.c.id)
            .limit(limit)
        )
        with self._database.read() as connection:
            return list(connection.execute(statement).scalars())

    def webhook_backlog(self) -> Backlog:
        """By the index of the pending ones."""
        oldest = func.min(webhook_deliveries.c.created_at)
        off = select(func.count()).select_from(webhooks).where(webhooks.c.off_reason.is_not(None)).scalar_subquery()
        with self._database.read() as connection:
            row = connection.execute(select(func.count(), age_us(oldest), off).where(PENDING)).one()
        return Backlog(int(row[0]), timedelta(microseconds=max(0, row[1] or 0)), int(row[2]))

    def take_deliveries(self, webhook_id: str, *, limit: int, hold: timedelta) -> Round:
        """Looks before it writes: mostly nothing is due. Then under the webhook's lock; what somebody is recording at
        this moment is passed over."""
        try:
            with self._database.read() as connection:
                wait = _wait(connection, found_webhook(connection, webhook_id, None))
            if wait is None or wait > timedelta(0):
                return Round(webhook_id=webhook_id, wait=wait)
            return self._taken(webhook_id, limit, hold)
        except NotFound:
            return Round(webhook_id=webhook_id)

    def _taken(self, webhook_id: str, limit: int, hold: timedelta) -> Round:
        with self._database.write() as connection:
            webhook = locked(connection, webhook_id, None)
            wait = _wait(connection, webhook)
            if wait is None or wait > timedelta(0):
                return Round(webhook_id=webhook_id, wait=wait)
            stamp: datetime = connection.execute(select(now())).scalar_one()
            rows = connection.execute(
                select(*picked(webhook_deliveries, (*COLUMNS, "body")))
                .where(webhook_deliveries.c.webhook_id == webhook_id, PENDING, webhook_deliveries.c.next_at <= now())
                .order_by(case((webhook_deliveries.c.type == TEST, 0), else_=1), webhook_deliveries.c.next_at)
                .limit(1 if webhook.failures else limit)
                .with_for_update(skip_locked=True)
            ).all()
            until = later((webhook.timeout + hold) // MICROSECOND)
            sendings = tuple(_taken(connection, row, stamp, until) for row in rows)
            secret = connection.execute(select(webhooks.c.secret).where(webhooks.c.id == webhook_id)).scalar_one()
        return Round(
            webhook_id=webhook_id,
            url=webhook.url,
            secret=secret,
            timeout=webhook.timeout,
            failures=webhook.failures,
            sendings=sendings,
            wait=None if sendings else timedelta(seconds=1),
        )

    def end_deliveries(self, webhook_id: str, tried: Sequence[Tried], *, pause: timedelta, off_after: int) -> bool:
        """Each under the count that its try was taken with."""
        dead = [each.sending.id for each in tried if isinstance(each.verdict, GivenUp) and each.sending.type != TEST]
        with self._transaction(self._sessions_of(dead)) as transaction:
            connection = transaction.connection
            try:
                webhook = locked(connection, webhook_id, None)
            except NotFound:
                return False
            for each in tried:
                _ended(transaction, webhook, each)
            return _health(connection, webhook, tried, pause, off_after)

    def _sessions_of(self, deliveries: Sequence[str]) -> list[SessionId]:
        if not deliveries:
            return []
        statement = select(webhook_deliveries.c.session_id).where(webhook_deliveries.c.id.in_(deliveries)).distinct()
        with self._database.read() as connection:
            return [SessionId(found) for found in connection.execute(statement).scalars() if found]


def deliver_again(transaction: Transaction, delivery_id: str, *, by: str) -> None:
    """Due now under its old id, with all its tries before it. Its session, if it has one, is locked.

    Raises NotFound, Conflict ``webhook_inactive``."""
    connection = transaction.connection
    named = select(webhook_deliveries.c.webhook_id).where(webhook_deliveries.c.id == delivery_id)
    webhook_id = connection.execute(named).scalar()
    if webhook_id is None:
        raise NotFound(f"no delivery {delivery_id}")
    webhook = _active(locked(connection, webhook_id, None))
    connection.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id == delivery_id)
        .values(state=DeliveryState.PENDING.value, attempts=0, next_at=now(), ended_at=None)
    )
    _ask_now(connection, webhook_id)
    written_down(connection, webhook, by, "redelivered", delivery_id=delivery_id)


def _ask_now(connection: Connection, webhook_id: str) -> None:
    """Somebody wants to see whether it works: not after a pause."""
    connection.execute(update(webhooks).where(webhooks.c.id == webhook_id).values(not_before=None))


def _active(webhook: Webhook) -> Webhook:
    if not webhook.active:
        raise Conflict(f"webhook {webhook.id} is switched off", code="webhook_inactive", hint="switch it on first")
    return webhook


def _wait(connection: Connection, webhook: Webhook) -> timedelta | None:
    """How long until there may be something to try; None: nothing is pending, or nobody is told."""
    if not webhook.active:
        return None
    mine = (webhook_deliveries.c.webhook_id == webhook.id, PENDING)
    earliest = select(func.min(webhook_deliveries.c.next_at)).where(*mine).scalar_subquery()
    row = connection.execute(
        select(age_us(earliest), age_us(webhooks.c.not_before)).where(webhooks.c.id == webhook.id)
    ).first()
    if row is None:  # deleted meanwhile
        return None
    due_us, left_alone_us = row
    ages: list[int | None] = [due_us, left_alone_us]
    if ages[0] is None:
        return None
    return timedelta(microseconds=max(0, *(-age for age in ages if age is not None)))


def _taken(connection: Connection, row: Any, stamp: datetime, until: Any) -> Sending:
    tries = row.attempts + 1
    log = [_interrupted(entry) for entry in parsed(row.log)]
    log.append({"try": tries, "at": _text(stamp), "outcome": SENDING})
    body = row.body or body_of(connection, row.id)
    connection.execute(
        update(webhook_deliveries)
        .where(webhook_deliveries.c.id == row.id)
        .values(attempts=tries, log=log[-LOGGED:], body=body, next_at=until)
    )
    return Sending(id=row.id, type=row.type, tries=tries, body=body, at=required(stamp))


def _interrupted(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "outcome": INTERRUPTED} if entry.get("outcome") == SENDING else dict(entry)


def _ended(transaction: Transaction, webhook: Webhook, tried: Tried) -> None:
    connection, sending = transaction.connection, tried.sending
    row = connection.execute(
        select(*picked(webhook_deliveries, (*COLUMNS, "body")))
        .where(
            webhook_deliveries.c.id == sending.id,
            PENDING,
            webhook_deliveries.c.attempts == sending.tries,
        )
        .with_for_update()
    ).first()
    if row is None:
        return
    log = [dict(entry) for entry in parsed(row.log)]
    if not log or log[-1].get("outcome") != SENDING:
        return  # another try of the same count: it was asked for again meanwhile
    values: dict[str, Any] = {}
    match tried.verdict:
        case Delivered():
            log[-1]["outcome"] = "delivered"
            values.update(state=DeliveryState.DELIVERED.value, ended_at=now())
        case Again(after):
            log[-1]["outcome"] = "failed"
            values.update(next_at=later(after // MICROSECOND))
        case GivenUp():
            log[-1]["outcome"] = "failed"
            values.update(state=DeliveryState.FAILED.value, ended_at=now())
    log[-1].update(tried.entry)
    connection.execute(
        update(webhook_deliveries).where(webhook_deliveries.c.id == sending.id).values(log=log, **values)
    )
    if isinstance(tried.verdict, GivenUp) and sending.type != TEST:
        _bury(transaction, webhook, row, tried.verdict, log[-1])


def _bury(transaction: Transaction, webhook: Webhook, row: Any, given_up: GivenUp, entry: Mapping[str, Any]) -> None:
    stamp = transaction.connection.execute(select(now())).scalar_one()
    session_id = SessionId(row.session_id) if row.session_id in transaction.sessions else None
    letter = {
        "id": f"dl_{row.id}.{to_us(required(stamp))}",
        "workspace_id": row.workspace_id,
        "kind": LetterKind.OUTBOX.value,
        "subject": row.id,
        "session_id": session_id,
        "code": f"webhook_{given_up.code}",
        # Who reads letters may not read webhooks, whose addresses often carry a secret: the host must do.
        "reason": f"{urlsplit(webhook.url).hostname} did not take it: {entry.get('error') or entry.get('status')}",
        "payload": {"webhook_id": webhook.id, "type": row.type, "body": row.body},
        "attempts": row.attempts,
    }
    if put(transaction, letter, first_at=moment(row.created_at)) and session_id is not None:
        data = {"dead_letter_id": letter["id"], "kind": letter["kind"], "code": letter["code"]}
        transaction.append_event(
            session_id,
            EventType.DEAD_LETTER_ADDED,
            run_id=None if row.run_id is None else RunId(row.run_id),
            data={**data, "attempts": row.attempts},
        )


def _end_letter(transaction: Transaction, delivery_id: str, session_id: SessionId | None, *, by: str) -> None:
    letter = transaction.connection.execute(
        update(dead_letters)
        .where(dead_letters.c.kind == LetterKind.OUTBOX.value, dead_letters.c.subject == delivery_id, text(DEAD))
        .values(state=LetterState.REDRIVEN.value, redriven_at=now(), redriven_by=by)
        .returning(dead_letters.c.id)
    ).scalar()
    transaction.letters[LetterKind.OUTBOX.value, "redriven"] += letter is not None
    if letter is not None and session_id in transaction.sessions:
        assert session_id is not None  # it is among the locked ones
        data = {"dead_letter_id": letter, "kind": LetterKind.OUTBOX.value, "by": by}
        transaction.append_event(session_id, EventType.DEAD_LETTER_REDRIVEN, data=data)


def _health(connection: Connection, webhook: Webhook, tried: Sequence[Tried], pause: timedelta, off_after: int) -> bool:
    """Count the round for or against the webhook. Whether it was switched off."""
    if any(isinstance(each.verdict, Delivered) for each in tried):
        if webhook.failures:
            values = {"failures": 0, "not_before": None}
            connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(**values))
        return False
    gone = any(isinstance(each.verdict, GivenUp) and each.verdict.gone for each in tried)
    if all(each.sending.type == TEST for each in tried) and not gone:
        return False
    failures = webhook.failures + 1
    off = webhook.active and (gone or failures >= off_after)
    change: dict[str, Any] = {"failures": failures, "not_before": later(pause // MICROSECOND)}
    if off:
        reason = "gone" if gone else "failing"
        change.update(active=False, off_reason=reason)
        written_down(connection, webhook, SYSTEM, "deactivated", url=webhook.url, reason=reason, failures=failures)
    connection.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(**change))
    return off


def _delivery(connection: Connection, webhook_id: str, delivery_id: str) -> Delivery:
    row = connection.execute(
        select(*picked(webhook_deliveries, COLUMNS)).where(
            webhook_deliveries.c.id == delivery_id, webhook_deliveries.c.webhook_id == webhook_id
        )
    ).first()
    if row is None:
        raise NotFound(f"no delivery {delivery_id}")
    return delivery_of(row)


def delivery_of(row: Sequence[Any]) -> Delivery:
    """A row in the order of COLUMNS."""
    (
        delivery_id, webhook_id, workspace_id, session_id, number, kind, run_id, state, tries, log, next_at,
        created_at, ended_at,
    ) = row  # fmt: skip
    return Delivery(
        id=delivery_id,
        webhook_id=webhook_id,
        workspace_id=WorkspaceId(workspace_id),
        session_id=SessionId(session_id) if session_id else None,
        number=number,
        type=kind,
        run_id=None if run_id is None else RunId(run_id),
        state=DeliveryState(state),
        tries=tries,
        log=tuple(parsed(log)),
        next_at=required(next_at),
        created_at=required(created_at),
        ended_at=moment(ended_at),
    )


def _text(stamp: Any) -> str:
    return required(stamp).isoformat(timespec="microseconds").replace("+00:00", "Z")
