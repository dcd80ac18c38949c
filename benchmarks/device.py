"""How fast the in-memory device executes: against gcc -O3 -march=native on the same loops, and tinygrad's own CPU device.

    python benchmarks/device.py [--json] [--repetitions N] [--threads N]

Keys: saxpy_ratio, matmul_naive_ratio, matmul_tiled_ratio   device time / gcc time; below 1 the device is faster
      compile_ms_cold, compile_ms_cached                     first launch minus a later one: nothing cached, object cached
                                                             (median over the three kernels; the compiler is already running)
      tinygrad_step_ratio                                    digits training step: this device / tinygrad's CPU device
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

from ranks import ROOT, compile_c, cuda_environment, rank_command, read_values, report, run

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
    "first": 'extern "C" __global__ void first() {}',
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


def kernels(directory: Path, repetitions: int, threads: int) -> dict[str, float]:
    nvrtc = ctypes.CDLL(cuda_environment().get("NVRTC_PATH", "libnvrtc.so.13"))
    paths = []
    for name, source in KERNELS.items():
        path = directory / f"{name}.ptx"
        path.write_bytes(compile_kernel(nvrtc, source))
        paths.append(str(path))
    client = compile_c("device_client.c", directory / "device_client", "-O2")
    loops = compile_c("loops.c", directory / "loops", "-O3", "-march=native", "-fopenmp")
    result, names = directory / "result", [name for name in KERNELS if name != "first"]
    ratios: dict[str, list[float]] = {name: [] for name in names}
    first: dict[str, list[float]] = {"cold": [], "cached": []}
    for repetition in range(repetitions):
        cache = directory / f"cache{repetition}"
        environment = {"SINGULARITY_FAKE_THREADS": str(threads), "SINGULARITY_FAKE_CACHE": str(cache)}
        for state in ("cold", "cached"):
            run(rank_command(False, [str(client), str(result), *paths]), environment)
            ours = read_values(result)
            first[state].append(statistics.median(ours[f"{name}_first"] - ours[name] for name in names))
        run([str(loops), str(result)], {"OMP_NUM_THREADS": str(threads)})
        theirs = read_values(result)
        for name in names:
            ratios[name].append(ours[name] / theirs[name])
        shutil.rmtree(cache, ignore_errors=True)
    answers = {f"{name}_ratio": statistics.median(values) for name, values in ratios.items()}
    return {
        **answers,
        **{f"compile_ms_{state}": statistics.median(values) for state, values in first.items()},
    }


def tinygrad_step(directory: Path, repetitions: int, threads: int, steps: int) -> float:
    """Median step on the device / median step on tinygrad's CPU device, steps after the first ten."""
    example, answer = str(ROOT / "examples" / "train_digits.py"), directory / "answer.json"
    arguments = [example, "--steps", str(steps), "--json", str(answer), "--quiet"]
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
            "matrix": 512,
            "steps": arguments.steps,
            "cpus": os.cpu_count(),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
