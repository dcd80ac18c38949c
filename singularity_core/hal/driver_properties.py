"""What a library with the CUDA driver ABI says about its devices, before any of them is opened."""

from __future__ import annotations

from .driver_calls import DriverLibrary
from .errors import InvalidArgument
from .types import DeviceProperties

_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


def device_count(library: DriverLibrary) -> int:
    """Initialises the library and counts its devices.  Raises what cuInit answers: `Unavailable` without a
    device."""
    library.call("cuInit", 0)
    count = library.ffi.new("int *")
    library.call("cuDeviceGetCount", count)
    return int(count[0])


def read_properties(library: DriverLibrary, ordinal: int) -> DeviceProperties:
    """Properties of a device that need not be open.  `InvalidArgument` for an ordinal that does not exist."""
    count = device_count(library)
    if not 0 <= ordinal < count:
        raise InvalidArgument(
            f"There is no device {ordinal}; the driver has {count}.",
            remedy=f"Choose an ordinal below {count}.",
        )
    ffi = library.ffi
    device, name, uuid = ffi.new("int *"), ffi.new("char[256]"), ffi.new("unsigned char[16]")
    size, version = ffi.new("size_t *"), ffi.new("int *")
    library.call("cuDeviceGet", device, ordinal)
    library.call("cuDeviceGetName", name, 256, device[0])
    library.call("cuDeviceGetUuid_v2", uuid, device[0])
    library.call("cuDeviceTotalMem_v2", size, device[0])
    library.call("cuDriverGetVersion", version)
    return DeviceProperties(
        ordinal=ordinal,
        name=ffi.string(name).decode(errors="replace"),
        uuid=bytes(ffi.buffer(uuid)),
        total_bytes=int(size[0]),
        compute_capability=(
            read_attribute(library, device[0], _MAJOR),
            read_attribute(library, device[0], _MINOR),
        ),
        multiprocessors=read_attribute(library, device[0], _MULTIPROCESSORS),
        driver_version=int(version[0]),
    )


def read_attribute(library: DriverLibrary, device: int, which: int) -> int:
    """One CUdevice_attribute, by its number."""
    value = library.ffi.new("int *")
    library.call("cuDeviceGetAttribute", value, which, device)
    return int(value[0])
