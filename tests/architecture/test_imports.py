"""Who may import whom. The rules are the contracts in pyproject.toml; here they run, and are shown to bite."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.source import PACKAGE, ROOT, name, pyproject, python, tree

LINT = Path(sys.executable).parent / "lint-imports"


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [str(LINT), "--no-logo", "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_contract_is_kept() -> None:
    answer = _lint(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr


PLANTED = {
    "core/model/planted.py": ("import time\n", "core is pure"),
    "core/policy/planted.py": ("import redis\n", "redis lives in adapters/redis"),
    "api/planted.py": ("import oah.worker\n", "layers, exhaustive"),
    "services/planted.py": ("import oah.adapters.sql\n", "layers, exhaustive"),
    "worker/planted.py": ("import oah.adapters.sql\n", "a process gets its adapters"),
    "adapters/sql/planted.py": ("import psutil\nimport oah.adapters.redis\n", "psutil lives in adapters/system"),
    "ports/planted.py": ("import threading\n", "ports are shapes"),
    "runtime/planted.py": ("import prometheus_client\n", "prometheus_client lives in"),
}


def test_the_contracts_bite(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "oah", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, (text, _) in PLANTED.items():
        (tmp_path / "oah" / file).write_text(text)
    answer = _lint(tmp_path)
    assert answer.returncode != 0
    broken = set(re.findall(r"^(.*) BROKEN\b", answer.stdout, flags=re.M))
    for file, (_, contract) in PLANTED.items():
        assert any(line.startswith(contract) for line in broken), f"{file} broke nothing named {contract!r}: {broken}"
    assert any(line.startswith("adapters do not import each other") for line in broken), broken


def test_a_new_top_level_package_must_be_placed(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "oah", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "oah" / "attic").mkdir()
    (tmp_path / "oah" / "attic" / "__init__.py").write_text("")
    answer = _lint(tmp_path)
    assert answer.returncode != 0
    assert "oah.attic" in answer.stdout


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_every_third_party_library_has_a_home() -> None:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    housed = {module for one in contracts if one["id"].startswith("home-") for module in one["forbidden_modules"]}
    homeless = {
        (name(path), module)
        for path in python()
        for module in _imported(path) - sys.stdlib_module_names - {"oah"} - housed
    }
    assert not homeless, "a library without a home: add a contract home-… to pyproject.toml"


# Imports by name: each is of something that may be absent.
BY_NAME = {"oah/testing/forker.py": "a warm process has what others need at once or soon, and uses nothing of it"}


def test_imports_are_absolute_and_visible() -> None:
    for path in python():
        for node in ast.walk(tree(path)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{name(path)}:{node.lineno} relative import"
        by_name = re.search(r"\b(__import__|importlib\.import_module)\(", path.read_text()) is not None
        assert by_name == (name(path) in BY_NAME), f"{name(path)} hides an import"


def test_core_asks_no_clock_and_opens_nothing() -> None:
    forbidden = {"now", "today", "utcnow", "open", "print", "input", "exec", "eval", "urandom"}
    for path in python(PACKAGE / "core"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert called not in forbidden, f"{name(path)}:{node.lineno} calls {called}()"
