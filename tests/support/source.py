"""The project's own files, for the tests that read them."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "oah"
_SKIPPED = {".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache"}
_SKIPPED |= {".hypothesis", ".oah", "build", "dist", "results", "node_modules"}


def files(*suffixes: str, under: Path = ROOT) -> list[Path]:
    """All files of the project with one of these suffixes (or any), environments and caches left out."""
    return sorted(_walk(under, suffixes))


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name in _SKIPPED or entry.name.endswith(".egg-info"):
            continue
        if entry.is_dir():
            yield from _walk(entry, suffixes)
        elif not suffixes or entry.suffix in suffixes:
            yield entry


def name(path: Path) -> str:
    """A file's path inside the project."""
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(), filename=str(path))


def python(under: Path = PACKAGE) -> list[Path]:
    """Python files below a folder."""
    return files(".py", under=under)


def calls(path: Path) -> Iterator[ast.Call]:
    """Every call in a Python file."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes; the empty string for anything else."""
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return node.id if isinstance(node, ast.Name) else ""


def words(text: str) -> set[str]:
    """The words of an identifier, a path or a key, in lower case: `heldSessions/run_id` → held, sessions, run, id."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


@functools.cache
def pyproject() -> dict:
    """pyproject.toml as data."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
