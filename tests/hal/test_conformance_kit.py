"""The conformance kit finds what is wrong with a backend, and tells the reasons for not running apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from singularity_core import testing
from singularity_core.hal import Capability, HalError, errors

from .conftest import RunSuite

SOURCES = "".join(path.read_text() for path in Path(testing.__path__[0]).glob("*.py"))
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HalError)]

SUITE = """
from singularity_core.testing import Exclusion, Verdict, requires
from singularity_core.testing.suite import DeviceConformance

class TestDevice(DeviceConformance):
    backend_name = "array"
    {body}
    def raw_read(self, device, address, size):
        return device._bytes[address - device.require_arena().base :][:size].tobytes()
    def raw_write(self, device, address, content):
        at = address - device.require_arena().base
        device._bytes[at : at + len(content)] = list(content)
"""

# What is broken, how (old text, new text in the tutorial's backend), and the tests that must find it.
FAULTS = {
    "a copy that drops the last byte": (
        "        target[:] = source",
        "        target[:-1] = source[:-1]",
        "test_copies_on_the_device",
    ),
    "a write that lies, and a read that lies alike": (
        "            self._bytes = np.zeros(size, dtype=np.uint8)",
        "            self._bytes = np.zeros(size + 4096, dtype=np.uint8)[64:]\n"
        "            self._bytes = _Shifted(self._bytes)",
        "test_raw_reads_see_what_was_copied",
    ),
    "a fill that ignores its width": (
        '.view(f"u{width}")[:] = value & ((1 << 8 * width) - 1)',
        "[:] = value & 255",
        "test_fill",
    ),
    "no check of ranges": (
        "        check_inside(arena, address, size)\n",
        "",
        "test_ranges_outside_the_arena_are_refused",
    ),
    "an arena at another address": (
        "Arena(address or 1 << 32, size)",
        "Arena(1 << 32, size)",
        "test_arena_opens_where_it_was_asked_for",
    ),
    "overlapping copies are let through": (
        "if size and not disjoint(dst, src, size):",
        "if False:",
        "test_overlapping_copy_is_refused",
    ),
    "a digest that depends on the address": (
        "return digest(self._at(address, size).tobytes())",
        "return digest(self._at(address, size).tobytes() + bytes([address >> 9 & 255]))",
        "test_digest_depends_on_content_alone",
    ),
    "a digest that stops early": (
        "return digest(self._at(address, size).tobytes())",
        "return digest(self._at(address, size).tobytes()[:4096])",
        "test_digest_is_the_defined_one",
    ),
    "a second arena that replaces the first": (
        "            if self._arena:\n",
        "            if False:\n",
        "test_second_arena_is_refused",
    ),
    "too large an arena is another error": (
        'raise OutOfMemory(f"The arena',
        'raise InvalidArgument(f"The arena',
        "test_arena_beyond_the_limit_is_out_of_memory",
    ),
    "a closed device that still works": (
        "        if not self._open:",
        "        if False:",
        "test_closed_device_is_refused",
    ),
    "an ordinal that is not checked": (
        "        if ordinal != 0:",
        "        if False:",
        "test_missing_ordinal_is_refused",
    ),
    "an open arena that counts as free": (
        "MemoryInfo(MEMORY - len(self._bytes), MEMORY)",
        "MemoryInfo(MEMORY, MEMORY)",
        "test_memory_info",
    ),
    "a claimed capability that is not there": (
        "frozenset({Capability.CHECKSUM})",
        "frozenset({Capability.CHECKSUM, Capability.ACCUMULATE})",
        "test_accumulate",
    ),
    "a missing capability that does something": (
        "    def quiesce(self) -> None:",
        "    def create_stream(self, priority=0):\n        return 1\n\n    def quiesce(self) -> None:",
        "test_missing_capability_is_refused_by_name",
    ),
}

SHIFTED = """
class _Shifted(np.ndarray):
    def __new__(cls, real):
        return real.view(cls)
    def __getitem__(self, key):  # slices by address land 16 bytes on; what is under them stays consistent
        if isinstance(key, slice) and key.start is not None and key.stop is not None:
            return np.asarray(self)[key.start + 16 : key.stop + 16]
        return np.asarray(self)[key]
