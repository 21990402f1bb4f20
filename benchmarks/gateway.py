"""The gateway under load: how long a message takes, how many fit in a second, what many mailboxes and readers cost.

    python -m benchmarks.gateway [--mailboxes 10000] [--readers 1000]

Starts an API, a controller and a gateway of its own on SQLite and the private server, below a temporary directory.
Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from oah.testing.fleet import GATEWAY, Fleet

SAMPLES = 300
SENDS = 5_000
SETTLE_SECONDS = 5.0
"""After the last SUB is answered: each subscriber then reads its mailbox for the first time."""
IDLE_SECONDS = 30.0


class Line:
    """As little of a client as measures: frames are read as lines and lengths."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Line:
        line = cls(*await asyncio.open_connection("127.0.0.1", port))
        await line.reader.readline()
        line.writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
        await line.flush()
        return line

    async def flush(self) -> None:
        self.writer.write(b"PING\r\n")
        while await self.reader.readline() != b"PONG\r\n":
            pass

    async def message(self) -> bytes:
        words: list[bytes] = []
        while not words or words[0] not in (b"MSG", b"HMSG"):
            words = (await self.reader.readline()).split()
            if words == [b"PING"]:
                self.writer.write(b"PONG\r\n")
        body = await self.reader.readexactly(int(words[-1]) + 2)
        return body[int(words[-2]) if words[0] == b"HMSG" else 0 : -2]

    async def ask(self, subject: str, payload: bytes = b"") -> Any:
        self.writer.write(b"SUB _INBOX.b.%d 9\r\nUNSUB 9 1\r\n" % id(self))
        self.writer.write(b"PUB %b _INBOX.b.%d %d\r\n%b\r\n" % (subject.encode(), id(self), len(payload), payload))
        return json.loads(await self.message())


def subject(address: str) -> bytes:
    return f"$mq9.AI.MAILBOX.MSG.{address}".encode()


async def create(line: Line, count: int) -> list[str]:
    return [(await line.ask("$mq9.AI.MAILBOX.CREATE", b'{"ttl":3600}'))["mail_id"] for _ in range(count)]


async def latency(port: int) -> dict[str, float]:
    """From the write of a PUB to the read of the MSG on another connection, one at a time."""
    sender, reader = await Line.open(port), await Line.open(port)
    box = (await create(sender, 1))[0]
    reader.writer.write(b"SUB %b 1\r\n" % subject(box))
    await reader.flush()
    took = []
    for _ in range(SAMPLES):
        begun = time.perf_counter()
        sender.writer.write(b"PUB %b 100\r\n%b\r\n" % (subject(box), b"x" * 100))
        await reader.message()
        took.append((time.perf_counter() - begun) * 1000)
    took.sort()
    return {"p50_ms": statistics.median(took), "p99_ms": took[int(len(took) * 0.99)]}


async def rate(port: int) -> float:
    """Sends a second, pipelined from one connection, until all are stored."""
    line = await Line.open(port)
    box = (await create(line, 1))[0]
    frame = b"PUB %b 100\r\n%b\r\n" % (subject(box), b"x" * 100)
    begun = time.perf_counter()
    for _ in range(SENDS // 100):
        line.writer.write(frame * 100)
        await line.writer.drain()
    await line.flush()
    return SENDS / (time.perf_counter() - begun)


def fill(database: Path, count: int) -> None:
    """Further mailboxes that nobody reads, as rows in one transaction: each CREATE is a commit with fsync."""
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        names = [
            row[1] for row in connection.execute("PRAGMA table_info(mailboxes)") if row[1] not in ("id", "address")
        ]
        copied = f"SELECT ?, ?, {', '.join(names)} FROM mailboxes LIMIT 1"
        statement = f"INSERT INTO mailboxes (id, address, {', '.join(names)}) {copied}"
        connection.executemany(statement, ((f"mbx_{number}", f"m-{number:032x}") for number in range(count)))


async def crowd(port: int, pid: int, database: Path, mailboxes: int, readers: int) -> dict[str, float]:
    """Memory and idle CPU with many mailboxes and readers; then each reader gets one message."""
    process = psutil.Process(pid)
    before = process.memory_info().rss
    makers = [await Line.open(port) for _ in range(8)]
    made = await asyncio.gather(*(create(maker, readers // len(makers)) for maker in makers))
    boxes = [box for each in made for box in each]
    readers = len(boxes)
    fill(database, mailboxes - readers)
    lines = [await Line.open(port) for _ in range(readers)]
    for line, box in zip(lines, boxes, strict=False):
        line.writer.write(b"SUB %b 1\r\n" % subject(box))
    await asyncio.gather(*(line.flush() for line in lines))
    await asyncio.sleep(SETTLE_SECONDS)
    cpu = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE_SECONDS)
    idle = (sum(process.cpu_times()[:2]) - cpu) / IDLE_SECONDS
    rss = process.memory_info().rss
    begun = time.perf_counter()
    for box in boxes[:readers]:
        makers[0].writer.write(b"PUB %b 1\r\nx\r\n" % subject(box))
    await asyncio.gather(*(line.message() for line in lines))
    return {
        "mailboxes": mailboxes,
        "readers": readers,
        "rss_mib": rss / 2**20,
        "rss_before_mib": before / 2**20,
        "idle_cpu_percent": idle * 100,
        "all_pushed_s": time.perf_counter() - begun,
    }


async def measure(fleet: Fleet, mailboxes: int, readers: int) -> dict[str, Any]:
    port, pid = fleet.plan.gateway_port, fleet.pids[GATEWAY]
    assert port is not None
    deadline = time.monotonic() + 60
    while True:
        try:
            await Line.open(port)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
    return {
        "send_to_push": await latency(port),
        "sends_per_second": await rate(port),
        "crowd": await crowd(port, pid, fleet.data_dir / "oah.db", mailboxes, readers),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--mailboxes", type=int, default=10_000)
    arguments.add_argument("--readers", type=int, default=1_000)
    given = arguments.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="oah-b-", dir="/tmp") as directory,
        Fleet(Path(directory) / "d", workers=0, gateway=True) as fleet,
    ):
        print(json.dumps(asyncio.run(measure(fleet, given.mailboxes, given.readers)), indent=2))


if __name__ == "__main__":
    main()
