"""The tree: charters, packages with content, documents whose links hold, nothing of the machine it was written on."""

import ast
import re

import pytest

from tests.support.source import ROOT, files, name, pyproject, python, tree

REQUIRED = (
    *("pyproject.toml", "Procfile", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci/run"),
    *("constraints.txt", "docs/glossary.md", "docs/explanation/guarantees.md", "docs/explanation/dependencies.md"),
    *("docs/adr", "docs/how-to", "docs/reference", "docs/tutorials", "deploy", "grafana"),
)


def test_what_belongs_to_a_project_is_there() -> None:
    assert not [path for path in REQUIRED if not (ROOT / path).exists()]


def test_every_package_has_a_charter() -> None:
    for path in python():
        if path.name == "__init__.py":
            charter = ast.get_docstring(tree(path)) or ""
            assert len(charter.split()) >= 8, f"{name(path)}: say what belongs here and what does not"


def test_every_module_says_why_it_exists() -> None:
    silent = [name(path) for path in python() if not ast.get_docstring(tree(path))]
    assert not silent


def test_no_package_is_empty() -> None:
    for path in python():
        if path.name == "__init__.py":
            content = [one for one in files(under=path.parent) if one != path]
            assert content or len(tree(path).body) > 1, f"{name(path.parent)} holds nothing yet: do not create it"


def test_every_folder_of_modules_is_a_package() -> None:
    for path in python():
        assert (path.parent / "__init__.py").exists(), f"{name(path.parent)} has no charter"


# Names of registries and of machines: an image or a pin that names a host works in one place only.
HOSTS = re.compile(
    r"(--(extra-)?index-url|find-links|trusted-host|/opt/pypi|pypi-more|artifactory|docker\.io/|ghcr\.io|quay\.io"
    r"|gcr\.io|registry\.[a-z0-9.-]+/|pypi\.org|pythonhosted|\.corp\b|/work/(main|shared|tmp))"
)


def test_nothing_names_a_registry_or_this_machine() -> None:
    here = ROOT / "tests" / "architecture" / "test_tree.py"
    wrong = []
    for path in files():
        if path == here or path.suffix in {".png", ".svg", ".ico", ".db", ".gz", ".cast"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if HOSTS.search(line):
                wrong.append(f"{name(path)}:{number} {line.strip()[:80]}")
    assert not wrong


def _normalised(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def _declared() -> set[str]:
    project = pyproject()["project"]
    extras = [one for group in project["optional-dependencies"].values() for one in group]
    return {_normalised(one) for one in (*project["dependencies"], *extras)}


def test_constraints_pin_every_dependency_and_name_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_]+", line) for line in lines)
    assert not _declared() - {_normalised(line) for line in lines}
    assert "oah" not in {_normalised(line) for line in lines}


def test_every_dependency_is_explained() -> None:
    page = (ROOT / "docs" / "explanation" / "dependencies.md").read_text().lower()
    assert not {one for one in _declared() if f"`{one}`" not in page}


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", files(".md"), ids=name)
def test_links_of_documents_lead_somewhere(path) -> None:
    for target in LINK.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.S)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{name(path)} → {target}"
        if anchor and found.suffix == ".md":
            heads = {_anchor(line) for line in found.read_text().splitlines() if line.startswith("#")}
            assert anchor in heads, f"{name(path)} → {target}"


def _anchor(heading: str) -> str:
    text = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return text.replace(" ", "-")


def test_every_page_can_be_found() -> None:
    """A page that no other page links to is not there for a reader."""
    linked = set()
    for path in files(".md"):
        for target in LINK.findall(path.read_text()):
            linked.add((path.parent / target.partition("#")[0]).resolve())
    pages = [one for one in files(".md", under=ROOT / "docs") if one.name != "README.md"]
    lost = [name(one) for one in pages if one not in linked and one.parent not in linked]
    assert not lost
