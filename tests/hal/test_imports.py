"""Who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT

BACKENDS = sorted(path for path in (ROOT / "backends").iterdir() if (path / "__init__.py").exists())


def imported(path: Path, package: str) -> Iterator[str]:
    """Absolute names of the modules that a file imports, at any depth, including under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield ".".join([*parts, *([node.module] if node.module else [])])


def files(root: Path, package: str) -> Iterator[tuple[Path, str]]:
    """Source files under `root`, each with the package that it belongs to."""
    for path in sorted(root.rglob("*.py")):
        folders = path.parent.relative_to(root).parts
        yield path, ".".join([package, *folders])


def test_core_imports_no_backend() -> None:
    """Nothing in the core imports a backend, or names one's package."""
    for path, package in files(ROOT / "singularity_core", "singularity_core"):
        for name in imported(path, package):
            assert not name.startswith("singularity_backend"), f"{path} imports {name}"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda path: path.name)
def test_backend_imports_only_the_contract(backend: Path) -> None:
    """A backend uses singularity_core.hal, and nothing else of the core or of other backends."""
    own = f"singularity_backend_{backend.name}"
    for path, package in files(backend, own):
        for name in imported(path, package):
            if name.startswith("singularity_"):
                allowed = name == own or name.startswith((f"{own}.", "singularity_core.hal"))
                assert allowed, f"{path} imports {name}"


def test_contract_imports_nothing_of_the_core() -> None:
    """The HAL depends on no other part of the core."""
    for path, package in files(ROOT / "singularity_core" / "hal", "singularity_core.hal"):
        for name in imported(path, package):
            assert not name.startswith("singularity_") or name.startswith("singularity_core.hal"), (
                f"{path}: {name}"
            )


def test_core_asks_for_no_backend_by_name() -> None:
    """No code of the core compares a backend's name: no `if backend == ...`."""
    known = {path.name for path in BACKENDS}
    for path, _ in files(ROOT / "singularity_core", "singularity_core"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                constants = [n.value for n in (node.left, *node.comparators) if isinstance(n, ast.Constant)]
                assert not known & {c for c in constants if isinstance(c, str)}, f"{path}:{node.lineno}"
