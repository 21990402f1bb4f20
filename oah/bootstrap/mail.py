"""The post of a process, and its watch over the mailboxes that somebody reads here."""

from __future__ import annotations

from datetime import timedelta

from oah.bootstrap.kit import Kit
from oah.core.model.ids import EpochId
from oah.errors import OahError
from oah.runtime.batches import Batches
from oah.runtime.mail_watch import MailWatch
from oah.services.post import MailRules, Post
from oah.services.wake import TellAgents
from oah.settings import Settings


def mail_rules(settings: Settings) -> MailRules:
    """What the settings say of mailboxes."""
    mail = settings.mail
    return MailRules(
        default_ttl=timedelta(seconds=mail.default_ttl_seconds) if mail.default_ttl_seconds else None,
        max_ttl=timedelta(seconds=mail.max_ttl_seconds),
        max_payload_bytes=mail.max_payload_bytes,
        max_messages=mail.max_messages,
        max_mailboxes=mail.max_mailboxes,
        session_messages=mail.session_messages,
        message_ttl=timedelta(seconds=mail.message_ttl_seconds),
        dedup_window=timedelta(seconds=mail.dedup_seconds),
        wake_pause=timedelta(seconds=mail.wake_pause_seconds),
        lease=timedelta(seconds=mail.lease_seconds),
        max_attempts=mail.max_attempts,
    )


def post_of(kit: Kit) -> tuple[Post, MailWatch]:
    """One of each per process. Somebody has to call ``MailWatch.step`` again and again."""
    watch = MailWatch(kit.store, kit.broker, kit.clock)
    post = Post(
        kit.store,
        kit.broker,
        kit.ids,
        mail_rules(kit.settings),
        kit.telemetry,
        watch=watch,
        for_agents=tell_agents(kit),
        together=Batches,
    )
    return post, watch


def tell_agents(kit: Kit) -> TellAgents:
    """What follows a message for an agent."""

    def epoch() -> EpochId | None:
        try:
            return kit.epochs.current()
        except OahError:
            return None

    return TellAgents(kit.store, kit.broker, epoch)
