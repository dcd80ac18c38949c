"""Runs one random program after another for a test that sits at the other end of a socket.

    fuzz_worker.py SOCKET

Per line of JSON: {"ptx": file, or "cuda": file; "inputs": npz; "outputs": npz; "threads": n; "block": size};
the answer is one line: {"error": null or text}.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import driver


def run(device: driver.Device, job: dict[str, object]) -> None:
    if "cuda" in job:
        ptx = device.compile(Path(str(job["cuda"])).read_text(), "--fmad=false")
    else:
        ptx = Path(str(job["ptx"])).read_bytes()
    module = device.load(ptx)
    threads, block = int(str(job["threads"])), int(str(job["block"]))
    with np.load(str(job["inputs"])) as inputs:
        given = {letter: inputs[letter] for letter in "uwfd"}
    sources = [device.put(given[letter]) for letter in "uwfd"]
    targets = [device.zeros(given[letter].shape, given[letter].dtype) for letter in "uwfd"]
    module.run("fuzz", -(-threads // block), block, *sources, *targets, threads)
    results = {letter: target.numpy() for letter, target in zip("uwfd", targets, strict=True)}
    np.savez(str(job["outputs"]), **results)  # type: ignore[arg-type]  # numpy's stub takes them for options
    for buffer in (*sources, *targets):
        device.free(buffer)
    module.unload()


def main() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    stream = connection.makefile("rw", encoding="utf-8")
    device = driver.Device()
    for line in stream:
        error = None
        try:
            run(device, json.loads(line))
        except Exception as problem:  # reported to the test, which fails
            error = "".join(traceback.format_exception(problem)[-3:])
        stream.write(json.dumps({"error": error}) + "\n")
        stream.flush()


if __name__ == "__main__":
    main()
