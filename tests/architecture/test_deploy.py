"""Deployment files agree with the settings, the console scripts and the worker's need for time."""

import re

from pydantic import BaseModel

from oah.settings import Settings, WorkerSettings
from tests.support.source import ROOT, files, name, pyproject

DEPLOY = ROOT / "deploy"
DRAIN = WorkerSettings().drain_grace_seconds

# Variables that settings do not know: they name the file that settings are read from, or belong to the demo and tests.
OTHER_VARIABLES = {"OAH_CONFIG"}
# What agents and hooks find in their environment, what the profile of any program reads, and where tests find programs.
OTHER_VARIABLES |= {"OAH_RUN_ID", "OAH_ATTEMPT", "OAH_RUN_KEY", "OAH_NATS_URL", "OAH_STATUS"}
OTHER_VARIABLES |= {"OAH_AGENTS_DIR", "OAH_TEST_AGENTS", "OAH_TEST_FULL", "OAH_PROGRAM"}
OTHER_VARIABLES |= {"OAH_SESSION_ID", "OAH_WORKER_ID", "OAH_SCRATCH"}
# A secret of the name that follows.
OTHER_VARIABLES |= {"OAH_SECRET_NAME", "OAH_SECRET_GITHUB_TOKEN"}


def _known(section: type[BaseModel], prefix: str = "OAH_") -> set[str]:
    found = set()
    for field, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= _known(kind, f"{prefix}{field.upper()}__")
        else:
            found.add(prefix + field.upper())
    return found


def test_every_variable_that_is_written_somewhere_is_a_setting() -> None:
    known = _known(Settings) | OTHER_VARIABLES
    pages = [*files(under=DEPLOY), *files(".md"), ROOT / "Makefile", ROOT / "Procfile", ROOT / ".ci" / "run"]
    wrong = {
        f"{name(path)}: {variable}"
        for path in pages
        for variable in re.findall(r"\bOAH_[A-Z_]+[A-Z]\b", path.read_text())
        if variable not in known
    }
    assert not wrong


def test_every_process_that_is_started_is_a_console_script() -> None:
    scripts = set(pyproject()["project"]["scripts"])
    started = set(re.findall(r"^\w+: (\S+)", (ROOT / "Procfile").read_text(), flags=re.M))
    for path in files(under=DEPLOY):
        started |= set(re.findall(r"(?:/opt/oah/bin/|args: \[|command: \[|CMD \[\")(oah[\w-]*)", path.read_text()))
    assert started == {"oah", "oah-api", "oah-worker", "oah-controller", "oah-gateway"} <= scripts


def test_units_signal_the_main_process_alone_and_leave_time_to_drain() -> None:
    units = files(".service", under=DEPLOY / "systemd")
    assert len(units) == 5
    for unit in units:
        text = unit.read_text()
        assert "\nKillMode=mixed\n" in text, name(unit)
        if "oah-worker" in unit.name:
            assert int(re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.M)[0]) > DRAIN + 10


def test_containers_leave_time_to_drain() -> None:
    worker = (DEPLOY / "kubernetes" / "base" / "worker.yaml").read_text()
    assert int(re.findall(r"terminationGracePeriodSeconds: (\d+)\n", worker)[0]) > DRAIN + 10
    compose = (DEPLOY / "docker" / "compose.yml").read_text()
    assert int(re.findall(r"stop_grace_period: (\d+)s", compose)[0]) > DRAIN + 10


def test_versions_agree() -> None:
    version = pyproject()["project"]["version"]
    images = {
        tag for path in files(".yaml", ".yml", under=DEPLOY) for tag in re.findall(r"\boah:([\d.]+)", path.read_text())
    }
    assert images == {version}
    assert f'__version__ = "{version}"' in (ROOT / "oah" / "__init__.py").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
