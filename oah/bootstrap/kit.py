"""What every program is made of: the opened adapters, and how a group of components is run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from oah.adapters.embedded.open import open_server
from oah.adapters.prometheus.telemetry import PrometheusTelemetry
from oah.adapters.pty.profiles import load_profiles
from oah.adapters.redis.connect import open_broker as connect_broker
from oah.adapters.sql.store import open_store
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.adapters.system.secrets import WorkerSecrets
from oah.bootstrap.hardening import close_data_dir, forget_secrets
from oah.controller.rules import recovery_rules
from oah.core.model.ids import EpochId
from oah.core.policy import recovery
from oah.errors import InvalidRequest, OahError
from oah.ports.broker import Broker, BrokerOptions
from oah.ports.clock import Ids
from oah.ports.secrets import Secrets
from oah.ports.store import Store
from oah.runtime.collector import set_apart
from oah.runtime.group import Group
from oah.runtime.logging import configure
from oah.runtime.process import serve
from oah.services.decisions import Decisions
from oah.services.epoch import EpochKeeper
from oah.services.host_bound import HostBound
from oah.services.place import Places
from oah.services.promote import PromoteRuns
from oah.services.recover import RecoverOwners
from oah.settings import Settings

log = logging.getLogger(__name__)
PROFILES_DIR = "agents.d"
"""Below the data directory: further profiles as TOML."""


def oah_version() -> str:
    """The installed version."""
    try:
        return version("oah")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The opened adapters of one process, and what everything else is made of."""

    settings: Settings
    telemetry: PrometheusTelemetry
    clock: SystemClock
    ids: SystemIds
    store: Store
    broker: Broker
    witness_broker: Broker
    epochs: EpochKeeper
    decisions: Decisions
    holder: str
    secrets: Secrets

    @property
    def places(self) -> Places:
        """Where sessions belong in the broker."""
        return Places(self.store, self.broker)

    def epoch_or_none(self) -> EpochId | None:
        """The epoch believed in; None: unknown now. What the broker does not hear of meanwhile, the relay tells it."""
        try:
            return self.epochs.current()
        except OahError:
            return None

    def recover(self) -> RecoverOwners:
        """Recovery under the deployment's policy, and that of the profiles known here."""
        rules, profiles = recovery_rules(self.settings), self.profile_policies()
        return RecoverOwners(self.store, self.places, self.epochs, self.telemetry, rules, self.decisions, profiles)

    def profile_policies(self) -> dict[str, recovery.Override]:
        """What the profiles known here say about recovery."""
        return profile_policies(self.settings.data_dir / PROFILES_DIR)

    def weigh(self) -> Callable[[str], int]:
        """Slots that a run of a profile takes, as far as the profiles are known here."""
        return profile_weights(self.settings.data_dir / PROFILES_DIR)

    @property
    def host_bound(self) -> HostBound:
        """Who asks about hosts of local homes."""
        return HostBound(self.store, self.broker, timedelta(seconds=self.settings.home_wait_seconds))

    def promote(self) -> None:
        """What an ear does when nobody ticks: promotion, and the wake tokens with it."""
        PromoteRuns(self.store, self.places, self.host_bound)(self.epochs.current())

    def close(self) -> None:
        """Close the stores."""
        for each in (self.witness_broker, self.broker, self.store):
            each.close()


def profile_policies(directory: Path) -> dict[str, recovery.Override]:
    """What the profiles say about recovery, where they say anything. A catalogue that cannot be read says nothing:
    whoever recovers does not need it, whoever drives agents refuses to start over it."""
    try:
        profiles = load_profiles(directory)
    except InvalidRequest as error:
        log.warning("recovery goes by workspaces and deployment alone: %s", error.message)
        return {}
    said = {p.name: recovery.Override(p.recovery_strategy, p.recovery_max_attempts) for p in profiles.values()}
    return {name: each for name, each in said.items() if each != recovery.SAYS_NOTHING}


def profile_weights(directory: Path) -> Callable[[str], int]:
    """What the profiles say about slots. With a catalogue that cannot be read every run counts as one: whoever only
    counts does not need it."""
    try:
        catalogue = load_profiles(directory)
    except InvalidRequest as error:
        log.warning("every run counts as one slot: %s", error.message)
        return lambda profile: 1
    heavy = {name: profile.slot_weight for name, profile in catalogue.items() if profile.slot_weight != 1}
    return lambda profile: heavy.get(profile, 1)


def system_ids() -> Ids:
    """Where new names come from."""
    return SystemIds()


def open_database(settings: Settings) -> Store:
    """The store alone (``--direct``)."""
    close_data_dir(settings)
    return open_store(settings.database)


def open_broker(settings: Settings) -> Broker:
    """The broker alone (``--direct``)."""
    return _brokers(settings, None)[0]


def open_kit(settings: Settings, *, process: str) -> Kit:
    """Open the adapters. Nothing is contacted yet that may be away: that is retried by who needs it."""
    configure(process=process, level=settings.log_level, form=settings.log_format)
    secrets = WorkerSecrets(settings.secrets_dir, forget_secrets())
    close_data_dir(settings)
    telemetry = PrometheusTelemetry(process=process, version=oah_version())
    clock, ids = SystemClock(), SystemIds()
    store = open_store(settings.database, telemetry=telemetry)
    broker, witness = _brokers(settings, telemetry)
    return Kit(
        settings=settings,
        telemetry=telemetry,
        clock=clock,
        ids=ids,
        store=store,
        broker=broker,
        witness_broker=witness,
        epochs=EpochKeeper(store, broker, ids, telemetry),
        decisions=Decisions(clock),
        secrets=secrets,
        holder=f"{socket.gethostname()}.{os.getpid()}.{ids.nonce()[:8]}",
    )


def _brokers(settings: Settings, telemetry: PrometheusTelemetry | None) -> tuple[Broker, Broker]:
    """The broker, and one with the witness's own connection and time-out: at most half a period."""
    section = settings.redis
    server = open_server(settings.broker, data_dir=settings.data_dir, binary=section.server)
    options = BrokerOptions(
        connect_timeout=timedelta(seconds=section.connect_timeout_seconds),
        # A lost answer is noticed within a period, a lost wake-up within two: what it was about waits for somebody.
        answer_timeout=min(timedelta(seconds=section.answer_timeout_seconds), settings.period),
        submit_timeout=timedelta(seconds=section.submit_timeout_seconds),
        longest_block=min(BrokerOptions().longest_block, settings.period),
    )
    half = settings.period / 2
    hasty = BrokerOptions(connect_timeout=half, answer_timeout=half, submit_timeout=options.submit_timeout)
    return (
        connect_broker(settings.broker, options=options, telemetry=telemetry, server=server),
        connect_broker(settings.broker, options=hasty, telemetry=telemetry, server=server),
    )


def run(kit: Kit, group: Group, *, grace: timedelta, on_serving: Callable[[], None] = lambda: None) -> int:
    set_apart()
    try:
        return serve(group, grace=grace, on_serving=on_serving)
    finally:
        kit.close()


def needs_a_server(settings: Settings, program: str) -> None:
    if settings.in_process:
        raise InvalidRequest(
            f"{program} cannot use memory://: that broker lives inside one process",
            code="invalid_settings",
            hint="set OAH_REDIS_URL to redis://… or embedded://, or run oah-api alone",
        )
