"""The tutorial for backend authors works, and names all that there is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from singularity_core.hal import Backend, Capability, Device, Group, HalError, errors, hookspecs

from .conftest import DOCUMENT, ROOT, RunSuite


def test_tutorial_runs(tutorial: Path) -> None:
    """The commands of the tutorial work on the backend that it builds, without packaging."""
    environment = {**os.environ, "SINGULARITY_PLUGINS": str(tutorial / "array_backend.py")}
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tutorial,
        env=environment,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_tutorial_backend_is_short(tutorial: Path) -> None:
    """A whole backend fits in fewer than 200 lines."""
    assert len((tutorial / "array_backend.py").read_text().splitlines()) < 200


def test_tutorial_backend_conforms(tutorial: Path, run_suite: RunSuite) -> None:
    """The tutorial's backend passes all tests of what it claims, and refuses the rest by name."""
    text = (tutorial / "test_array.py").read_text()
    outcome = run_suite(text, plugins=[tutorial / "array_backend.py"])
    assert outcome.status == 0, outcome.output[-4000:]
    assert not outcome.failed | outcome.errors
    assert len(outcome.passed) > 100
    assert any(name.startswith("test_missing_capability_is_refused_by_name") for name in outcome.passed)


@pytest.mark.parametrize("capability", list(Capability), ids=lambda c: c.value)
def test_capability_is_documented(capability: Capability) -> None:
    """Every capability stands in the authors' table."""
    assert f"\n| `{capability.value}` |" in DOCUMENT.read_text()


def test_hooks_are_documented() -> None:
    """Every hook is named in the authors' documentation, and has a docstring."""
    hooks = [name for name in vars(hookspecs) if name.startswith("singularity_")]
    assert hooks == ["singularity_register_backends"]
    for name in hooks:
        assert f"`{name}`" in DOCUMENT.read_text()
        assert inspect.getdoc(getattr(hookspecs, name))


def test_errors_are_documented() -> None:
    """Every error class stands in the authors' table."""
    kinds = [
        k
        for k in vars(errors).values()
        if isinstance(k, type) and issubclass(k, HalError) and k is not HalError
    ]
    for kind in kinds:
        assert f"\n| `{kind.__name__}` |" in DOCUMENT.read_text(), kind


@pytest.mark.parametrize("contract", [Device, Backend, Group], ids=lambda c: c.__name__)
def test_contract_methods_have_docstrings(contract: type) -> None:
    """Every public method of the contract says what it means."""
    for name, member in vars(contract).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{contract.__name__}.{name}"


def test_mentioned_methods_exist() -> None:
    """Methods that the capability table names are methods of the contract."""
    table = DOCUMENT.read_text().split("## Capabilities")[1].split("## Errors")[0]
    for name in re.findall(r"`([a-z_]+)(?:\(\w+=True\))?`", table):
        known = any(hasattr(kind, name) for kind in (Device, Backend, Group))
        assert known or name in {c.value for c in Capability} or name in ("sg_hal_table",), name


def test_reference_is_current() -> None:
    """The reference page is what the docstrings say."""
    command = [sys.executable, str(ROOT / "docs" / "make_hal_reference.py"), "--check"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, f"run docs/make_hal_reference.py\n{done.stderr}"
