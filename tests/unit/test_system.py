"""Clocks, ids and figures of this machine."""

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

from oah.adapters.system.clock import SystemClock
from oah.adapters.system.figures import ProcessGauge
from oah.adapters.system.ids import SystemIds
from oah.ports.clock import Clock, Ids
from tests.support import eventually


def test_the_clocks() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() <= clock.monotonic()
    first = clock.boottime()
    with open("/proc/uptime") as uptime:
        assert abs(first - float(uptime.read().split()[0])) < 5
    assert clock.boottime() >= first


def test_ids_are_prefixed_sortable_and_of_one_length() -> None:
    ids: Ids = SystemIds()
    made = [ids.new("run") for _ in range(2000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"run_[0-9abcdefghjkmnpqrstvwxyz]{26}", one) for one in made)
    assert ids.new("ses").startswith("ses_")


def test_ids_keep_their_order_when_the_clock_steps_back() -> None:
    ticks = itertools.chain([1000, 1001, 500, 500, 1001, 1002])
    ids = SystemIds(milliseconds=lambda: next(ticks))
    made = [ids.new("run") for _ in range(6)]
    assert made == sorted(made) and len(set(made)) == 6


def test_ids_of_processes_sort_by_the_millisecond() -> None:
    early, late = SystemIds(milliseconds=lambda: 5), SystemIds(milliseconds=lambda: 6)
    assert all(early.new("run") < late.new("run") for _ in range(100))


def test_ids_of_threads_are_distinct() -> None:
    ids, made = SystemIds(), []

    def work() -> None:
        made.extend(ids.new("run") for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2000


def test_nonces_and_chance() -> None:
    ids = SystemIds()
    nonces = {ids.nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(re.fullmatch(r"[0-9a-f]{32}", nonce) for nonce in nonces)
    throws = [ids.chance() for _ in range(200)]
    assert all(0 <= throw < 1 for throw in throws) and max(throws) - min(throws) > 0.5


def test_figures_of_this_process_and_its_children() -> None:
    gauge = ProcessGauge()
    before = gauge.read()
    assert before.rss_bytes > 1_000_000 and before.tree_rss_bytes >= before.rss_bytes
    assert before.threads >= 1 and before.open_files >= 3 and before.load >= 0
    assert 0 < before.memory_available_bytes <= before.memory_total_bytes
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        eventually(lambda: gauge.read().tree_processes > before.tree_processes)
    finally:
        child.communicate(b"\n")
    assert gauge.read().tree_processes == before.tree_processes


def test_cpu_is_the_difference_between_two_looks() -> None:
    gauge, began = ProcessGauge(os.getpid()), time.monotonic()
    spent, total = os.times().user, 0
    while os.times().user - spent < 0.2:
        total += sum(range(1000))
    seconds = gauge.read().cpu_percent / 100 * (time.monotonic() - began)
    assert seconds > 0.1, "0.2 s were spent, however long that took on a busy machine"
