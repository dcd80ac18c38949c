"""Builds the proxy's machinery with a stub driver, plain or under sanitizers (tests/sanitizers.py), and its
pure parts as a cffi module."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cffi
import pytest

from ..sanitizers import PREFIX, ROOT, SLOW, compile_c, sanitizer_options

PROGRAMS = Path(__file__).parent / "programs"
CORE = ROOT / "singularity_core"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with stub_proxy, rank, doors, fuzz and the stub driver."""
    if shutil.which("gcc") is None:
        pytest.fail("gcc is not installed: these tests build C programs")
    out = tmp_path_factory.mktemp("programs")
    link = sorted((CORE / "transport").glob("*.c"))
    server = [
        path
        for part in ("proxy", "interceptors", "exchange", "splicing", "barrier")
        for path in sorted((CORE / part).glob("*.c"))
    ]
    compile_c(out / "libstub.so", [PROGRAMS / "stub_driver.c"], "-shared")
    stub_proxy = [PROGRAMS / "stub_proxy.c", PROGRAMS / "stub_ops.c", *server]
    # so long that a rank gives up when it is nothing else that wakes the proxy
    compile_c(out / "stub_proxy", stub_proxy, "-DSG_FOLLOWER_MS=5000", "-DSG_SERVER_TICK_MS=40000")
    compile_c(out / "rank", [PROGRAMS / "rank.c", *link])
    compile_c(out / "doors", [PROGRAMS / "doors.c", *link])
    compile_c(out / "fuzz", [PROGRAMS / "fuzz.c", *link])
    return out


def environment() -> dict[str, str]:
    """Of the programs under test: what a sanitizer finds must fail them."""
    return os.environ | sanitizer_options(asan="handle_sigbus=0:detect_leaks=1")


@dataclass
class StubProxy:
    """A running stub proxy and the ranks that tests start beside it."""

    programs: Path
    directories: list[Path]
    """Of its doors."""
    process: subprocess.Popen[str]
    ranks: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Of its first door."""
        return self.directories[0]

    def start(
        self, rank: int, *scenarios: str, close: bool = True, program: str = "rank", door: int = 0
    ) -> subprocess.Popen[str]:
        """A rank process that runs the scenarios one after the other."""
        variables = environment() | ({} if close else {"RANK_NO_CLOSE": "1"})
        process = subprocess.Popen(
            [*PREFIX, str(self.programs / program), str(self.directories[door]), str(rank), *scenarios],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
        )  # fmt: skip
        self.ranks.append(process)
        return process

    def run(
        self, rank: int, *scenarios: str, close: bool = True, program: str = "rank", door: int = 0
    ) -> str:
        """As `start`, to the end; its output.  Fails when the rank fails."""
        process = self.start(rank, *scenarios, close=close, program=program, door=door)
        out, err = process.communicate(timeout=60 * SLOW)
        assert process.returncode == 0, f"rank {rank} {scenarios}: {process.returncode}\n{out}{err}"
        return out

    def command(self, line: str) -> str:
        """A line to the proxy's stdin; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def await_clean(self, scenario: str = "clean") -> None:
        """Waits until nothing of ended sessions is left in the driver, and checks that nothing was destroyed
        under a foreign context; fails when that takes too long."""
        deadline = time.monotonic() + 30 * SLOW
        while True:
            process = self.start(900, scenario)
            out, _ = process.communicate(timeout=30 * SLOW)
            if process.returncode == 0:
                return
            assert time.monotonic() < deadline, f"still there: {out}"
            time.sleep(0.05)

    def await_empty(self) -> None:
        """As `await_clean`, after ranks that destroyed things under contexts of their choice."""
        self.await_clean("empty")

    def stop(self) -> str:
        """Ends the proxy in good order; what it said on stderr."""
        self.process.terminate()
        self.process.wait(timeout=30 * SLOW)
        assert self.process.stderr is not None
        err = self.process.stderr.read()
        assert self.process.returncode == 0, err
        return err

    def kill_all(self) -> None:
        for process in [*self.ranks, self.process]:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@contextmanager
