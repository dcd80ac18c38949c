"""What the in-memory device does not support, it refuses by name and line; kernels print and time goes by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module", params=("native", "proxied"))
def refusals(
    request: pytest.FixtureRequest, run_rank: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    answers = tmp_path_factory.mktemp("refusals") / "answers.json"
    done = run_rank(request.param, PROGRAMS / "refusals.py", str(answers))
    return {**json.loads(answers.read_text()), "output": done.stdout + done.stderr}


def test_unknown_opcode_is_refused_by_name_and_line(refusals: dict[str, Any]) -> None:
    """PTX with an opcode the device lacks is NOT_SUPPORTED, and the log says which and where."""
    answer = refusals["unknown_opcode"]
    assert answer["code"] == 801
    assert "frobnicate" in answer["log"]
    assert "line 9" in answer["log"]


@pytest.mark.parametrize(
    "name", ["not_ptx", "missing_brace", "undeclared_register", "undefined_label", "wrong_type"]
)
def test_malformed_ptx_is_refused(refusals: dict[str, Any], name: str) -> None:
    """PTX that no assembler would take is INVALID_PTX, with a line in the log."""
    assert refusals[name]["code"] == 218
    assert "line" in refusals[name]["log"]


def test_newer_ptx_version_is_refused(refusals: dict[str, Any]) -> None:
    """PTX of a version from the future is UNSUPPORTED_PTX_VERSION."""
    assert refusals["future_version"]["code"] == 222


def test_module_loads_after_refusals(refusals: dict[str, Any]) -> None:
    """A refused module leaves the context usable."""
    assert refusals["good"]["code"] == 0


def test_missing_kernel_is_not_found(refusals: dict[str, Any]) -> None:
    """cuModuleGetFunction for a name that is not in the module returns NOT_FOUND."""
    assert refusals["missing_kernel"]["code"] == 500


def test_printf_reaches_the_output(refusals: dict[str, Any]) -> None:
    """Device printf appears on the job's output, with its arguments formatted."""
    for line in (
        "thread 0 of 3: -7 2.500 text 0x00ff 123456789012",
        "thread 2 of 3: -5 3.500 text 0x0101 123456789014",
    ):
        assert line in refusals["output"]
