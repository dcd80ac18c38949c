"""A rank that has what cannot be carried elsewhere: uncarried.py DIRECTORY WHAT, with WHAT `variable` (a
module's own), `constant` (likewise), `binary` (a module that may have some), `capture` (a stream's, under
way) or `host_function` (one that still runs).

Creates DIRECTORY/there when it has it, gives it up at DIRECTORY/stop, and checks that its memory is as it
was.
"""

from __future__ import annotations

import ctypes as c
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
from driver import allocate, check, download, make, upload
from interpreter import HOST_FUNCTION, driver

CONSTANT = b""".version 8.0
.target sm_80
.address_size 64
.const .align 4 .u32 table[2] = {1, 2};
.visible .entry nothing() { ret; }
"""


def without_text() -> bytes:
    """A fat binary that holds machine code only."""
    code = b"\x7fELF" + bytes(60)
    entry = struct.pack("<HHIQI8xI8xQ8xQ", 2, 0x101, 64, len(code), 0, 80, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry + code)) + entry + code


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    driver.start()
    data = allocate(8)
    upload(data, b"unharmed")
    stream, graph = make(driver.Handle, "cuStreamCreate", 1), driver.Handle()

    def wait(_: Any) -> None:
        (folder / "there").touch()
        while not (folder / "stop").exists():
            time.sleep(0.005)

    function = HOST_FUNCTION(wait)
    if what == "variable":
        make(driver.Handle, "cuModuleLoadData", driver.PTX)
    if what == "constant":
        make(driver.Handle, "cuModuleLoadData", CONSTANT)
    if what == "binary":
        make(driver.Handle, "cuModuleLoadData", without_text())
    if what == "capture":
        check("cuStreamBeginCapture_v2", stream, 2)
    if what == "host_function":
        check("cuLaunchHostFunc", stream, function, None)
    else:
        (folder / "there").touch()
    while not (folder / "stop").exists():
        time.sleep(0.005)
    if what == "capture":
        check("cuStreamEndCapture", stream, c.byref(graph))
    check("cuCtxSynchronize")
    assert download(data, 8) == b"unharmed"


if __name__ == "__main__":
    main()
