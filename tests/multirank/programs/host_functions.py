"""A rank whose stream comes to one host function after another, each of which takes a while, and that waits
for all of them: host_functions.py FOLDER.  FOLDER/stop ends it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "interposers" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
from driver import check, make
from interpreter import HOST_FUNCTION, driver


def main() -> None:
    folder = Path(sys.argv[1])
    driver.start()
    stream = make(driver.Handle, "cuStreamCreate", 1)
    called: list[object] = []

    def call(argument: object) -> None:
        time.sleep(0.05)
        called.append(argument)

    function = HOST_FUNCTION(call)
    rounds = 0
    while not (folder / "stop").exists():
        for _ in range(8):
            check("cuLaunchHostFunc", stream, function, None)
        check("cuStreamSynchronize", stream)
        rounds += 1
        assert len(called) == 8 * rounds
        (folder / "there").touch()


if __name__ == "__main__":
    main()
