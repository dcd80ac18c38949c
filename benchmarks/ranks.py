"""What the benchmarks share: compiling C, running ranks natively or through a proxy, medians, output."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from singularity_core.hal.cuda_wheels import nvrtc_library

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def launcher() -> str:
    beside = Path(sys.executable).parent / "singularity-run"
    found = str(beside) if beside.exists() else shutil.which("singularity-run")
    if found is None:
        raise SystemExit("singularity-run is not installed: pip install . (see README)")
    return found


def rank_command(proxied: bool, program: Sequence[str], *, python: bool = False) -> list[str]:
    mode = [] if proxied else ["--no-proxy"]
    return [launcher(), "--backend", "fake", *mode, *([] if python else ["--no-python"]), *program]


def compile_c(source: str, binary: Path, *flags: str) -> Path:
    """gcc, with the repository's root as include directory."""
    command = [
        "gcc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        *flags,
        f"-I{ROOT}",
        str(HERE / "native" / source),
        "-o",
        str(binary),
        "-ldl",
        "-lm",
    ]
    subprocess.run(command, check=True)
    return binary


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, timeout: float = 600) -> None:
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, timeout=timeout, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} exited with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def read_values(path: Path) -> dict[str, float]:
    """ "key value" lines."""
    return {key: float(value) for key, value in (line.split() for line in path.read_text().splitlines())}


def medians(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}


def cuda_environment() -> dict[str, str]:
    """Where tinygrad finds NVRTC, when NVIDIA's wheels are installed."""
    library = nvrtc_library()
    if library is None:
        return {}
    return {"CUDA_PATH": str(library.parents[1]), "NVRTC_PATH": str(library)}


def report(title: str, results: Mapping[str, float], stated: Mapping[str, object], as_json: bool) -> None:
    """One JSON object, or a table for people; `stated` are the inputs that the numbers depend on."""
    if as_json:
        print(
            json.dumps({**{key: round(value, 4) for key, value in results.items()}, "inputs": dict(stated)})
        )
        return
    print(title)
    width = max(map(len, results))
    for key, value in results.items():
        print(f"  {key:<{width}}  {value:,.3f}")
    for key, said in stated.items():
        print(f"    {key}: {said}")
