"""What the in-memory device does not support, it refuses by name and line; and kernels print."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "refusals.py"
INVALID_PTX, UNSUPPORTED_PTX_VERSION, NOT_FOUND, NOT_SUPPORTED, INVALID_IMAGE = 218, 222, 500, 801, 200


@dataclass
class Answer:
    code: int
    log: str
    size: int  # of the log, as the load returned it
    said: str  # the error log that the program asked for, and what reached the job's output


@pytest.fixture(params=("native", "proxied"))
def ask(request: pytest.FixtureRequest, run_rank: Any, tmp_path: Path) -> Callable[[str], Answer]:
    def run(name: str) -> Answer:
        done = run_rank(request.param, PROGRAM, str(tmp_path / "answer.json"), name)
        answer = json.loads((tmp_path / "answer.json").read_text())
        log = answer.get("log", "")
        return Answer(answer.get("code", 0), log, answer.get("size", 0), log + done.stdout + done.stderr)

    return run


def test_unknown_opcode_is_refused_by_name_and_line(ask: Callable[[str], Answer]) -> None:
    """A kernel with an opcode that the device lacks is NOT_SUPPORTED, with the opcode and its line named."""
    answer = ask("unknown_opcode")
    assert answer.code == NOT_SUPPORTED
    assert "frobnicate" in answer.said
    assert "line 9" in answer.said


@pytest.mark.parametrize("name", ["missing_brace", "undeclared_register", "undefined_label", "wrong_type"])
def test_malformed_ptx_is_refused_with_its_line(ask: Callable[[str], Answer], name: str) -> None:
    """PTX that no assembler would take is INVALID_PTX, with the line named."""
    answer = ask(name)
    assert answer.code == INVALID_PTX
    assert "line" in answer.said


@pytest.mark.parametrize("name", ["missing_brace", "future_version", "not_ptx"])
def test_refusal_is_in_the_error_log(ask: Callable[[str], Answer], name: str) -> None:
    """The log buffer of cuModuleLoadDataEx holds the reason, and its size option how long that is."""
    answer = ask(name)
    expected = {"missing_brace": "line", "future_version": "99.0", "not_ptx": "neither PTX nor"}[name]
    assert expected in answer.log
    assert answer.size == len(answer.log) + 1


def test_error_log_is_cut_to_its_buffer(ask: Callable[[str], Answer]) -> None:
    """A log that does not fit is cut; its NUL is within the size that was given."""
    answer = ask("little_room")
    assert len(answer.log) == 15
    assert answer.size == 16


def test_error_log_of_a_success_is_empty(ask: Callable[[str], Answer]) -> None:
    """Where nothing is refused, the log is empty and its size 0."""
    answer = ask("good")
    assert (answer.code, answer.log, answer.size) == (0, "", 0)


def test_text_that_is_no_ptx_is_refused(ask: Callable[[str], Answer]) -> None:
    """An image that is neither PTX nor a binary is INVALID_IMAGE or INVALID_PTX."""
    assert ask("not_ptx").code in (INVALID_IMAGE, INVALID_PTX)


def test_newer_ptx_version_is_refused(ask: Callable[[str], Answer]) -> None:
    """PTX of a version from the future is UNSUPPORTED_PTX_VERSION."""
    assert ask("future_version").code == UNSUPPORTED_PTX_VERSION


def test_correct_ptx_runs(ask: Callable[[str], Answer]) -> None:
    """The text that the others are broken copies of runs."""
    assert ask("good").code == 0


def test_missing_kernel_is_not_found(ask: Callable[[str], Answer]) -> None:
    """cuModuleGetFunction for a name that is not in the module returns NOT_FOUND."""
    assert ask("missing_kernel").code == NOT_FOUND


def test_printf_reaches_the_output(ask: Callable[[str], Answer]) -> None:
    """Device printf appears on the job's output, with its arguments formatted."""
    said = ask("printing").said
    assert "thread 0 of 3: -7 2.500 text 0x00ff 123456789012" in said
    assert "thread 2 of 3: -5 3.500 text 0x0101 123456789014" in said
