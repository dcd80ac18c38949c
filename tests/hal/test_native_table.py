"""The native table over a Python device: the C contract, kept by callbacks."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from singularity_core.hal import Device
from singularity_core.hal.driver_calls import declarations
from singularity_core.hal.native_table import build_table, table_for
from singularity_core.hal.registry import Registry
from singularity_core.testing import oracles

from .conftest import ROOT

FIELDS = (
    *("struct_size", "abi", "state", "arena_open", "arena_close", "arena_limit", "range_live", "range_dead"),
    *("host_register", "host_unregister", "digest", "quiesce", "copy_to_host", "copy_to_device"),
    *("gate_make", "gate_wait", "gate_open", "gate_drop", "settle", "discard"),
    *("arena_file", "arena_exchange"),
)


@pytest.fixture
def device(tutorial: Path) -> Iterator[Device]:
    """A device in plain Python."""
    backend = Registry(plugins=str(tutorial / "array_backend.py"), entry_points=False).load("array")
    with backend.open_device(0) as device:
        yield device


@pytest.fixture
def table(device: Device) -> Any:
    """Its table, as C sees it."""
    return declarations().cast("struct sg_hal_table *", table_for(device))


def test_layout_is_the_headers(tmp_path: Path) -> None:
    """Python declares the table as native.h does, field by field."""
    offsets = "".join(f'printf("%zu ", offsetof(struct sg_hal_table, {field}));' for field in FIELDS)
    (tmp_path / "main.c").write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "singularity_core/hal/native.h"\n'
        f'int main(void) {{ {offsets} printf("%zu %u", sizeof(struct sg_hal_table), SG_HAL_ABI); return 0; }}'
    )
    subprocess.run(
        ["gcc", "-std=c11", f"-I{ROOT}", "main.c", "-o", "main"], cwd=tmp_path, check=True, timeout=60
    )
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=60).stdout
    ffi = declarations()
    known = [ffi.offsetof("struct sg_hal_table", field) for field in FIELDS]
    assert [int(word) for word in said.split()] == [*known, ffi.sizeof("struct sg_hal_table"), 1]


def test_table_works_from_another_thread(table: Any, device: Device) -> None:
    """The table opens the arena, limits it, and digests, called from a thread that Python did not hand it
    to."""
    ffi: Any = declarations()
    actual, limit, out = ffi.new("uint64_t *"), ffi.new("uint64_t *"), ffi.new("uint8_t[16]")
    codes: list[int] = []

    def work() -> None:
        codes.append(table.arena_limit(table.state, limit))
        codes.append(table.arena_open(table.state, 0x2000_0000_0000, 1 << 20, actual))
        device.copy_to_device(actual[0], b"content of the device")
        codes.append(table.quiesce(table.state))
        codes.append(table.digest(table.state, actual[0], 21, out))
        codes.append(table.arena_close(table.state))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0, 0, 0, 0, 0]
    assert actual[0] == 0x2000_0000_0000
    assert limit[0] == 256 << 20
    assert bytes(ffi.buffer(out)) == oracles.digest(b"content of the device")


def test_errors_become_codes(table: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """An exception becomes its code, and its words go to stderr."""
    actual = declarations().new("uint64_t *")
    assert table.arena_close(table.state) == 401
    assert table.arena_open(table.state, 0, 1 << 40, actual) == 2
    assert table.arena_open(table.state, 1, 4096, actual) == 1
    assert "No arena is open." in capfd.readouterr().err


def test_missing_capabilities_are_null(table: Any) -> None:
    """Functions of capabilities that the device lacks are NULL."""
    null = declarations().NULL
    assert table.range_live == table.range_dead == table.host_register == table.host_unregister == null
    assert table.digest != null


def test_table_is_made_once(device: Device) -> None:
    """Asking again gives the same table, for as long as the device lives."""
    assert build_table(device) == build_table(device)
