"""Mailboxes: sends a second by group commit, and how long a reader in another process waits for what is sent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median, quantiles
from typing import Any

from benchmarks.world import World, world
from oah.adapters.redis.connect import open_broker
from oah.adapters.system.clock import SystemClock
from oah.core.model.ids import MailboxId
from oah.core.model.workspace import DEFAULT_WORKSPACE
from oah.ports.mailboxes import Head, Outgoing, Sent
from oah.ports.telemetry import NullTelemetry
from oah.runtime.batches import Batches
from oah.runtime.mail_watch import MailWatch
from oah.services.post import MailRules, Post

PAYLOAD = b"x" * 200
BOXES = 64


def mail(*, quick: bool) -> dict[str, Any]:
    """Threads of one process send messages of 200 bytes to 64 mailboxes; then one message at a time on an idle
    system, until the watch of a process with connections of its own has called its reader."""
    rows = []
    for database in ("postgresql", "sqlite"):
        with world(database) as w:
            post = _post(w)
            boxes = [post.create(DEFAULT_WORKSPACE, address=f"box.{n}", public=True).mailbox for n in range(BOXES)]
            for threads in (1, 16):
                rows.append({"database": database, **_sends(post, threads, 400 if quick else 3_000)})
            rows.append({"database": database, **_told(w, post, boxes[0].id, 50 if quick else 300)})
    return {"what": "sends/s; send returned and send → reader called, idle, through Valkey", "rows": rows}


def _post(w: World) -> Post:
    rules = MailRules(max_messages=1_000_000)
    return Post(w.store, w.broker, w.ids, rules, NullTelemetry(), together=Batches)


def _letter(number: int) -> Outgoing:
    return Outgoing(workspace_id=DEFAULT_WORKSPACE, address=f"box.{number % BOXES}", payload=PAYLOAD)


def _sends(post: Post, threads: int, count: int) -> dict[str, Any]:
    def send(number: int) -> bool:
        return isinstance(post.send([_letter(number)])[0], Sent)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        stored = sum(pool.map(send, range(count)))
    seconds = time.perf_counter() - began
    assert stored == count
    return {"threads": threads, "sends": count, "sends_per_second": round(count / seconds, 1)}


def _told(w: World, post: Post, box: MailboxId, count: int) -> dict[str, Any]:
    broker = open_broker(w.redis_url)
    watch = MailWatch(w.store, broker, SystemClock())
    heard, done = threading.Event(), threading.Event()
    at: list[float] = []
    wanted = [0]

    def call(_: MailboxId, head: Head) -> None:
        if head.last_seq >= wanted[0] > 0:
            at.append(time.perf_counter())
            heard.set()

    def listen() -> None:
        while not done.is_set():
            watch.step(timedelta(milliseconds=200))

    watch.watch(box, call)
    thread = threading.Thread(target=listen)
    thread.start()
    time.sleep(0.5)  # it has subscribed and looked
    answers, calls = [], []
    for _ in range(count):
        head = w.store.heads([box])[box]
        heard.clear()
        wanted[0] = head.last_seq + 1
        began = time.perf_counter()
        post.send([_letter(0)])
        answers.append(time.perf_counter() - began)
        assert heard.wait(5)
        calls.append(at[-1] - began)
        wanted[0] = 0
        time.sleep(0.01)
    done.set()
    thread.join()
    broker.close()
    return {
        "sends": count,
        "send_p50_ms": round(median(answers) * 1e3, 2),
        "told_p50_ms": round(median(calls) * 1e3, 2),
        "told_p95_ms": round(quantiles(calls, n=20)[-1] * 1e3, 2),
    }
