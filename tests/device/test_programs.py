"""Runs every case of the C programs in a process of its own; the cases say what they pin."""

from __future__ import annotations

import re

import pytest

from .conftest import PROGRAMS, Built

CASES = [
    (source.stem, name)
    for source in sorted(PROGRAMS.glob("*.c"))
    for name in re.findall(r"^CASE\((\w+),", source.read_text(), re.M)
]


@pytest.mark.parametrize(("program", "case"), CASES, ids=[f"{program}-{case}" for program, case in CASES])
def test_case(built: Built, program: str, case: str) -> None:
    """The case's own checks hold, and its process ends cleanly."""
    result = built.run(program, case)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}{result.stderr}"
    assert result.stdout.endswith("passed\n")


def test_kernel_output_reaches_standard_output(built: Built) -> None:
    """printf of a kernel formats integers, floats, strings, long longs and percent signs."""
    result = built.run("kernels", "printf_formats_its_arguments")
    assert result.stdout.splitlines()[0] == "-7| 2.50|text|1099511627776|%"


def test_faults_are_told(built: Built) -> None:
    """A fault is reported on standard error with the kernel's name and the address."""
    result = built.run("faults", "unchecked_accesses_are_caught_too")
    assert "kernel wild: illegal address at 0x40" in result.stderr


def test_failures_are_injected_from_the_environment(built: Built) -> None:
    """SINGULARITY_FAKE_FAIL makes the named call fail."""
    result = built.run("memory", "frees_are_checked", SINGULARITY_FAKE_FAIL="cuMemAlloc:1=2")
    assert result.returncode == 1
    assert "gave 2" in result.stderr


@pytest.mark.parametrize("threads", ["1", "8"])
@pytest.mark.parametrize(
    "case", ["every_block_runs_once", "saxpy_agrees_with_a_loop", "blocks_may_wait_for_later_blocks"]
)
def test_results_do_not_depend_on_the_number_of_threads(built: Built, case: str, threads: str) -> None:
    """One thread or more than there are processors: the same results."""
    result = built.run("kernels", case, SINGULARITY_FAKE_THREADS=threads)
    assert result.returncode == 0, result.stderr


def test_parallel_atomics_can_be_allowed(built: Built) -> None:
    """The flag lifts index order: the kernel still runs, its order is then free."""
    result = built.run("kernels", "every_block_runs_once", SINGULARITY_FAKE_PARALLEL_ATOMICS="1")
    assert result.returncode == 0, result.stderr
