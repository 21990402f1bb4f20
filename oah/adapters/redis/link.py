"""The connection: one round trip per call, nothing repeated, time-outs explicit.

The client library would by default repeat a call silently up to ten times; a repeated claim pops twice. So its retries
are off, and this module speaks to its connections directly: pack, send, read as many answers as commands were sent.
The one thing repeated is what was certainly not executed: a call that the server answered with NOSCRIPT.

Every new connection compares the server's run_id with the last one seen: another server (or the same one, restarted
from an old snapshot) makes the link suspect until somebody has compared it with the epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import redis
from redis import exceptions as foreign
from redis.backoff import NoBackoff
from redis.retry import Retry

from oah.adapters.redis import failures
from oah.adapters.redis.scripts import Script, Value, load
from oah.errors import Broken, InvalidRequest, Unavailable
from oah.ports.broker import BrokerOptions
from oah.ports.telemetry import Telemetry

Word = str | bytes | int
Verify = Callable[[], None]
Answer = Any
"""What the client library parsed: bytes, int, a list of such, or an error answer as an exception object."""


class Dial(Protocol):
    """Where and how connections are made."""

    @property
    def address(self) -> str:
        """For messages: without secrets."""

    @property
    def in_process(self) -> bool:
        """An in-process server: no run_id, no shebang, no INFO."""

    @property
    def connection_class(self) -> type[Any] | None:
        """Class of the connections; None: what the settings say."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Keyword arguments of the connections."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: str
    args: Sequence[Value] = ()
    groups: Mapping[str, Sequence[Sequence[Value]]] = field(default_factory=dict)


