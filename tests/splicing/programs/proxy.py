"""A proxy of the in-memory device that can hold its sessions.

    proxy.py DIRECTORY [--swap-limit BYTES] [--exchange DIRECTORY] [--quantum SECONDS]

Standard input: `hold` and `go on`; each is answered by one line.  Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from singularity_core._native import ffi, lib

from singularity_core.hal.native_table import table_for
from singularity_core.hal.registry import load_backend

parser = argparse.ArgumentParser()
parser.add_argument("directory")
parser.add_argument("--swap-limit", type=int, default=0)
parser.add_argument("--exchange")
parser.add_argument("--quantum", type=float, default=0.0)
arguments = parser.parse_args()
backend = load_backend("fake")
directory = ffi.new("char[]", arguments.directory.encode())
directories = ffi.new("char *[]", [directory])
exchange = ffi.new("char[]", arguments.exchange.encode()) if arguments.exchange else ffi.NULL
library = ffi.new("char[]", str(backend.driver_library()).encode())
why = ffi.new("char[256]")


def obey(server: object) -> None:
    """Does what comes on standard input."""
    for line in sys.stdin:
        error = lib.sg_server_hold_all(server, line.strip() == "hold", 60_000_000_000)
        print("done" if error == 0 else f"failed: {error}", flush=True)


with backend.open_device(0) as device:
    options = ffi.new("struct sg_server_options *")
    options.struct_size = ffi.sizeof("struct sg_server_options")
    options.directory_count, options.directories = 1, directories
    options.driver_library = library
    options.hal = ffi.cast("struct sg_hal_table *", table_for(device))
    options.stop_fds = [-1] * 4
    options.proxy_count = 1
    options.exchange = exchange
    options.swap_limit = arguments.swap_limit
    options.slice_quantum_ns = int(arguments.quantum * 1e9)
    running = lib.sg_server_create(options, why)
    assert running != ffi.NULL, ffi.string(why)
    signal.signal(signal.SIGTERM, lambda *_: lib.sg_server_stop(running))
    loop = threading.Thread(target=lib.sg_server_run, args=(running,))
    loop.start()
    threading.Thread(target=obey, args=(running,), daemon=True).start()
    print("ready", flush=True)
    while loop.is_alive():
        loop.join(0.05)
    lib.sg_server_destroy(running)
