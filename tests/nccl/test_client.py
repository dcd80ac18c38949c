"""The NCCL client by itself: checks, groups, and what it sends.  Each case of the C programs says what it
pins."""

from __future__ import annotations

import re

import pytest

from .conftest import CASE_FILES, Built

CASES = [name for source in CASE_FILES for name in re.findall(r"^CASE\((\w+),", source.read_text(), re.M)]


@pytest.mark.parametrize("case", CASES)
def test_case(built: Built, case: str) -> None:
    """The case's own checks hold, and its process ends cleanly."""
    result = built.run(case)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}{result.stderr}"
    assert result.stdout.endswith("passed\n")


def test_refusals_are_named_once(built: Built) -> None:
    """A refused function says so on standard error once, with reason and remedy; others say nothing."""
    lines = built.run("refused_functions_say_why").stderr.splitlines()
    assert [line.split(": ")[2] for line in lines] == ["ncclCommShrink", "ncclSignal"]
    assert "communicators do not change or lose their ranks: use ncclCommAbort" in lines[0]
