"""What one driver call costs: through the proxy, natively, on the bare ring, and in bare shared memory.

    python benchmarks/dispatch.py [--json] [--repetitions N] [--mebibytes N]

Keys: enqueue_ns, native_enqueue_ns   one cuLaunchKernel, in bursts of 400, each then awaited
      ring_ns                          one message of launch size on transport/ring.h, between two processes
      launches_per_s                   40,000 launches and one synchronisation, through the proxy
      rtt_us, pingpong_us              cuCtxSynchronize on an idle device; two processes that spin
      h2d_gbps d2h_gbps pinned_gbps    copies through the proxy: pageable both ways, page-locked to the device
      memcpy_gbps                      plain memcpy of the same size, in the same process
Proxied, native and bare runs take turns; each value is the median over the repetitions.
Needs gcc and the source tree.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from ranks import compile_c, medians, rank_command, read_values, report, run


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a driver call.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the copies")
    arguments = parser.parse_args()
    proxied: list[dict[str, float]] = []
    native: list[dict[str, float]] = []
    bare: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        client = compile_c("dispatch_client.c", directory / "dispatch_client", "-O2")
        pair = compile_c("ring_pair.c", directory / "ring_pair", "-O2")
        result = directory / "result"
        for _ in range(arguments.repetitions):
            for is_proxied, samples in ((True, proxied), (False, native)):
                run(rank_command(is_proxied, [str(client), str(result), str(arguments.mebibytes)]))
                samples.append(read_values(result))
            run([str(pair), str(result)])
            bare.append(read_values(result))
    through, direct, ring = medians(proxied), medians(native), medians(bare)
    results = {
        "enqueue_ns": through["enqueue_ns"],
        "native_enqueue_ns": direct["enqueue_ns"],
        "ring_ns": ring["ring_ns"],
        "launches_per_s": through["launches_per_s"],
        "rtt_us": through["rtt_us"],
        "pingpong_us": ring["pingpong_us"],
        "h2d_gbps": through["h2d_gbps"],
        "d2h_gbps": through["d2h_gbps"],
        "pinned_gbps": through["pinned_gbps"],
        "memcpy_gbps": through["memcpy_gbps"],
        "native_launches_per_s": direct["launches_per_s"],
        "native_rtt_us": direct["rtt_us"],
        "native_h2d_gbps": direct["h2d_gbps"],
        "native_d2h_gbps": direct["d2h_gbps"],
    }
    report(
        "Cost of a driver call",
        results,
        {
            "repetitions": arguments.repetitions,
            "copy_mebibytes": arguments.mebibytes,
            "burst": 400,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
