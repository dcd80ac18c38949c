"""Runs objects of ptx-compile without a device: links them with gcc, fills struct sgf_env, calls the kernel
per block.
"""

from __future__ import annotations

import ctypes
import glob
import site
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from singularity_backend_fake.ptx.compiler import compile_kernel
from singularity_backend_fake.ptx.parser import parse
from singularity_backend_fake.ptx.syntax import Module

ROOT = Path(__file__).parents[2]
PRINT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)


class Env(ctypes.Structure):
    _fields_ = [
        ("lo", ctypes.c_uint64),
        ("hi", ctypes.c_uint64),
        ("shared", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
        ("local", ctypes.c_uint64),
        ("local_stride", ctypes.c_uint64),
        ("spill", ctypes.c_uint64),
        ("globals", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("ctaid", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("outside", ctypes.c_void_p),
        ("fault", ctypes.c_void_p),
        ("barrier", ctypes.c_void_p),
        ("pause", ctypes.c_void_p),
        ("clock", ctypes.c_void_p),
        ("print", PRINT),
        ("order_sensitive", ctypes.c_uint32),
        ("smid", ctypes.c_uint32),
        ("device", ctypes.c_uint64),
    ]


class Fault(Exception):  # noqa: N818 (what CUDA calls it)
    """What a kernel reported through env->fault or env->outside: a code (700, 716...) and an address."""

    def __init__(self, code: int, address: int) -> None:
        self.code, self.address = code, address
        super().__init__(f"{code} at {address:#x}")


def nvrtc(source: str, *options: str) -> str:
    """CUDA C -> PTX with the vendor's compiler."""
    packages = site.getsitepackages()[0]
    library = ctypes.CDLL(glob.glob(packages + "/nvidia/cu13/lib/libnvrtc.so.13")[0])
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    words = [
        o.encode() for o in ("--gpu-architecture=compute_120", f"-I{packages}/nvidia/cu13/include", *options)
    ]
    failed = library.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    size = ctypes.c_size_t()
    get_size, get = (
        (library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
        if failed
        else (library.nvrtcGetPTXSize, library.nvrtcGetPTX)
    )
    get_size(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get(program, text)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(text.value.decode())
    return text.value.decode()


def aligned(size: int, align: int = 256) -> np.ndarray[Any, Any]:
    raw = np.zeros(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size]


class Kernel:
    """A kernel for one block shape, with one arena as its global memory."""

    def __init__(self, ptx: str | Module, name: str, block: tuple[int, int, int]) -> None:
        module = parse(ptx) if isinstance(ptx, str) else ptx
        self.module, self.block = module, block
        self.compiled, code = compile_kernel(module, name, block)
        self.folder = tempfile.TemporaryDirectory(prefix="sg-ptx-")
        obj = Path(self.folder.name) / "k.o"
        obj.write_bytes(code)
        library = obj.with_suffix(".so")
        subprocess.run(
            [
                "gcc",
                "-std=c11",
                "-O1",
                "-fPIC",
                "-shared",
                f"-I{ROOT}",
                "-o",
                str(library),
                str(Path(__file__).parent / "harness.c"),
                str(ROOT / "backends/fake/device/second_look.c"),
                str(obj),
                "-lm",
            ],
            check=True,
        )
        linked = ctypes.CDLL(str(library))
        self.function = ctypes.cast(getattr(linked, self.compiled.symbol), ctypes.c_void_p)
        self.run_grid = linked.run_grid
        self.run_grid.argtypes = [ctypes.c_void_p] * 4
        self.run_grid.restype = ctypes.c_uint32
        self.printed: list[bytes] = []
        self.params = [(p.size, p.align if p.type == "b8" else p.size) for p in module.functions[name].params]

    def pack(self, arguments: list[Any]) -> np.ndarray[Any, Any]:
        data = bytearray()
        for argument, (size, align) in zip(arguments, self.params, strict=True):
            data += bytes(-len(data) % align)
            if isinstance(argument, int):
                data += (argument & ((1 << 8 * size) - 1)).to_bytes(size, "little")
            else:
                part = bytes(argument)
                assert len(part) == size
                data += part
        buffer = aligned(len(data) + 64)
        buffer[: len(data)] = np.frombuffer(bytes(data), np.uint8)
        return buffer

    def __call__(
        self,
        grid: tuple[int, int, int],
        *arguments: Any,
        dynamic: int = 0,
        globals_: list[np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """Runs all blocks in index order.  Arrays are copied into an arena, and back at the end."""
        arrays = [a for a in arguments if isinstance(a, np.ndarray)] + list(globals_ or [])
        arena = aligned(sum(-(-a.nbytes // 256) * 256 for a in arrays) + 256, 4096)
        at, places = 0, {}
        for a in arrays:
            arena[at : at + a.nbytes] = np.frombuffer(a.tobytes(), np.uint8)
            places[id(a)] = at
            at += -(-a.nbytes // 256) * 256
        base = arena.ctypes.data
        packed = self.pack([base + places[id(a)] if isinstance(a, np.ndarray) else a for a in arguments])
        table = np.array([base + places[id(g)] for g in globals_ or []] or [0], np.uint64)
        code, address = self.launch(grid, packed, base, base + arena.nbytes, dynamic, table)
        for a in arrays:
            start = places[id(a)]
            a[...] = np.frombuffer(arena[start : start + a.nbytes].tobytes(), a.dtype).reshape(a.shape)
        if code:
            raise Fault(code, address)

    def launch(
        self,
        grid: tuple[int, int, int],
        packed: np.ndarray[Any, Any],
        lo: int,
        hi: int,
        dynamic: int,
        table: np.ndarray[Any, Any],
    ) -> tuple[int, int]:
        """Runs a grid; (0, 0), or what was reported and the address."""
        compiled, env = self.compiled, Env()
        threads = self.block[0] * self.block[1] * self.block[2]
        shared_size = (-(-compiled.shared // 16) * 16 if dynamic else compiled.shared) + dynamic
        shared, local = aligned(shared_size + 64), aligned(compiled.local * threads + 64)
        spill = aligned(compiled.spill + 64)
        stride = -(-compiled.local // 16) * 16
        local = aligned(stride * threads + 64)
        env.lo, env.hi, env.shared, env.shared_bytes = lo, hi, shared.ctypes.data, shared_size
        env.local, env.local_stride, env.spill, env.globals = (
            local.ctypes.data,
            stride,
            spill.ctypes.data,
            table.ctypes.data,
        )
        env.dynamic_shared = dynamic
        env.print = PRINT(self.print)
        for i in range(3):
            env.grid[i], env.block[i] = grid[i], self.block[i]
        address = ctypes.c_uint64()
        code = self.run_grid(
            self.function, ctypes.addressof(env), packed.ctypes.data, ctypes.addressof(address)
        )
        return code, address.value

    def print(self, env: int, format_: int, arguments: int) -> int:
        self.printed.append(ctypes.string_at(format_))
        return 1
