"""A rank that has what cannot be carried elsewhere: uncarried.py DIRECTORY WHAT, with WHAT `variable` (a
module's own), `capture` (a stream's, under way) or `host_function` (one that still runs).

Creates DIRECTORY/there when it has it, gives it up at DIRECTORY/stop, and checks that its memory is as it
was.
"""

from __future__ import annotations

import ctypes as c
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
from driver import allocate, check, download, make, upload
from interpreter import HOST_FUNCTION, driver


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
