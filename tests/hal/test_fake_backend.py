"""The in-memory device conforms to the contract, and its backend says what is wrong with its settings."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from singularity_backend_fake import FakeBackend
from singularity_backend_fake.settings import FakeSettings

from singularity_core.hal import (
    Backend,
    Capability,
    Device,
    DeviceLost,
    HalError,
    InvalidArgument,
    State,
)
from singularity_core.hal.driver_abi import DriverDevice
from singularity_core.testing.driver import DriverConformance


class TestFakeDevice(DriverConformance):
    """The whole suite; device memory is memory of this process, so raw accessors need no driver."""

    backend_name = "fake"
    must_run = True
    expected: ClassVar[frozenset[Capability]] = frozenset(Capability)

    def raw_read(self, device: Device, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def raw_write(self, device: Device, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def provoke(self, device: Device, error: type[HalError]) -> None:
        if error is not DeviceLost:
            super().provoke(device, error)
            return
        assert isinstance(device, DriverDevice)
        library = ctypes.CDLL(str(device.library_path))
        library.sgf_inject_failures(b"kernel:1=214")
        try:
            device.digest_by_kernel(device.require_arena().base, 0)
        except DeviceLost:
            pass
        finally:
            library.sgf_inject_failures(b"")

    def test_in_memory_device_has_every_capability(self, device: Device, available_backend: Backend) -> None:
        """The reference device lacks nothing and is not alone, so that every test of the suite runs
        somewhere."""
        assert device.capabilities == self.expected
        assert available_backend.device_count() >= 2


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without settings of the in-memory device."""
    for name in [name for name in os.environ if name.startswith("SINGULARITY_FAKE_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_settings_have_defaults(clean_environment: pytest.MonkeyPatch) -> None:
    """Without settings the installed library is used, and PTX is compiled by this very Python."""
    settings = FakeSettings.from_environment(os.environ)
    assert settings.library.name == "libcuda.so.1"
    assert settings.library.parent.name == "lib"
    assert settings.compiler == f"{sys.executable} -P -m singularity_backend_fake.ptx"
    assert (settings.devices, settings.memory, settings.threads) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64K", 65536), ("2g", 2 << 30), ("512MiB", 512 << 20)]
)
def test_memory_is_read_with_its_unit(text: str, size: int) -> None:
    """Sizes are bytes, or have a unit."""
    assert FakeSettings.from_environment({"SINGULARITY_FAKE_MEMORY": text}).memory == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEVICES", "9"),
        ("DEVICES", "two"),
        ("DEVICES", "-1"),
        ("MEMORY", "lots"),
        ("MEMORY", "0"),
        ("THREADS", "1K"),
    ],
)
def test_senseless_setting_is_named(clean_environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A setting that makes no sense is an error that names the variable, and makes the backend
    unavailable."""
    variable = f"SINGULARITY_FAKE_{name}"
    with pytest.raises(InvalidArgument, match=variable):
        FakeSettings.from_environment({variable: value})
    clean_environment.setenv(variable, value)
    found = FakeBackend().availability()
    assert found.state is State.UNAVAILABLE
    assert variable in found.reason
    assert variable in found.remedy


def test_missing_library_is_told(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its library the backend is unavailable, and says where it looked."""
    clean_environment.setenv("SINGULARITY_FAKE_LIBRARY", str(tmp_path / "libcuda.so.1"))
    found = FakeBackend().availability()
    assert not found.available
    assert str(tmp_path) in found.reason
    assert FakeBackend().device_count() == 0


def test_what_is_no_library_is_told(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that the loader refuses makes the backend unavailable, with the loader's words."""
    path = tmp_path / "libcuda.so.1"
    path.write_text("no library")
    clean_environment.setenv("SINGULARITY_FAKE_LIBRARY", str(path))
    found = FakeBackend().availability()
    assert not found.available
    assert "does not load" in found.reason


def test_proxy_compiles_with_this_python() -> None:
    """A proxy gets the compiler of this environment, whatever python3 means there."""
    assert FakeBackend().proxy_environment()["SINGULARITY_FAKE_PTX_COMPILE"]
