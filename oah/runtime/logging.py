"""Log lines: one record, one line, to standard error; `key=value` for people or JSON for collectors.

Fields come from `extra={...}`. Whatever a message or a field contains, it cannot start a line of its own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUIET = ("httpx", "httpcore", "uvicorn.access", "asyncio", "rq.worker", "alembic", "websockets")
_DISCREET = ("uvicorn.error",)
"""What these say of each connection are its headers, keys among them."""


def configure(*, process: str = "oah", level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Log to `stream` (standard error). `form`: `text` or `json`. Replaces what was configured before.

    Raises ValueError for an unknown level or form.
    """
    if form not in ("text", "json"):
        raise ValueError(f"no log format {form!r}: text or json")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process) if form == "json" else TextLines(process))
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [handler]
    logging.captureWarnings(capture=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    for name in _DISCREET:
        logging.getLogger(name).setLevel(max(logging.INFO, root.level))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and not key.startswith("_")}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(logging.Formatter):
    """`moment level process logger message key=value …`; a traceback follows, indented."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        head = f"{_moment(record)} {record.levelname:<8} {self._process} {record.name} "
        line = head + record.getMessage().replace("\n", "\\n").replace("\r", "\\r") + pairs
        if record.exc_info:
            line += "\n" + "\n".join(f"    {text}" for text in self.formatException(record.exc_info).splitlines())
        return line


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and all(mark.isprintable() and mark not in ' "=' for mark in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `process`, `logger`, `message`, the fields, `error` with its traceback."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        document: dict[str, object] = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        document.update({key: value for key, value in _fields(record).items() if key not in document})
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)
