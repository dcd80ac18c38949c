"""How fast the in-memory device executes: against gcc -O3 -march=native on the same loops, and tinygrad's own CPU device.

    python benchmarks/device.py [--json] [--repetitions N] [--threads N]

Keys of speed, gcc's time / the device's, 1 being as fast as gcc:
      saxpy_ratio                 2^24 elements
      matmul_naive_ratio          512 x 512, blocks of 32 x 8, against gcc's better loop order (i-k-j)
      matmul_naive_1024_ratio     1024 x 1024, the same
      matmul_naive_16x16_ratio    1024 x 1024, blocks of 16 x 16
      matmul_tiled_ratio          512 x 512, tiles of 32 x 32 in shared memory, against the same loops
                                  in gcc, a block's threads one after the other
      matmul_tiled_best_ratio     the same kernel against loops that gcc vectorises
Keys of time:
      compile_ms_cold             the kernels of the digits example: loading a module plus its first launch, less a
      compile_ms_cached           later launch; median, in ms; nothing cached, and object cached.  The compiler runs
                                  already (compile_times.py)
      compile_s_total             the sum of what compile_ms_cold is the median of, in s
      tinygrad_step_ratio         digits training step: this device's time / that of tinygrad's CPU device
Both sides use the same number of threads and take turns; ratios are medians of paired ratios.  No proxy is involved.
Needs gcc, NVRTC (nvidia-cuda-nvrtc), tinygrad, scikit-learn and clang.
"""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from ranks import HERE, ROOT, compile_c, cuda_environment, rank_command, read_values, report, run

EXAMPLE = str(ROOT / "examples" / "train_digits.py")
KERNELS = {
    "saxpy": r"""extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i] + y[i]; }""",
    "matmul_naive": r"""extern "C" __global__ void matmul_naive(const float *a, const float *b, float *c, int n) {
      int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y; float s = 0;
      for (int k = 0; k < n; ++k) s += a[y * n + k] * b[k * n + x];
      c[y * n + x] = s; }""",
    "matmul_tiled": r"""extern "C" __global__ void matmul_tiled(const float *a, const float *b, float *c, int n) {
      __shared__ float ta[32][32], tb[32][32]; int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
      float s = 0;
      for (int t = 0; t < n; t += 32) {
        ta[y][x] = a[row * n + t + x]; tb[y][x] = b[(t + y) * n + column]; __syncthreads();
        for (int k = 0; k < 32; ++k) s += ta[y][k] * tb[k][x];
        __syncthreads(); }
      c[row * n + column] = s; }""",
}


def compile_kernel(nvrtc: ctypes.CDLL, source: str) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    flags = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_120")
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if nvrtc.nvrtcCompileProgram(program, 1, flags) != 0:
        raise SystemExit("NVRTC refused a benchmark's kernel")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value


# What each of gcc's times is divided by: the device's time for the same work.
RATIOS = {
    "saxpy": "saxpy",
    "matmul_naive": "matmul_naive",
    "matmul_naive_1024": "matmul_naive_1024",
    "matmul_naive_16x16": "matmul_naive_1024",
    "matmul_tiled": "matmul_tiled",
    "matmul_tiled_best": "matmul_tiled_best",
}


def kernels(directory: Path, repetitions: int, threads: int) -> dict[str, float]:
    nvrtc = ctypes.CDLL(cuda_environment().get("NVRTC_PATH", "libnvrtc.so.13"))
    paths = []
    for name, source in KERNELS.items():
        path = directory / f"{name}.ptx"
        path.write_bytes(compile_kernel(nvrtc, source))
        paths.append(str(path))
    client = compile_c("device_client.c", directory / "device_client", "-O2")
    loops = compile_c("loops.c", directory / "loops", "-O3", "-march=native", "-fopenmp")
    result = directory / "result"
    environment = {
        "SINGULARITY_FAKE_THREADS": str(threads),
        "SINGULARITY_FAKE_CACHE": str(directory / "kernels"),
    }
    ratios: dict[str, list[float]] = {name: [] for name in RATIOS}
    for _ in range(repetitions):
        run(rank_command(False, [str(client), str(result), *paths]), environment)
        ours = read_values(result)
        run([str(loops), str(result)], {"OMP_NUM_THREADS": str(threads)})
        theirs = read_values(result)
        for name, gcc in RATIOS.items():
            ratios[name].append(theirs[gcc] / ours[name.removesuffix("_best")])
    return {f"{name}_ratio": statistics.median(values) for name, values in ratios.items()}


def compilation(directory: Path, repetitions: int) -> dict[str, float]:
    """Medians over the repetitions."""
    answer = directory / "compiled.json"
    command = rank_command(False, [str(HERE / "compile_times.py"), str(answer), EXAMPLE], python=True)
    found: dict[str, list[float]] = {"compile_ms_cold": [], "compile_ms_cached": [], "compile_s_total": []}
    for _ in range(repetitions):
        cache = directory / "compiled"
        environment = {
            "DEV": "CUDA",
            "XDG_CACHE_HOME": str(directory / "tinygrad"),
            "SINGULARITY_FAKE_CACHE": str(cache),
            **cuda_environment(),
        }
        for state in ("cold", "cached"):
            run(command, environment)
            times: list[float] = json.loads(answer.read_text())
            found[f"compile_ms_{state}"].append(statistics.median(times))
            if state == "cold":
                found["compile_s_total"].append(sum(times) / 1e3)
        shutil.rmtree(cache, ignore_errors=True)
    return {key: statistics.median(values) for key, values in found.items()}


def tinygrad_step(directory: Path, repetitions: int, threads: int, steps: int) -> float:
    """Median step on the device / median step on tinygrad's CPU device, steps after the first ten."""
    answer = directory / "answer.json"
    arguments = [EXAMPLE, "--steps", str(steps), "--json", str(answer), "--quiet"]
    common = {
        "XDG_CACHE_HOME": str(directory / "tinygrad"),
        "SINGULARITY_FAKE_CACHE": str(directory / "objects"),
        "SINGULARITY_FAKE_THREADS": str(threads),
        "NUM_CPU_THREADS": str(threads),
        **cuda_environment(),
    }

    def step(command: list[str], device: str) -> float:
        run(command, {**common, "DEV": device})
        seconds: list[float] = json.loads(answer.read_text())["step_seconds"]
        return statistics.median(seconds[10:])

    return statistics.median(
        step(rank_command(False, arguments, python=True), "CUDA") / step([sys.executable, *arguments], "CPU")
        for _ in range(repetitions)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the in-memory device.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="on both sides (default: all CPUs)"
    )
    parser.add_argument("--steps", type=int, default=60, help="of training, per repetition")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        results = kernels(directory, arguments.repetitions, arguments.threads)
        results |= compilation(directory, arguments.repetitions)
        results["tinygrad_step_ratio"] = tinygrad_step(
            directory, arguments.repetitions, arguments.threads, arguments.steps
        )
    report(
        "Speed of the in-memory device",
        results,
        {
            "repetitions": arguments.repetitions,
            "threads": arguments.threads,
            "vector": 1 << 24,
            "matrices": [512, 1024],
            "steps": arguments.steps,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
