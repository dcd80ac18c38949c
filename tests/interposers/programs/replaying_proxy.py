"""A proxy of the in-memory device whose first session's replay log can be written to a file or read from one.

argv: DIRECTORY.  Standard input: `export FILE`, `import FILE`, `stop`; each is answered by one line.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from singularity_core._native import ffi, lib

from singularity_core.hal.native_table import table_for
from singularity_core.hal.registry import load_backend

backend = load_backend("fake")
directory = ffi.new("char[]", sys.argv[1].encode())
directories = ffi.new("char *[]", [directory])
library = ffi.new("char[]", str(backend.driver_library()).encode())
why = ffi.new("char[256]")


def answer(command: str, server: object) -> str:
    """What becomes of one command."""
    verb, _, path = command.strip().partition(" ")
    session = lib.sg_server_session(server, 0)
    if session == ffi.NULL:
        return "no session"
    if verb == "export":
        size = lib.sg_session_log_export(session, ffi.NULL, 0)
        buffer = ffi.new("uint8_t[]", size)
        lib.sg_session_log_export(session, buffer, size)
        Path(path).write_bytes(bytes(ffi.buffer(buffer, size)))
        return f"exported {size}"
    data = Path(path).read_bytes()
    result = lib.sg_session_log_import(session, data, len(data), why)
    return "imported" if result == 0 else f"failed {result} {ffi.string(why).decode()}"


with backend.open_device(0) as device:
    options = ffi.new("struct sg_server_options *")
    options.struct_size = ffi.sizeof("struct sg_server_options")
    options.directory_count, options.directories = 1, directories
    options.driver_library = library
    options.hal = ffi.cast("struct sg_hal_table *", table_for(device))
    options.stop_fds = [-1] * 4
    running = lib.sg_server_create(options, why)
    assert running != ffi.NULL, ffi.string(why)
    loop = threading.Thread(target=lib.sg_server_run, args=(running,))
    loop.start()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "stop":
            break
        print(answer(line, running), flush=True)
    lib.sg_server_stop(running)
    loop.join()
    lib.sg_server_destroy(running)