"""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.replace(" ", "-"))
def test_fault_is_found(tutorial: Path, tmp_path: Path, run_suite: RunSuite, fault: str) -> None:
    """A backend with one deliberate fault fails the test that is there for it."""
    good, bad, test = FAULTS[fault]
    source = (tutorial / "array_backend.py").read_text()
    assert source.count(good) >= 1
    plugin = tmp_path / "array_backend.py"
    plugin.write_text(
        source.replace(good, bad).replace("class ArrayDevice", SHIFTED + "\n\nclass ArrayDevice", 1)
    )
    outcome = run_suite(SUITE.format(body=""), "-k", test, plugins=[plugin])
    assert {name.partition("[")[0] for name in outcome.failed} == {test}, outcome.output[-3000:]


def test_healthy_backend_passes_those_tests(tutorial: Path, run_suite: RunSuite) -> None:
    """The tests that find the faults pass, or are skipped, on the backend without them."""
    names = " or ".join(sorted({test for _, _, test in FAULTS.values()}))
    outcome = run_suite(SUITE.format(body=""), "-k", names, plugins=[tutorial / "array_backend.py"])
    assert outcome.status == 0, outcome.output[-3000:]
    assert not outcome.failed


def test_exclusions_are_told_apart(tutorial: Path, run_suite: RunSuite) -> None:
    """UNSUPPORTED skips with its reason; EXPECTED_FAILURE runs, and an unexpected pass is a failure."""
    body = """exclusions = (
        Exclusion("test_fill[1]", "no bytes here"),
        Exclusion("test_fill[2]", "known fault", Verdict.EXPECTED_FAILURE),
    )"""
    outcome = run_suite(SUITE.format(body=body), "-k", "test_fill", plugins=[tutorial / "array_backend.py"])
    assert outcome.skipped == {"test_fill[1]"}
    assert outcome.failed == {"test_fill[2]"}
    assert outcome.passed == {"test_fill[4]"}
    assert "unsupported: no bytes here" in outcome.output
    assert "XPASS(strict)] known fault" in outcome.output


def test_expected_failure_that_fails_is_fine(tutorial: Path, tmp_path: Path, run_suite: RunSuite) -> None:
    """A fault that is listed does not fail the run."""
    plugin = tmp_path / "array_backend.py"
    good, bad, test = FAULTS["overlapping copies are let through"]
    plugin.write_text((tutorial / "array_backend.py").read_text().replace(good, bad))
    body = f'exclusions = (Exclusion("{test}", "no check yet", Verdict.EXPECTED_FAILURE),)'
    outcome = run_suite(SUITE.format(body=body), "-k", test, plugins=[plugin])
    assert outcome.status == 0
    assert outcome.xfailed == {test}


def test_exclusion_of_no_test_is_an_error(tutorial: Path, run_suite: RunSuite) -> None:
    """An exclusion that fits no test stops the suite: it would hide a renamed test."""
    body = 'exclusions = (Exclusion("test_that_is_not_there", "why not"),)'
    outcome = run_suite(SUITE.format(body=body), plugins=[tutorial / "array_backend.py"])
    assert outcome.status == 2
    assert "excludes 'test_that_is_not_there', and the suite has no such test" in outcome.output


def test_exclusion_needs_a_reason(tutorial: Path, run_suite: RunSuite) -> None:
    """An exclusion without a reason stops the suite."""
    outcome = run_suite(SUITE.format(body='exclusions = (Exclusion("test_fill*", " "),)'))
    assert outcome.status == 2
    assert "gives no reason" in outcome.output


UNAVAILABLE = """
from singularity_core.hal import Availability, Backend, BackendRegistration, hookimpl

