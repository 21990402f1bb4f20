"""``oah-controller``, and the leader's duties inside an API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from oah.adapters.blobs.directory import DirectoryBlobs
from oah.bootstrap.homes import tidy_shared
from oah.bootstrap.jobs import job_performers, job_queue, tell_again
from oah.bootstrap.kit import Kit, needs_a_server, open_kit, run
from oah.bootstrap.kubernetes import open_election
from oah.bootstrap.scaling import scale_fleets
from oah.bootstrap.schedules import fire_schedules
from oah.controller.process import ControllerContext, Endpoint, create_controller
from oah.controller.rules import controller_rules
from oah.ports.jobs import JobQueue
from oah.runtime.component import Component
from oah.runtime.group import Group
from oah.runtime.prelude import Prelude
from oah.settings import Settings


def controller_of(kit: Kit, *, endpoint: Endpoint | None, jobs: JobQueue) -> Sequence[Component]:
    """The components of a controller."""
    rules = controller_rules(kit.settings, kit.profile_policies())
    context = ControllerContext(
        store=kit.store,
        broker=kit.broker,
        clock=kit.clock,
        ids=kit.ids,
        telemetry=kit.telemetry,
        epochs=kit.epochs,
        rules=rules,
        holder=kit.holder,
        decisions=kit.decisions,
        endpoint=endpoint,
        election=open_election(kit.settings, kit.clock, broker=kit.broker, hasty=kit.witness_broker),
        tell_jobs=tell_again(kit, jobs),
        blobs=DirectoryBlobs(kit.settings.blobs),
        weigh=kit.weigh(),
        tidy=tidy_shared(kit),
        scaling=scale_fleets(kit, trust=rules.lease),
        schedules=fire_schedules(kit),
    )
    return [*job_performers(kit, jobs), *create_controller(context)]


def controller_process(settings: Settings) -> int:
    """``oah-controller``. Returns the exit code."""
    needs_a_server(settings, "oah-controller")
    kit = open_kit(settings, process="controller")
    section = settings.controller
    endpoint = Endpoint(section.host, section.port, kit.telemetry.exposition)
    *duties, probe = controller_of(kit, endpoint=endpoint, jobs=job_queue(kit))
    prelude = Prelude("controller-prelude", kit.store.migrate, lambda: duties, clock=kit.clock)
    return run(kit, Group([probe, prelude], clock=kit.clock), grace=timedelta(seconds=5))