def stub_proxy(programs: Path, doors: int = 1) -> Iterator[StubProxy]:
    """A fresh stub proxy; afterwards it must stop in good order and leave no file behind."""
    made = [Path(tempfile.mkdtemp(prefix="singularity-test-", dir="/dev/shm")) for _ in range(doors)]
    first, *others = map(str, made)
    process = subprocess.Popen(
        [*PREFIX, str(programs / "stub_proxy"), first, str(programs / "libstub.so"), *others],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    stub = StubProxy(programs, made, process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        yield stub
        if process.poll() is None:
            stub.stop()
        assert [path for directory in made for path in directory.iterdir()] == []
    finally:
        stub.kill_all()
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def proxy(programs: Path) -> Iterator[StubProxy]:
    """A stub proxy with one door."""
    with stub_proxy(programs) as stub:
        yield stub


class PureModule(Protocol):
    """The cffi module built below."""

    ffi: Any
    lib: Any


PURE_DECLARATIONS = """
struct pure_ring;
struct sg_handles;
struct pure_destroyed { uint32_t count; uint32_t kind[256]; uint64_t physical[256]; };
struct pure_ring *pure_ring_new(void);
void pure_ring_free(struct pure_ring *r);
int pure_ring_push(struct pure_ring *r, uint32_t op, uint32_t bytes, uint8_t fill);
int pure_ring_take(struct pure_ring *r, uint32_t *op, uint32_t *bytes, uint8_t *fill, int *same);
void pure_ring_spoil(struct pure_ring *r, uint32_t at, const uint8_t *bytes, uint32_t count);
uint64_t pure_ring_used(struct pure_ring *r);
struct sg_handles *pure_handles_new(void);
void pure_handles_free(struct sg_handles *handles);
uint64_t pure_handles_put(struct sg_handles *h, uint32_t kind, uint64_t physical, uint64_t parent);
int pure_handles_put_at(struct sg_handles *h, uint64_t handle, uint64_t physical, uint64_t parent);
uint64_t pure_handles_get(struct sg_handles *h, uint32_t kind, uint64_t handle);
uint64_t pure_handles_take(struct sg_handles *h, uint32_t kind, uint64_t handle, struct pure_destroyed *list);
void pure_handles_take_all(struct sg_handles *h, struct pure_destroyed *list);
"""


def native_declarations() -> str:
    """The arena's and the log's declarations as the installed module has them (the server needs a driver)."""
    spec = importlib.util.spec_from_file_location("native_build", CORE / "proxy" / "native_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.DECLARATIONS).split("/* ---- arena ---- */")[1]


@pytest.fixture(scope="session")
def pure(tmp_path_factory: pytest.TempPathFactory) -> PureModule:
    """Arena, handle table, replay log and ring, from the very sources that the proxy is built of."""
    out = tmp_path_factory.mktemp("pure")
    builder = cffi.FFI()
    builder.cdef(native_declarations() + PURE_DECLARATIONS)
    builder.set_source(
        "singularity_pure",
        '#include "singularity_core/interceptors/arena.h"\n#include "singularity_core/proxy/replay.h"\n'
        '#include "pure.h"\n',
        sources=[
            str(CORE / "interceptors" / "arena.c"),
            str(CORE / "proxy" / "replay.c"),
            str(CORE / "proxy" / "handles.c"),
            str(PROGRAMS / "pure.c"),
        ],
        include_dirs=[str(ROOT), str(PROGRAMS)],
        define_macros=[("_GNU_SOURCE", None)],
        extra_compile_args=["-std=c11", "-O1"],
        libraries=["pthread"],
    )
    library = builder.compile(tmpdir=str(out))
    ctypes.CDLL(library)  # a missing symbol is named here, better than by the import
    spec = importlib.util.spec_from_file_location("singularity_pure", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["singularity_pure"] = module
    spec.loader.exec_module(module)
    return module  # type: ignore[return-value]
