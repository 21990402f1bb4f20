"""Secrets of a worker: where they come from, and where they are not left."""

from __future__ import annotations

from pathlib import Path

import pytest

from oah.adapters.system.secrets import MAX_BYTES, WorkerSecrets, taken
from oah.core.model.ids import WorkspaceId
from oah.core.policy import admission
from oah.errors import InvalidRequest

WS = WorkspaceId("ws_1")


def test_what_the_environment_told_is_no_longer_in_it() -> None:
    environment = {"OAH_SECRET_A": "x", "OAH_SECRET_": "y", "PATH": "/bin"}
    assert taken(environment) == {"A": "x"}
    assert environment == {"OAH_SECRET_": "y", "PATH": "/bin"}
    secrets = WorkerSecrets(None, {"A": "x"})
    assert (secrets.secret("A", WS), secrets.secret("B", WS)) == ("x", None)


def test_a_workspaces_file_goes_before_everybodys_and_that_before_the_environment(tmp_path: Path) -> None:
    secrets = WorkerSecrets(tmp_path, {"A": "told", "B": "told"})
    (tmp_path / "A").write_text("everybody\n")
    (tmp_path / "ws_1").mkdir()
    assert secrets.secret("A", WS) == "everybody"
    (tmp_path / "ws_1" / "A").write_text("own\n\n")
    assert secrets.secret("A", WS) == "own\n", "the last newline alone is no part of it"
    assert secrets.secret("A", WorkspaceId("ws_2")) == "everybody"
    assert secrets.secret("B", WS) == "told"
    (tmp_path / "ws_1" / "A").write_text("replaced")
    assert secrets.secret("A", WS) == "replaced"


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "big").write_bytes(b"x" * (MAX_BYTES + 1))
    secrets = WorkerSecrets(tmp_path / "in")
    for name in ("../outside", "", "/etc/passwd", "a/b", ".", "..", "big", "ws_1"):
        assert secrets.secret(name, WS) is None
    assert secrets.secret("outside", WorkspaceId("..")) is None


@pytest.mark.parametrize("value", [{"secret": "../A"}, {"secret": ""}, {"other": "A"}, {"secret": "A", "x": "y"}, {}])
def test_a_value_that_names_no_secret_is_refused(value: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as error:
        admission.environment({"A": value}, admission.Rules())
    assert error.value.code == "invalid_secret_name"


def test_a_value_that_names_one_is_accepted() -> None:
    env = {"A": {"secret": "TOKEN"}, "B": "text"}
    assert admission.environment(env, admission.Rules()) == env
