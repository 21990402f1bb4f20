"""``oah-gateway``: mailboxes for clients that speak NATS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from oah.api.auth import is_loopback
from oah.bootstrap.kit import Kit, needs_a_server, oah_version, open_kit, run
from oah.bootstrap.mail import post_of
from oah.core.model.ids import WorkspaceId
from oah.errors import OahError
from oah.gateway.access import Access
from oah.gateway.hub import Hub
from oah.gateway.mail import Mail
from oah.gateway.rules import GatewayRules
from oah.gateway.server import GatewayServer, bind, tls_context
from oah.ports.broker import BrokerOptions
from oah.runtime.component import Component
from oah.runtime.group import Group
from oah.runtime.loop import Loop
from oah.runtime.prelude import Prelude
from oah.runtime.probe import Probe
from oah.settings import AuthMode, Settings


def gateway_process(settings: Settings) -> int:
    """``oah-gateway``. Returns the exit code."""
    needs_a_server(settings, "oah-gateway")
    rules = gateway_rules(settings)
    listener, tls = bind(rules), tls_context(rules)
    kit = open_kit(settings, process="gateway")
    prelude = Prelude(
        "gateway-prelude", kit.store.migrate, lambda: gateway_of(kit, rules, listener, tls), clock=kit.clock
    )
    probe = Probe(
        host=settings.gateway.host,
        port=settings.gateway.probe_port,
        reasons=lambda: _reasons(kit, prelude),
        metrics=kit.telemetry.exposition,
    )
    return run(kit, Group([probe, prelude], clock=kit.clock), grace=timedelta(seconds=5))


def gateway_of(
    kit: Kit, rules: GatewayRules, listener: socket.socket, tls: ssl.SSLContext | None
) -> Sequence[Component]:
    """The components of a gateway: who watches the mailboxes, and the server. Raises NotFound for a workspace."""
    rules = replace(rules, workspace=kit.store.workspace(rules.workspace).id)
    post, watch = post_of(kit)
    block = BrokerOptions().longest_block

    def make() -> Hub:
        mail = Mail(post, kit.store, watch, kit.clock, kit.ids, kit.telemetry)
        return Hub(mail=mail, access=Access(kit.store, kit.clock, rules), rules=rules, ids=kit.ids)

    def listen() -> timedelta:
        watch.step(block)
        return timedelta(0)

    watching = Loop("mail_watch", listen, interval=block, clock=kit.clock, telemetry=kit.telemetry, floor=timedelta(0))
    return [watching, GatewayServer(rules, listener, tls, make)]


def gateway_rules(settings: Settings) -> GatewayRules:
    """What the settings say of it."""
    section = settings.gateway
    local = settings.auth is AuthMode.OFF or is_loopback(section.host)
    return GatewayRules(
        name="oah",
        version=_semantic(oah_version()),
        host=section.host,
        port=settings.gateway_listens_at,
        workspace=WorkspaceId(section.workspace),
        strangers=section.token is None and section.user is None and local,
        max_payload=settings.mail.max_payload_bytes,
        max_connections=section.max_connections,
        max_subscriptions=section.max_subscriptions,
        max_pending=section.max_pending_bytes,
        lease=timedelta(seconds=settings.mail.lease_seconds),
        write_deadline=timedelta(seconds=section.write_deadline_seconds),
        ping_every=timedelta(seconds=section.ping_seconds),
        token=section.token.get_secret_value() if section.token else None,
        user=section.user,
        password=section.password.get_secret_value() if section.password else None,
        certificate=section.tls_certificate,
        key=section.tls_key,
    )


def _semantic(version: str) -> str:
    """Three numbers: clients compare it with those of NATS servers, and some read nothing else."""
    numbers = [part for part in version.split("+", maxsplit=1)[0].split(".") if part.isdigit()]
    return ".".join([*numbers, "0", "0", "0"][:3])


def _reasons(kit: Kit, prelude: Prelude) -> list[str]:
    if not prelude.prepared:
        return ["still starting"]
    found = []
    for name, check in (("database", kit.store.check), ("redis", kit.broker.leader)):
        try:
            check()
        except OahError as error:
            found.append(f"{name}: {error.message}")
    return found
