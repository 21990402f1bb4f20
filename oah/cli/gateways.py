"""``oah gateway``: the NATS front of the mailboxes, and whether one answers."""

from __future__ import annotations

import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import click

from oah.cli.connection import load_settings
from oah.cli.output import showing
from oah.cli.processes import gateway_run
from oah.errors import Unavailable

if TYPE_CHECKING:
    from oah.settings import Settings

_ANSWER_BYTES = 65_536


@click.group()
def gateway() -> None:
    """The gateway: NATS clients reach mailboxes through it."""


gateway.add_command(gateway_run)


@gateway.command()
@click.option("--at", metavar="HOST:PORT", help="The gateway's address; as in its settings when left out.")
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=3.0, show_default=True, help="Seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(*, at: str | None, timeout: float, as_json: bool) -> None:
    """Whether a gateway answers: connects as a client does, with the token or user of the settings."""
    settings = load_settings()
    host, _, port = (at or f"{settings.gateway.host}:{settings.gateway_listens_at}").rpartition(":")
    try:
        found = _greet(host.strip("[]"), int(port), settings, timeout)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no gateway answers at {host}:{port}: {error}", hint="oah gateway run") from error
    showing(found, as_json=as_json)


def _greet(host: str, port: int, settings: Settings, timeout: float) -> dict[str, Any]:
    """INFO, CONNECT, PING, PONG. Raises OSError, ValueError."""
    section, options = settings.gateway, {"verbose": False, "pedantic": False, "lang": "oah", "version": "1"}
    if section.token is not None:
        options["auth_token"] = section.token.get_secret_value()
    elif section.user is not None:
        options["user"] = section.user
        options["pass"] = section.password.get_secret_value() if section.password else ""
    with socket.create_connection((host, port), timeout) as plain:
        info = json.loads(_line(plain).removeprefix(b"INFO "))
        line = plain
        if info.get("tls_required"):
            line = ssl.create_default_context(cafile=section.tls_certificate).wrap_socket(plain, server_hostname=host)
        begun = time.monotonic()
        line.sendall(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        answer = _line(line)
        took = time.monotonic() - begun
    if answer != b"PONG":
        raise ValueError(answer.decode("utf-8", "replace"))
    return {"address": f"{host}:{port}", "answers": True, "milliseconds": round(took * 1000, 1), "info": info}


def _line(line: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\r\n"):
        piece = line.recv(1)
        if not piece or len(found) > _ANSWER_BYTES:
            raise ValueError("it is no NATS server" if not found else found.decode("utf-8", "replace"))
        found += piece
    return found[:-2]
