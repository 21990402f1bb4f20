"""How a command reaches the API, and with which settings.

The address is ``--url``, else ``OAH_API_URL``, else ``oah.toml``, else this machine. The key is ``OAH_API_KEY``, else,
inside a run, the key of that run (``OAH_RUN_KEY``), else, for an API on this machine only, the admin key that
``oah up`` or ``oah-api`` left below the data directory: a key of this machine is never sent to another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from oah.errors import InvalidRequest

if TYPE_CHECKING:
    from oah.client import Client
    from oah.settings import Settings

ADMIN_KEY_FILE = "admin.key"
RETRIES = 3
"""About half a second: a person waits in front of it; scripts have exit code 5 and their own patience."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; arguments that are None do not override. Raises InvalidRequest naming each bad value."""
    from oah.settings import Settings

    try:
        return Settings(**_given(overrides))
    except ValueError as error:
        raise InvalidRequest(
            f"bad settings: {_reasons(error)}", code="invalid_settings", hint="correct the environment or oah.toml"
        ) from error


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None or an empty section."""
    nested = {k: _given(v) if isinstance(v, Mapping) else v for k, v in overrides.items()}
    return {name: value for name, value in nested.items() if value is not None and value != {}}


def _reasons(error: ValueError) -> str:
    """pydantic's list of faults in one line, without the values (one of them may be a secret)."""
    faults = getattr(error, "errors", None)
    if faults is None:
        return str(error)
    return "; ".join(f"{env_name(fault['loc'])}: {fault['msg']}" for fault in faults())


def env_name(path: tuple[Any, ...]) -> str:
    """The environment variable of a setting: ``("worker", "slots")`` → ``OAH_WORKER__SLOTS``."""
    return "OAH_" + "__".join(str(part).upper() for part in path)


def is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    return (urlsplit(url).hostname or "") in _LOOPBACK


def api_key(settings: Settings, url: str) -> str | None:
    """The key for that API (see the module's docstring); None when there is none."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    inside = os.environ.get("OAH_RUN_KEY")
    if inside:
        return inside
    if not is_local(url):
        return None
    return read_admin_key(settings.data_dir)


def read_admin_key(data_dir: Path) -> str | None:
    """The key that an API on this machine wrote for its own user; None when there is none to read."""
    try:
        text = (data_dir / ADMIN_KEY_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return text or None


class Connection:
    """What the top command hands to the others: settings and client, each made when first asked for."""

    def __init__(
        self,
        *,
        url: str | None = None,
        open_client: Callable[[str, str | None], Client] | None = None,
    ) -> None:
        self._url = url
        self._open_client = open_client or _open_client

    def at(self, url: str | None) -> None:
        """Use another address than the settings name."""
        if url is not None:
            self._url = url

    @cached_property
    def settings(self) -> Settings:
        """The effective settings. Raises InvalidRequest."""
        return load_settings()

    @cached_property
    def url(self) -> str:
        """The API's base URL."""
        url = self._url or self.settings.api_url
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise InvalidRequest(f"not an http URL: {url!r}", hint="OAH_API_URL=http://127.0.0.1:8787")
        return url.rstrip("/")

    @cached_property
    def client(self) -> Client:
        """The client; closed with the command."""
        client = self._open_client(self.url, api_key(self.settings, self.url))
        context = click.get_current_context(silent=True)
        if context is not None:
            context.find_root().call_on_close(client.close)
        return client


def _open_client(url: str, key: str | None) -> Client:
    from oah.client import Client

    return Client(url, key, retries=RETRIES)


pass_connection = click.make_pass_decorator(Connection, ensure=True)


def actor() -> str:
    """Who acts in ``--direct`` mode, for the audit."""
    return f"cli:{os.environ.get('USER') or os.getuid()}"
