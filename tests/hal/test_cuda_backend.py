"""The backend for NVIDIA devices: its code for vendor libraries runs on the in-memory device, without its
table."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_backend_cuda import CudaBackend, locate
from singularity_backend_fake import FakeBackend

from singularity_core.hal import Backend, Capability, Device, InvalidArgument, OutOfMemory, State, Unavailable
from singularity_core.testing.driver import DriverConformance

from .conftest import ROOT


@pytest.fixture(scope="module")
def vendor_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that offers what a vendor's does: no native table, but virtual memory management."""
    device = FakeBackend().driver_library()
    assert FakeBackend().device_count() >= 1, "the in-memory device must work here"
    path = tmp_path_factory.mktemp("vendor") / "libvendor.so.1"
    source = ROOT / "tests" / "hal" / "virtual_memory_shim.c"
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        f"-I{ROOT}",
    ]
    links = [str(device), f"-Wl,-rpath,{device.parent}"]
    subprocess.run([*command, str(source), "-o", str(path), *links], check=True, timeout=60)
    return path


class TestCudaBackend(DriverConformance):
    """The whole suite on the CUDA backend; raw accessors go through the driver."""

    backend_name = "cuda"
    must_run = True

    @pytest.fixture(autouse=True)
    def shim(self, vendor_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
        """The vendor's library, which must not be left with anything taken."""
        monkeypatch.setenv(locate.LIBRARY_VARIABLE, str(vendor_library))
        shim = ctypes.CDLL(str(vendor_library))
        yield shim
        assert shim.shim_leaks() == 0

    def test_it_is_the_other_way(self, device: Device) -> None:
        """This run tests the code for libraries without a native table."""
        assert Capability.NATIVE_TABLE not in device.capabilities
        assert Capability.RANGE_TRACKING not in device.capabilities
        assert device.native_table()

    def test_arena_that_fails_halfway_leaves_nothing(self, device: Device, shim: ctypes.CDLL) -> None:
        """When physical memory ends in the middle of an arena, all of it is given back."""
        device.open_arena(self.arena_address, self.arena_size)
        device.close_arena()
        shim.shim_fail_create(1)
        with pytest.raises(OutOfMemory):
            device.open_arena(self.arena_address, self.arena_size)
        assert shim.shim_leaks() == 0
        assert device.open_arena(self.arena_address, self.arena_size).base == self.arena_address

    def test_address_that_cannot_be_had_is_refused(self, device: Device, shim: ctypes.CDLL) -> None:
        """A driver that gives another address than the wanted one is answered with InvalidArgument."""
        with pytest.raises(InvalidArgument, match="it offers"):
            device.open_arena(0x1000, self.arena_size)
        assert shim.shim_leaks() == 0

    def test_registered_memory_ends_with_the_device(self, available_backend: Backend) -> None:
        """Closing a device that still holds an arena gives everything back."""
        device = available_backend.open_device(0)
        device.open_arena(self.arena_address, self.arena_size)
        device.close()


def test_missing_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver library the backend is unavailable, and says how to get one."""
    monkeypatch.setattr(locate, "candidates", lambda environ: iter(()))
    backend = CudaBackend()
    found = backend.availability()
    assert found.state is State.UNAVAILABLE
    assert "libcuda.so.1" in found.reason
    assert locate.LIBRARY_VARIABLE in found.remedy
    assert backend.device_count() == 0
    for call in (backend.driver_library, lambda: backend.open_device(0), lambda: backend.properties(0)):
        with pytest.raises(Unavailable):
            call()


def test_own_libraries_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A libcuda.so.1 of ours that LD_LIBRARY_PATH names first is not taken for the vendor's."""
    ours, vendors = tmp_path / "ours", tmp_path / "vendors"
    for folder, content in ((ours, b"\x7fELF sg_hal_open_table"), (vendors, b"\x7fELF of another origin")):
        folder.mkdir()
        (folder / locate.NAME).write_bytes(content)
    monkeypatch.setattr(locate, "_loader_cache", lambda: iter(()))
    found = locate.find({"LD_LIBRARY_PATH": f"{ours}::{vendors}"})
    assert found == vendors / locate.NAME


def test_installed_libraries_are_known_as_ours() -> None:
    """The in-memory device's library is recognised."""
    assert locate.is_ours(FakeBackend().driver_library())


def test_named_library_is_taken(tmp_path: Path) -> None:
    """SINGULARITY_CUDA_LIBRARY is believed; a name that is not there is not replaced by another library."""
    library = tmp_path / "special.so"
    library.write_bytes(b"anything")
    assert locate.find({locate.LIBRARY_VARIABLE: str(library)}) == library
    assert locate.find({locate.LIBRARY_VARIABLE: str(tmp_path / "absent.so")}) is None
