"""Webhooks: where they may go, and who delivers them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from oah.adapters.http.sender import HttpCoreSender
from oah.bootstrap.kit import Kit, oah_version
from oah.core.policy import addresses, webhooks
from oah.ports.http import HttpSender
from oah.services.deliver import DeliverWebhook
from oah.services.webhooks import Limits
from oah.settings import Settings


def address_rules(settings: Settings) -> addresses.Rules:
    """Where this deployment may call to. Raises InvalidRequest for what is no network."""
    section = settings.webhooks
    return addresses.Rules(section.allow_private, addresses.networks(section.allowed_networks))


def http_sender(settings: Settings) -> HttpSender:
    """Calls to where users want them."""
    return HttpCoreSender(address_rules(settings))


def webhook_limits(settings: Settings) -> Limits:
    """What a webhook may be."""
    return Limits(address_rules(settings), timedelta(seconds=settings.webhooks.timeout_seconds))


def deliver_webhook(kit: Kit, *, going_on: Callable[[], bool]) -> DeliverWebhook:
    """The handler of the task."""
    section = kit.settings.webhooks
    rules = webhooks.Rules(
        tries=section.tries,
        first=timedelta(seconds=section.retry_seconds),
        longest=timedelta(seconds=section.longest_retry_seconds),
        longest_pause=timedelta(seconds=section.longest_pause_seconds),
    )
    return DeliverWebhook(
        kit.store,
        http_sender(kit.settings),
        kit.clock,
        kit.ids,
        kit.telemetry,
        rules,
        version=oah_version(),
        going_on=going_on,
    )
