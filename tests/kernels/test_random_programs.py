"""Random programs on the in-memory device against the same programs compiled by gcc without optimisation."""

from __future__ import annotations

import ctypes
import itertools
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .operations import KINDS
from .random_programs import Program, programs

HERE = Path(__file__).parent
GCC = [
    "gcc",
    "-O0",
    "-std=gnu11",
    "-w",
    "-ffp-contract=off",
    "-fwrapv",
    "-frounding-math",
    "-fno-strict-aliasing",
    "-shared",
    "-fPIC",
]


DTYPES = {"u": np.uint32, "w": np.uint64, "f": np.float32, "d": np.float64}
SPECIALS: dict[str, list[float]] = {
    "u": [0, 1, 2, 31, 32, 33, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    "w": [0, 1, 63, 64, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1],
    "f": [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        1.1754942e-38,
        3.4028235e38,
        2147483648.0,
        -3e9,
    ],
    "d": [
        0.0,
        -0.0,
        1.0,
        -2.5,
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        1.7976931348623157e308,
        9.3e18,
        4294967295.5,
        1e-310,
    ],
}


def make_inputs(seed: int, threads: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = {}
    for letter, (_, _, count) in KINDS.items():
        shape = (threads, count)
        if letter in "uw":
            drawn = rng.integers(0, 2**32 if letter == "u" else 2**64 - 1, shape, dtype=np.uint64)
            drawn >>= rng.integers(0, 32, shape).astype(np.uint64)
        else:
            drawn = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 6, shape)
        special = np.array(SPECIALS[letter], DTYPES[letter])[rng.integers(0, len(SPECIALS[letter]), shape)]
        inputs[letter] = np.where(rng.random(shape) < 0.25, special, drawn.astype(DTYPES[letter]))
    return inputs


class Worker:
    """A rank that runs programs for us, and the oracle next to it."""

    def __init__(self, start_rank: Any, mode: str, directory: Path) -> None:
        self.directory, self.numbers = directory, itertools.count()
        path = str(directory / "worker.socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(120)
            self.process = start_rank(mode, HERE / "programs" / "fuzz_worker.py", path)
            self.connection, _ = listener.accept()
        self.connection.settimeout(120)
        self.stream = self.connection.makefile("rw", encoding="utf-8")

    def close(self) -> None:
        self.stream.close()
        self.connection.close()
        try:
            self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.communicate(timeout=60)

    def device(
        self, kind: str, text: str, inputs: dict[str, np.ndarray], block: int
    ) -> dict[str, np.ndarray]:
        source, given_file, result = (
            self.directory / name for name in ("program.txt", "inputs.npz", "outputs.npz")
        )
        source.write_text(text)
        np.savez(given_file, **inputs)  # type: ignore[arg-type]  # numpy's stub takes them for options
        job = {
            kind: str(source),
            "inputs": str(given_file),
            "outputs": str(result),
            "threads": len(inputs["u"]),
            "block": block,
        }
        self.stream.write(json.dumps(job) + "\n")
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            _, stderr = self.process.communicate(timeout=60)
            raise AssertionError(f"the rank ended with {self.process.returncode}\n{stderr[-3000:]}\n{text}")
        error = json.loads(line)["error"]
        assert error is None, f"{error}\n{text}"
        with np.load(result) as outputs:
            return {letter: outputs[letter] for letter in "uwfd"}

    def oracle(self, text: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        library = self.directory / f"oracle{next(self.numbers)}.so"
        subprocess.run(
            [*GCC, "-x", "c", "-", "-o", str(library), "-lm"], input=text, text=True, check=True, timeout=60
        )
        loaded = ctypes.CDLL(str(library))
        outputs = {letter: np.zeros_like(array) for letter, array in inputs.items()}
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs.values(), *outputs.values())]
        loaded.fuzz(*pointers, ctypes.c_uint(len(inputs["u"])))
        library.unlink()
        return outputs


@pytest.fixture(scope="module", params=("native", "proxied"))
def worker(
    request: pytest.FixtureRequest, start_rank: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    worker = Worker(start_rank, request.param, tmp_path_factory.mktemp("fuzz"))
    yield worker
    worker.close()


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], text: str) -> None:
    for letter, array in expected.items():
        mine = got[letter]
        if array.dtype.kind == "f":
            bits = f"u{array.dtype.itemsize}"
            equal = (mine.view(bits) == array.view(bits)) | (np.isnan(mine) & np.isnan(array))
        else:
            equal = mine == array
        if not equal.all():
            thread, register = map(int, np.argwhere(~equal)[0])
            raise AssertionError(
                f"thread {thread}, register {letter}{register}: got {mine[thread, register]!r}, "
                f"expected {array[thread, register]!r}\n{text}"
            )


BUDGET = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.mark.timeout(600)
@BUDGET
@given(program=programs(), seed=st.integers(0, 2**32 - 1))
def test_random_ptx_means_what_gcc_makes_of_it(worker: Worker, program: Program, seed: int) -> None:
    """Straight-line and branching PTX gives gcc's results bit for bit, whatever NaN it gives for NaN."""
    inputs, text = make_inputs(seed, program.guard), program.ptx()
    assert_same(worker.device("ptx", text, inputs, 50), worker.oracle(program.c(), inputs), text)


@pytest.mark.timeout(600)
@BUDGET
@given(
    program=programs().filter(lambda program: program.is_cuda()),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_cuda_means_what_gcc_makes_of_it(worker: Worker, program: Program, seed: int) -> None:
    """The same, through NVRTC's optimiser, which emits other PTX than we would write."""
    inputs, text = make_inputs(seed, program.guard), program.cuda()
    assert_same(worker.device("cuda", text, inputs, 64), worker.oracle(program.c(), inputs), text)
