"""One process with about all that a process can have, on the host and on its device: everything.py FOLDER
ROUNDS OPENMP [WITHOUT...].

Each round checks all of it, and appends a line to FOLDER/log that depends on its number alone.  One begins
when it may (gate.py).  OPENMP is a library made of openmp.c; WITHOUT names stations to be left out.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "checkpoint" / "programs"))
sys.path.insert(0, str(Path(__file__).parent))
import host_job as host
from gate import Gate


def stations(place: Path, library: str) -> dict[str, Callable[[], host.Part]]:
    """How each is made, by name."""
    import host_stations as more

    return {
        "forked": host.forked_child_behind_pipes,
        "memory": lambda: host.memory(place),
        "multiprocessing-fork": host.multiprocessing_child,
        "multiprocessing-spawn": lambda: host.multiprocessing_child("spawn"),
        "tcp": host.connected_child,
        "events": host.events,
        "nameless-file": lambda: host.nameless_file(place),
        "threads": host.threads,
        "named-pipes": lambda: more.named_pipes(place),
        "removed-directory": lambda: more.removed_directory(place),
        "shared-mapping": lambda: more.shared_mapping(place),
        "event-loop": more.event_loop,
        "package": lambda: more.installed_package(place),
        "made-once": lambda: more.things_made_once(place),
        "waiting": more.things_that_wait,
        "openmp": lambda: more.openmp(library),
        "clock": lambda: more.clock(place),
    }


def main() -> None:
    folder, rounds, library, without = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    place = folder / "place"
    place.mkdir()
    gate = Gate(folder)
    parts = {name: make() for name, make in stations(place, library).items() if name not in without}
    import device_stations as device  # only now: the children have no device

    device.driver.start()
    numbers = device.Numbers()
    parts["numbers"] = numbers.play
    if "page-locked" not in without:
        parts["page-locked"] = device.page_locked_writer()
    if "host-functions" not in without:
        parts["host-functions"] = device.host_functions()
    with (folder / "log").open("a", buffering=1) as log:
        for _ in range(rounds):
            number = gate.begin()
            for name, part in parts.items():
                try:
                    part(number)
                except BaseException:
                    log.write(f"{number}: {name}\n{traceback.format_exc()}")
                    raise
            log.write(f"{number} {numbers.digest()}\n")
            print(number, flush=True)


if __name__ == "__main__":
    main()