class Link:
    """Connections to one Redis: one pool for calls, one for calls a user waits for, one for blocking reads."""

    def __init__(self, dial: Dial, options: BrokerOptions, telemetry: Telemetry) -> None:
        self.dial = dial
        self.telemetry = telemetry
        self.suspect = not dial.in_process
        self._run_id: str | None = ""
        self._guard = threading.Lock()
        self._calls = self._pool(options.connect_timeout, options.answer_timeout)
        self._quick = self._pool(options.submit_timeout, options.submit_timeout)
        self.longest_block = options.longest_block
        self._blocking = self._pool(options.connect_timeout, options.longest_block + options.answer_timeout)

    def run(
        self, epoch: str | None, calls: Sequence[Call], *, quick: bool = False, verify: Verify | None = None
    ) -> list[list[str]]:
        """Call scripts in one round trip (two after the server lost its script cache); answers in order.

        Raises Unavailable, Backpressure or Broken for the first error among the answers."""
        answers = self.attempt(epoch, calls, quick=quick, verify=verify)
        for answer in answers:
            if isinstance(answer, Exception):
                raise failures.translate(answer, address=self.dial.address)
        return [answer for answer in answers if not isinstance(answer, Exception)]

    def attempt(
        self, epoch: str | None, calls: Sequence[Call], *, quick: bool = False, verify: Verify | None = None
    ) -> list[list[str] | foreign.ResponseError]:
        """The same, with error answers in their places."""
        began = time.monotonic()
        scripts = [load(call.script) for call in calls]
        commands = [self._evalsha(script, epoch, call) for script, call in zip(scripts, calls, strict=True)]
        answers = self.exchange(commands, quick=quick, verify=verify)
        missing = [n for n, answer in enumerate(answers) if isinstance(answer, foreign.NoScriptError)]
        if missing:
            self._repeat(missing, scripts, commands, answers)
        for name in {call.script for call in calls}:
            self.telemetry.observe("oah_script_seconds", time.monotonic() - began, script=name)
        return [answer if isinstance(answer, foreign.ResponseError) else _texts(answer) for answer in answers]

    def exchange(
        self,
        commands: Sequence[Sequence[Word]],
        *,
        quick: bool = False,
        blocking: bool = False,
        verify: Verify | None = None,
    ) -> list[Answer]:
        """Send all, read all. Error answers are returned in their places. Raises Unavailable.

        ``verify`` is called before anything is sent over a suspect link, and may raise."""
        if not commands:
            return []
        pool = self._blocking if blocking else self._quick if quick else self._calls
        connection = self._connection(pool, verify)
        try:
            connection.send_packed_command(connection.pack_commands(commands))
            answers = [_read(connection) for _ in commands]
        except (foreign.RedisError, OSError) as error:
            connection.disconnect()
            raise self._failed(error) from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        self._note(answers)
        return answers

    def subscriber(self) -> Any:
        """A pub/sub object on a connection of its own."""
        client: Any = redis.Redis(connection_pool=self._blocking)
        return client.pubsub(ignore_subscribe_messages=True)

    def server_run_id(self, info: Answer) -> str | None:
        """The run_id out of the answer of INFO, or master_replid where it is hidden; None where both are."""
        found = _info(info)
        for name in ("run_id", "master_replid"):
            if found.get(name, "").strip("0"):
                return found[name]
        return None

    def info(self, answer: Answer) -> dict[str, str]:
        """The fields of INFO."""
        return _info(answer)

    def evaluate(self, name: str, key: str, words: Sequence[Word]) -> Answer:
        """A script without an epoch, rarely called, under the tag of the key given. Raises Unavailable, Broken."""
        answer = self.exchange([["EVAL", self._text(load(name)), 1, key, *words]])[0]
        if isinstance(answer, foreign.ResponseError):
            raise failures.translate(answer, address=self.dial.address)
        return answer

    def set_aside(self, key: str, value: bytes) -> None:
        """Keep a value that could not be read, for people. Best effort: the reader goes on anyway."""
        script = load("set_aside")
        self.exchange([["EVAL", self._text(script), 1, script.key, key, value]])

    def close(self) -> None:
        """Close all connections, also those in use by other threads: their reads fail with Unavailable."""
        for pool in (self._calls, self._quick, self._blocking):
            pool.disconnect()

    def _connection(self, pool: redis.ConnectionPool, verify: Verify | None) -> Any:
        """A connection; if making it has shown another server, that is looked into first."""
        for _ in range(3):
            try:
                connection: Any = pool.get_connection()
            except (foreign.RedisError, OSError) as error:
                raise self._failed(error) from error
            if verify is None or not self.suspect:
                return connection
            pool.release(connection)
            verify()
        raise Unavailable(f"Redis at {self.dial.address} changes with every connection", code="redis_unwell")

    def _repeat(
        self, missing: list[int], scripts: list[Script], commands: list[list[Word]], answers: list[Answer]
    ) -> None:
        """The server forgot scripts: load them, and repeat only the calls that it did not execute."""
        self.telemetry.count("oah_redis_errors_total", kind="noscript")
        lost = {scripts[n].name: scripts[n] for n in missing}
        loads: list[list[Word]] = [["SCRIPT", "LOAD", self._text(script)] for script in lost.values()]
        # EVAL, because somebody may empty the cache again between our own two commands.
        evals = [["EVAL", self._text(scripts[n]), *commands[n][2:]] for n in missing]
        again = self.exchange([*loads, *evals])
        for answer in again[: len(loads)]:
            if isinstance(answer, foreign.ResponseError):
                raise failures.translate(answer, address=self.dial.address)
        for n, answer in zip(missing, again[len(loads) :], strict=True):
            answers[n] = answer

    def _evalsha(self, script: Script, epoch: str | None, call: Call) -> list[Word]:
        try:
            words = [
                word.encode("utf-8", "surrogateescape")
                for word in script.argv(epoch if script.epoch else None, call.args, call.groups)
            ]
        except UnicodeEncodeError as error:
            raise InvalidRequest("an id holds characters that have no encoding") from error
        return ["EVALSHA", script.sha(shebang=not self.dial.in_process), 1, script.key, *words]

    def _text(self, script: Script) -> str:
        return script.text(shebang=not self.dial.in_process)

    def _note(self, answers: Sequence[Answer]) -> None:
        for error in answers:
            if not isinstance(error, foreign.ResponseError) or isinstance(error, foreign.NoScriptError):
                continue
            self.telemetry.count("oah_redis_errors_total", kind=failures.kind(error))
            demoted = failures.first_word(error) == "READONLY"
            if demoted or failures.kind(error) == "moved":
                self.suspect = True
            if demoted:  # the next call must find the new primary, whatever connection it takes
                self._calls.disconnect(inuse_connections=False)
                self._quick.disconnect(inuse_connections=False)

    def _failed(self, error: Exception) -> Exception:
        self.telemetry.count("oah_redis_errors_total", kind=failures.kind(error))
        return failures.translate(error, address=self.dial.address)

    def _pool(self, connect: timedelta, answer: timedelta) -> redis.ConnectionPool:
        settings: dict[str, Any] = {
            **self.dial.settings,
            "socket_connect_timeout": connect.total_seconds(),
            "socket_timeout": answer.total_seconds(),
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if self.dial.connection_class is not None:
            settings["connection_class"] = self.dial.connection_class
        if not self.dial.in_process:
            settings["redis_connect_func"] = self._greet
        return redis.ConnectionPool(**settings)

    def _greet(self, connection: Any) -> None:
        """Log in, and look which server this is."""
        connection.on_connect()
        connection.send_command("INFO", "server")
        try:
            run_id = self.server_run_id(connection.read_response())
        except foreign.ResponseError:
            run_id = None  # hidden from this user
        with self._guard:
            if run_id != self._run_id:
                self._run_id = run_id
                self.suspect = True


def _read(connection: Any) -> Answer:
    try:
        return connection.read_response()
    except foreign.ResponseError as error:
        return error


def _texts(answer: Answer) -> list[str]:
    if not isinstance(answer, list):
        raise Broken(f"a script answered {answer!r}")
    return [word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word) for word in answer]


def _info(answer: Answer) -> dict[str, str]:
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}
