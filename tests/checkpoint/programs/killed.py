"""Uses a store and is killed before the n-th system call that changes something; argv: directory, what, n.

Prints "through" if there were fewer."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from singularity_core.checkpoint import Store, local_backend
from singularity_core.checkpoint.collector import Collector


class DeadlySystem:
    """The module `os`, some of whose functions are counted."""

    def __init__(self, deadly: int) -> None:
        self._left = deadly

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in ("write", "fsync", "link", "replace", "unlink", "rmdir"):
            return function

        def counted(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                if name == "write":
                    function(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counted


def main() -> None:
    """Do it."""
    place, what, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = Store(local_backend.LocalBackend(Path(place)), threads=0, chunk_bytes=1000)
    local_backend.os = DeadlySystem(deadly)
    if what == "write":
        with store.write("job") as writer:
            writer.add("old", "test", b"a" * 1000 + b"b" * 1000)
            writer.add("new", "test", b"c" * 500)
            writer.commit()
    else:
        Collector(store._catalogue).collect(keep=1, pins=(), dry_run=False)
    print("through")


main()