class Absent(Backend):
    name, summary = "absent", "never there"
    def availability(self): return Availability.no("the cable is missing.", "Plug it in.")
    def device_count(self): return 0
    def properties(self, ordinal): self.require_available()
    def open_device(self, ordinal): self.require_available()

@hookimpl
def singularity_register_backends():
    return [BackendRegistration("absent", Absent)]
"""

NAMED = """
from singularity_core.testing.suite import DeviceConformance
class TestDevice(DeviceConformance): pass
"""


def test_unavailable_backend_skips_with_its_reason(tmp_path: Path, run_suite: RunSuite) -> None:
    """Without the device, its tests are skipped as unavailable; those about being unavailable run."""
    (tmp_path / "absent.py").write_text(UNAVAILABLE)
    outcome = run_suite(NAMED, "--hal-backend", "absent", plugins=[tmp_path / "absent.py"])
    assert outcome.status == 0, outcome.output[-3000:]
    assert {"test_unavailable_backend_raises_unavailable", "test_availability_says_why"} <= outcome.passed
    assert (
        "unavailable: Backend 'absent' is not available: the cable is missing. Plug it in." in outcome.output
    )


def test_must_run_fails_instead(tmp_path: Path, run_suite: RunSuite) -> None:
    """Under --hal-must-run an unavailable backend is a failure."""
    (tmp_path / "absent.py").write_text(UNAVAILABLE)
    arguments = ("--hal-backend", "absent", "--hal-must-run", "-k", "test_copies_keep_content")
    outcome = run_suite(NAMED, *arguments, plugins=[tmp_path / "absent.py"])
    assert outcome.status == 1
    assert outcome.errors


def test_other_errors_are_not_skipped(tmp_path: Path, run_suite: RunSuite) -> None:
    """A backend that is available but does not open is a failure, whatever it raises."""
    text = UNAVAILABLE.replace(
        'Availability.no("the cable is missing.", "Plug it in.")', "Availability.yes()"
    )
    text = text.replace(
        "def open_device(self, ordinal): self.require_available()",
        "def open_device(self, ordinal): raise OSError('smoke')",
    )
    (tmp_path / "absent.py").write_text(text)
    outcome = run_suite(NAMED, "--hal-backend", "absent", "-k", "test_fill", plugins=[tmp_path / "absent.py"])
    assert outcome.status == 1
    assert {name.partition("[")[0] for name in outcome.errors} == {"test_fill"}


def test_without_a_name_nothing_runs(run_suite: RunSuite) -> None:
    """The suite without a backend skips, and says how to name one."""
    outcome = run_suite(NAMED, "-k", "test_fill")
    assert outcome.status == 0
    assert not outcome.passed | outcome.failed
    assert "use --hal-backend" in outcome.output


def test_unknown_backend_is_an_error(run_suite: RunSuite) -> None:
    """A name that no plugin registered is an error that lists the candidates, not a skip."""
    outcome = run_suite(NAMED, "--hal-backend", "nonsense", "-k", "test_fill")
    assert outcome.status == 1
    assert "There is no backend 'nonsense'; installed are:" in outcome.output


@pytest.mark.parametrize("kind", [k for k in ERRORS if k is not HalError], ids=lambda k: k.__name__)
def test_every_error_has_a_test(kind: type[HalError]) -> None:
    """The suite expects each error of the contract somewhere."""
    listed = re.search(r'parametrize\(\s*"error", \[(.*?)\]', SOURCES, re.DOTALL)
    assert f"raises({kind.__name__})" in SOURCES or (listed and kind.__name__ in listed[1])


@pytest.mark.parametrize("capability", list(Capability), ids=lambda c: c.value)
def test_every_capability_has_a_test(capability: Capability) -> None:
    """The suite asks for each capability somewhere."""
    assert f"Capability.{capability.name}" in SOURCES
