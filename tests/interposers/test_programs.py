"""The C programs of the in-memory device's tests as ranks behind a proxy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import ROOT, SANITIZER, compile_c, sanitizer_options
from .conftest import Served, Stack, serving

DEVICE_TESTS = ROOT / "tests" / "device"
SOURCES = [
    DEVICE_TESTS / "programs" / f"{name}.c"
    for name in ("faults", "graphs", "kernels", "lifecycle", "memory", "streams")
]
DIFFERS = {
    # not interposed or declined by name: docs/reference-supported-calls.md
    "nodes_run_after_what_they_need": "host nodes",
    "updates_hold_for_later_launches_only": "cuGraphKernelNodeGetParams",
    "clones_and_children": "cuGraphNodeFindInClone",
    "executable_graphs_take_updates_of_the_same_shape": "cuGraphNodeFindInClone",
    "captured_work_becomes_a_graph": "host functions in a captured graph",
    "libraries_and_kernels": "cuLibraryGetModule",
    # the proxy's own ways: decisions 0001 to 0003
    "captures_refuse_what_they_cannot_hold": "streams are captured in relaxed mode",
    "allocations_are_distinct_and_aligned": "a session's memory is a part of the device's",
    "attributes_are_consistent": "a session's memory is a part of the device's",
    "memory_runs_out_as_on_a_card": "a session's memory is a part of the device's",
    **dict.fromkeys(
        (
            "foreign_addresses_are_reported",
            "many_faults_leave_no_trace",
            "traps_have_their_codes",
            "work_after_a_fault_is_not_done",
            "cold_the_application_keeps_its_handler",
            "a_handler_installed_later_is_chained",
        ),
        "a sticky error is the session's: another context does not help",
    ),
    # Pageable memory is copied in the rank, as by the vendor's driver, and a rank that names memory which it
    # does not have ends.  Looking first would cost each copy a system call; signal handlers are programs'.
    "unreadable_host_memory_is_refused_by_the_call": "the client reads host memory itself",
    # Pages stay mapped in rank and proxy until the session ends: programs lock and unlock memory in waves.
    "page_locked_memory_is_not_illegal": "a kernel may use page-locked memory that was freed",
    # the test speaks to the device's library
    "failures_can_be_injected": "sgf_inject_failures",
}
"""Cases that do not hold through the proxy, and why."""


def cases() -> list[object]:
    """All cases.  One that differs must: what holds after all fails here until its entry is gone."""
    found = []
    for source in SOURCES:
        for name in re.findall(r"^CASE\((\w+),", source.read_text(), re.M):
            why = DIFFERS.get(name)
            marks = [] if why is None else [pytest.mark.xfail(reason=why, strict=True)]
            if why is None or not SANITIZER:
                found.append(pytest.param(source, name, id=f"{source.stem}-{name}", marks=marks))
    return found


@pytest.fixture(scope="session")
def programs(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the programs, linked with the client."""
    out = tmp_path_factory.mktemp("programs")
    library = [f"-L{stack.client}", "-l:libcuda.so.1", "-Wl,--defsym=sgf_inject_failures=0"]
    options = ["-isystem", str(header_directory()), f"-I{DEVICE_TESTS / 'programs'}", *library]
    for source in SOURCES:
        compile_c(out / source.stem, [source, DEVICE_TESTS / "programs" / "main.c"], *options)
    return out


@pytest.fixture(scope="module")
def served(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One proxy for all cases: what one leaves behind must not trouble the next."""
    settings = {
        "SINGULARITY_FAKE_PTX_COMPILE": f"{sys.executable} {DEVICE_TESTS / 'gcc_compile_service.py'}",
        "SINGULARITY_FAKE_CACHE": str(tmp_path_factory.mktemp("cache")),
        "SINGULARITY_FAKE_MEMORY": "256M",
        "SINGULARITY_FAKE_THREADS": "3",
        "KERNEL_IMAGE": str(DEVICE_TESTS / "programs" / "kernels.image"),
    }
    with serving(stack, settings) as found:
        yield found


@pytest.mark.parametrize(("source", "case"), cases())
def test_case(served: Served, programs: Path, source: Path, case: str) -> None:
    """The case's own checks hold, and its process ends cleanly."""
    result = served.run(str(programs / source.stem), case, timeout=10, **sanitizer_options())
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}{result.stderr}"
    assert result.stdout.endswith("passed\n")
