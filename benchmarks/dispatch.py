"""What one driver call costs: through the proxy, natively, on the bare ring, and in bare shared memory.

    python benchmarks/dispatch.py [--json] [--rounds N] [--mebibytes N]

Keys: enqueue_ns, native_enqueue_ns   one cuLaunchKernel, in bursts of 400, each then awaited
      ring_ns                          one message of launch size on transport/ring.h, between two processes
      launches_per_s                   40,000 launches and one synchronisation, through the proxy
      rtt_us, pingpong_us              cuCtxSynchronize on an idle device; two processes that spin
      h2d_gbps d2h_gbps pinned_gbps    copies through the proxy: pageable both ways, page-locked to the device
      memcpy_gbps                      plain memcpy of the same size, in the same process
      enqueue_over_ring, rtt_over_pingpong                       times; below 2 is the aim
      h2d_over_memcpy d2h_over_memcpy pinned_over_memcpy         speeds; above 0.7, 0.7, 0.95 is the aim
All programs live at once and take turns, a few milliseconds each.  A value is the median over the rounds.
What compares two is the median of the rounds' ratios, as what a cache line costs depends on where a virtual
machine's CPUs happen to run, and changes by the second.  Needs gcc and the source tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from ranks import Slices, compile_c, rank_command, report

Sample = tuple[str, Slices, str]  # key, who measures, which slice


def take_turns(rounds: int, samples: list[Sample], into: dict[str, list[float]]) -> None:
    """Every other round in reverse, so that what comes first or last is not always the same."""
    for number in range(rounds):
        for key, program, what in samples if number % 2 == 0 else reversed(samples):
            into.setdefault(key, []).append(program.measure(what))


def summarise(times: dict[str, list[float]], nbytes: int) -> dict[str, float]:
    def value(key: str, of: Callable[[float], float]) -> float:
        return of(statistics.median(times[key]))

    def ratio(above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))

    speeds = {f"{key}_gbps": value(key, lambda ns: nbytes / ns) for key in times if "launch" not in key}
    return {
        "enqueue_ns": value("enqueue", float),
        "native_enqueue_ns": value("native_enqueue", float),
        "ring_ns": value("ring", float),
        "enqueue_over_ring": ratio("enqueue", "ring"),
        "launches_per_s": value("sustained", lambda ns: 1e9 / ns),
        "native_launches_per_s": value("native_sustained", lambda ns: 1e9 / ns),
        "rtt_us": value("rtt", lambda ns: ns / 1e3),
        "native_rtt_us": value("native_rtt", lambda ns: ns / 1e3),
        "pingpong_us": value("pingpong", lambda ns: ns / 1e3),
        "rtt_over_pingpong": ratio("rtt", "pingpong"),
        **{key: speeds[key] for key in ("h2d_gbps", "d2h_gbps", "pinned_gbps", "memcpy_gbps")},
        **{key: speeds[key] for key in ("native_h2d_gbps", "native_d2h_gbps", "native_pinned_gbps")},
        **{f"{key}_over_memcpy": ratio("memcpy", key) for key in ("h2d", "d2h", "pinned")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a driver call.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=40, help="of turns")
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the copies")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        client = compile_c("dispatch_client.c", directory / "dispatch_client", "-O2")
        pair = compile_c("ring_pair.c", directory / "ring_pair", "-O2")
        rank = [str(client), "SOCKET", str(arguments.mebibytes)]
        with (
            Slices(rank_command(True, rank), directory) as proxied,
            Slices(rank_command(False, rank), directory) as native,
            Slices([str(pair), "SOCKET"], directory) as bare,
        ):
            calls = [("enqueue", proxied, "e"), ("ring", bare, "e"), ("native_enqueue", native, "e")]
            trips = [("rtt", proxied, "r"), ("pingpong", bare, "r"), ("native_rtt", native, "r")]
            copies = [("h2d", proxied, "u"), ("memcpy", proxied, "m"), ("d2h", proxied, "d")]
            direct = [
                ("native_h2d", native, "u"),
                ("native_d2h", native, "d"),
                ("native_pinned", native, "p"),
            ]
            take_turns(arguments.rounds, [*calls, *trips], times)
            take_turns(arguments.rounds, [*copies, ("pinned", proxied, "p")], times)
            take_turns(5, [("sustained", proxied, "s"), ("native_sustained", native, "s"), *direct], times)
    report(
        "Cost of a driver call",
        summarise(times, arguments.mebibytes << 20),
        {
            "rounds": arguments.rounds,
            "copy_mebibytes": arguments.mebibytes,
            "burst": 400,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
