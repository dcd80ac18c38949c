"""The suite for backends behind the driver ABI: raw access and provoked errors come from the driver
itself."""

from __future__ import annotations

from typing import Any

import pytest

from ..hal import Capability, Device, ExecutionFailed, HalError, MisalignedAddress
from ..hal.driver_abi import DriverDevice
from ..hal.driver_calls import DriverLibrary
from .requirements import requires
from .suite import DeviceConformance, Workspace

_HEADER = ".version 6.5\n.target sm_75\n.address_size 64\n"
PROVOCATIONS: dict[type[HalError], str] = {
    ExecutionFailed: _HEADER + ".visible .entry provoke(.param .u64 p) { trap; }",
    MisalignedAddress: _HEADER
    + """.visible .entry provoke(.param .u64 p) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [p]; cvta.to.global.u64 %a, %a; add.u64 %a, %a, 1;
    mov.u32 %v, 7; st.global.u32 [%a], %v; ret; }""",
}
"""Kernels without loops that make the device fail, by the error that results."""


def launch(device: DriverDevice, ptx: str, argument: int) -> None:
    """Loads `ptx` into the device's context and starts its kernel ``provoke`` with one 64-bit parameter."""
    library = DriverLibrary(device.library_path)
    ffi: Any = library.ffi
    module, function = ffi.new("void **"), ffi.new("void **")
    value = ffi.new("uint64_t *", argument)
    parameters = ffi.new("void *[]", [ffi.cast("void *", value)])
    with _Current(library, device):
        library.call("cuModuleLoadData", module, ffi.new("char[]", ptx.encode()))
        library.call("cuModuleGetFunction", function, module[0], b"provoke")
        shape = (1, 1, 1, 1, 1, 1)
        library.call("cuLaunchKernel", function[0], *shape, 0, ffi.NULL, parameters, ffi.NULL)


class DriverConformance(DeviceConformance):
    """The whole suite; raw accessors go past the HAL, straight to the driver's copies."""

    def raw_read(self, device: Device, address: int, size: int) -> bytes:
        library, ffi = self._library(device)
        content = bytearray(size)
        with _Current(library, device):
            library.call("cuMemcpyDtoHAsync_v2", ffi.from_buffer(content), address, size, ffi.NULL)
            library.call("cuCtxSynchronize")
        return bytes(content)

    def raw_write(self, device: Device, address: int, content: bytes) -> None:
        library, ffi = self._library(device)
        with _Current(library, device):
            library.call("cuMemcpyHtoDAsync_v2", address, ffi.from_buffer(content), len(content), ffi.NULL)
            library.call("cuCtxSynchronize")

    def provoke(self, device: Device, error: type[HalError]) -> None:
        if error not in PROVOCATIONS:
            pytest.skip(f"unsupported: no kernel can provoke {error.__name__}")
        assert isinstance(device, DriverDevice)
        launch(device, PROVOCATIONS[error], device.require_arena().base)

    @staticmethod
    def _library(device: Device) -> tuple[DriverLibrary, Any]:
        assert isinstance(device, DriverDevice)
        library = DriverLibrary(device.library_path)
        return library, library.ffi

    @requires(Capability.KERNELS_PTX, Capability.CHECKSUM)
    def test_kernel_digest_agrees_with_the_native_one(self, space: Workspace) -> None:
        """The digest kernel and the library's own digest are the same function."""
        device = space.device
        assert isinstance(device, DriverDevice)
        address = space.put(bytes(range(256)) * 999)
        for size in (0, 1, 8, 4097, 255_744):
            assert device.digest(address, size) == device.digest_by_kernel(address, size)


class _Current:
    def __init__(self, library: DriverLibrary, device: Device) -> None:
        assert isinstance(device, DriverDevice)
        self._library, self._context = library, library.ffi.cast("void *", device.context)

    def __enter__(self) -> None:
        self._library.call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *_: object) -> None:
        self._library.call("cuCtxPopCurrent_v2", self._library.ffi.new("void **"))


__all__ = ["PROVOCATIONS", "DriverConformance", "launch"]
