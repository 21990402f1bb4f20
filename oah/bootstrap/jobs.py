"""Maintenance jobs: which tasks there are, who performs them, and the process that does.

A new kind of job is a line of ``works``; a new task (a row kind of its own, with its own handler) is a line of
``handlers`` and, so that a loss of the queue loses nothing, one of ``lost``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from oah.adapters.embedded.open import open_server
from oah.adapters.inprocess.jobs import InlineJobQueue
from oah.adapters.pty.hardening import make_undumpable
from oah.adapters.redis.connect import open_client
from oah.adapters.system.clock import SystemClock
from oah.adapters.system.ids import SystemIds
from oah.bootstrap.kit import Kit, open_kit
from oah.bootstrap.webhooks import deliver_webhook
from oah.errors import OahError
from oah.ports.broker import BrokerOptions
from oah.ports.jobs import Handlers, Job, JobQueue, UntoldQueue
from oah.ports.requeue import RequeueFilter
from oah.ports.store import Store
from oah.runtime.child import ChildProcess
from oah.runtime.collector import set_apart
from oah.runtime.component import Component
from oah.runtime.loop import Loop
from oah.services import redrive, requeue, webhooks
from oah.services.jobs import TASK, Lost, RunJob, TellAgain, Works
from oah.settings import Settings

if TYPE_CHECKING:
    from oah.adapters.rq.queue import RqJobQueue

log = logging.getLogger(__name__)


def works(kit: Kit) -> Works:
    """Kind of job → what does one chunk of it."""
    epoch = kit.store.current_epoch
    letters = {act.value: redrive.work_of(kit.store, kit.broker, act, epoch=epoch) for act in redrive.Act}
    return {requeue.KIND: requeue.RequeueWork(kit.store, kit.broker, epoch), **letters}


def handlers(kit: Kit, *, going_on: Callable[[], bool]) -> Handlers:
    """Task → who performs it for one row."""
    run_job = RunJob(kit.store, works(kit), kit.clock, kit.ids, kit.holder, stale_for(kit.settings), going_on)
    return {TASK: run_job, webhooks.TASK: deliver_webhook(kit, going_on=going_on)}


def lost(kit: Kit) -> Mapping[str, Lost]:
    """Task → open rows that nobody has been seen to work on; the leader lets the queue hear of them again."""
    stale = stale_for(kit.settings)
    return {
        TASK: lambda: kit.store.waiting_jobs(stale_for=stale, limit=LOOKED_AT),
        webhooks.TASK: lambda: kit.store.due_webhooks(limit=LOOKED_AT),
    }


LOOKED_AT = 1_000
"""Rows of a kind that the leader tells of in one pass."""


def stale_for(settings: Settings) -> timedelta:
    """How long a job's silent holder is believed. A chunk takes a second; a lease says how patient this place is."""
    return settings.lease / 2


def job_queue(kit: Kit) -> JobQueue:
    """Where this process tells of tasks. One a process: the inline one is also who performs them."""
    settings = kit.settings
    if settings.jobs_inline:
        return InlineJobQueue(kit.clock)
    return _over_rq(settings)


def tell_again(kit: Kit, queue: JobQueue) -> TellAgain:
    """The leader's duty."""
    return TellAgain(queue, lost(kit))


def job_performers(kit: Kit, queue: JobQueue) -> Sequence[Component]:
    """Who performs tasks beside a controller or the leader's duties of an API: child processes, or a thread."""
    if isinstance(queue, InlineJobQueue):
        return [_inline(kit, queue)]
    return [
        ChildProcess(f"jobs-{number}", _command, env=lambda: _environment(kit.settings), clock=kit.clock)
        for number in range(1, kit.settings.jobs.processes + 1)
    ]


def _inline(kit: Kit, queue: InlineJobQueue) -> Loop:
    def going_on() -> bool:
        return not loop.stopping.is_set()

    tasks = handlers(kit, going_on=going_on)
    loop = Loop("jobs", lambda: queue.perform(tasks, going_on), interval=timedelta(minutes=1), clock=kit.clock)
    queue.on_work = loop.wake
    return loop


def _command(lifeline: int) -> Sequence[str]:
    return (sys.executable, "-m", "oah.cli.child", str(lifeline), "job", "run")


def _environment(settings: Settings) -> Mapping[str, str]:
    """This process's, with the secrets that it has forgotten."""
    told = {
        "OAH_DATABASE_URL": settings.database,
        "OAH_REDIS_URL": settings.broker,
        "OAH_DATA_DIR": str(settings.data_dir),
    }
    if settings.jobs_redis_url is not None:
        told["OAH_JOBS_REDIS_URL"] = settings.jobs_redis_url.get_secret_value()
    return {**os.environ, **told}


def jobs_process(settings: Settings) -> int:
    """``oah job run``: performs tasks until it is told to stop. Returns the exit code."""
    from oah.adapters.rq.worker import perform_tasks

    kit = open_kit(settings, process="jobs")
    if sys.platform == "linux":
        make_undumpable()
    set_apart()
    try:
        perform_tasks(_over_rq(settings), lambda going_on: handlers(kit, going_on=going_on), name=kit.holder)
    except OahError as error:
        log.critical("cannot perform jobs: %s", error, extra={"code": error.code, "hint": error.hint or ""})
        return 1
    finally:
        kit.close()
    return 0


def _over_rq(settings: Settings) -> RqJobQueue:
    from oah.adapters.rq.queue import RqJobQueue

    section = settings.redis
    options = BrokerOptions(
        connect_timeout=timedelta(seconds=section.connect_timeout_seconds),
        answer_timeout=timedelta(seconds=section.answer_timeout_seconds),
        submit_timeout=timedelta(seconds=section.submit_timeout_seconds),
    )
    url = settings.jobs_url
    server = open_server(url, data_dir=settings.data_dir, binary=section.server)
    return RqJobQueue(open_client(url, options=options, server=server))


def requeue_here(
    store: Store, where: RequeueFilter, *, by: str, reason: str | None, seen: Callable[[Job], None]
) -> Job:
    """A requeue job asked for and done by this process (``--direct``); ``seen`` is told how far it came. Should this
    process die, the leader has the job gone on with."""
    clock, ids = SystemClock(), SystemIds()
    job = requeue.ask_requeue(store, UntoldQueue(), ids, workspace_id=None, where=where, by=by, reason=reason)

    def going_on() -> bool:
        seen(store.job(job.id, None))
        return True

    work = requeue.RequeueWork(store, None, lambda: None)
    run_job = RunJob(store, {requeue.KIND: work}, clock, ids, by, timedelta(seconds=30), going_on)
    while run_job(job.id) is not None:
        pass
    return store.job(job.id, None)
