"""What the benchmarks share: compiling C, ranks natively or through a proxy, slices of work, output."""

from __future__ import annotations

import json
import os
import shutil
import socket
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


class Slices:
    """A running program that measures one slice of its work whenever it is asked to.

    The program finds a Unix socket's path where `command` says "SOCKET", connects, and answers each byte with
    a line: what it measured, in nanoseconds.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        path = directory / "socket"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(120)
            self.process = subprocess.Popen(
                [str(path) if word == "SOCKET" else word for word in command],
                env={**os.environ, **(environment or {})},
            )
            self.connection, _ = listener.accept()
        self.connection.settimeout(300)
        self.answers = self.connection.makefile("r")

    def __enter__(self) -> Slices:
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.close()
        self.connection.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(60)

    def measure(self, what: str) -> float:
        """Nanoseconds, of the slice that this letter names."""
        self.connection.sendall(what.encode())
        line = self.answers.readline()
        if not line:
            raise SystemExit(f"a rank ended with {self.process.wait(60)} in the middle of a slice")
        return float(line)


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
