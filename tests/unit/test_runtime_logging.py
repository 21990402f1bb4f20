"""Log lines: one record, one line."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from oah.runtime.logging import configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_text_lines(stream: io.StringIO) -> None:
    configure(process="worker", stream=stream)
    logging.getLogger("oah.test").info("claimed %d", 3, extra={"lane": "default/shell", "why": "a b", "empty": ""})
    line = stream.getvalue()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO     worker oah\.test claimed 3 ", line)
    assert line.endswith('lane=default/shell why="a b" empty=""\n')


def test_a_message_cannot_start_a_line(stream: io.StringIO) -> None:
    configure(process="api", stream=stream)
    logging.getLogger("oah.test").warning("one\ntwo\r", extra={"input": "x\n2026-01-01 CRITICAL fake"})
    assert len(stream.getvalue().splitlines()) == 1
    assert "one\\ntwo\\r" in stream.getvalue()


def test_a_traceback_is_indented(stream: io.StringIO) -> None:
    configure(process="api", stream=stream)
    try:
        raise ZeroDivisionError("no\nway")
    except ZeroDivisionError:
        logging.getLogger("oah.test").exception("failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in rest)


def test_json_lines(stream: io.StringIO) -> None:
    configure(process="api", form="json", stream=stream)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logging.getLogger("oah.test").exception("failed\nbadly", extra={"lane": "a/b", "message_id": 7, "odd": {1}})
    document = json.loads(stream.getvalue())
    assert document.pop("at").endswith("Z")
    assert "ZeroDivisionError" in document.pop("error")
    assert document == {
        "level": "error",
        "process": "api",
        "logger": "oah.test",
        "message": "failed\nbadly",
        "lane": "a/b",
        "message_id": 7,
        "odd": "{1}",
    }


def test_levels(stream: io.StringIO) -> None:
    configure(process="api", level="warning", stream=stream)
    logging.getLogger("oah.test").info("unheard")
    logging.getLogger("httpx").info("unheard")
    assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="no log format"):
        configure(process="api", form="xml", stream=stream)
    with pytest.raises(ValueError, match="Unknown level"):
        configure(process="api", level="loud", stream=stream)


@pytest.mark.parametrize("name", ["websockets.client", "websockets.server", "uvicorn.error"])
def test_headers_of_connections_are_not_logged_whatever_the_level(stream: io.StringIO, name: str) -> None:
    configure(process="api", level="debug", stream=stream)
    logging.getLogger(name).debug("> Authorization: Bearer secret")
    assert stream.getvalue() == ""
