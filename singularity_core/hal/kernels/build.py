"""Compiles kernels.cu into the committed .ptx files with NVRTC; ``--check`` only says whether they are
current.

python -m singularity_core.hal.kernels.build [--check] [--nvrtc PATH]

Needs NVRTC (the package nvidia-cuda-nvrtc); using the HAL does not.  The version line is lowered to what the
code needs, because a driver refuses PTX that is newer than itself.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
PTX_VERSION = "6.5"
TARGET = "75"

FLAVOURS: dict[str, tuple[str, ...]] = {
    "digest": (),
    "reduce_f16": ("-DELEMENT_F16", "-DFLOATING"),
    "reduce_bf16": ("-DELEMENT_BF16", "-DFLOATING"),
    "reduce_f32": ("-DELEMENT_TYPE=float", "-DSUM_TYPE=float", "-DFLOATING"),
    "reduce_f64": ("-DELEMENT_TYPE=double", "-DSUM_TYPE=double", "-DFLOATING"),
    "reduce_i8": ("-DELEMENT_TYPE=signed char", "-DSUM_TYPE=int"),
    "reduce_u8": ("-DELEMENT_TYPE=unsigned char", "-DSUM_TYPE=unsigned"),
    "reduce_i32": ("-DELEMENT_TYPE=int", "-DSUM_TYPE=int"),
    "reduce_u32": ("-DELEMENT_TYPE=unsigned", "-DSUM_TYPE=unsigned"),
    "reduce_i64": ("-DELEMENT_TYPE=long long", "-DSUM_TYPE=long long"),
    "reduce_u64": ("-DELEMENT_TYPE=unsigned long long", "-DSUM_TYPE=unsigned long long"),
}


def find_nvrtc() -> str:
    """The path of the installed NVRTC, from the package of that name; else the name that the loader
    searches."""
    for folder in map(Path, sys.path):
        for library in sorted((folder / "nvidia").glob("**/libnvrtc.so.*")):
            if re.fullmatch(r"libnvrtc\.so\.\d+", library.name):
                return str(library)
    return "libnvrtc.so"


def compile_ptx(nvrtc: ctypes.CDLL, source: str, flags: tuple[str, ...]) -> str:
    """PTX text for one flavour.  RuntimeError with the compiler's log when the source does not compile."""
    program = ctypes.c_void_p()
    options = [f"--gpu-architecture=compute_{TARGET}", "--fmad=false", "--std=c++17", *flags]
    packed = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(options), packed)
    size = ctypes.c_size_t()
    which = "nvrtcGetProgramLog" if failed else "nvrtcGetPTX"
    getattr(nvrtc, f"{which}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, which)(program, text)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise RuntimeError(text.value.decode())
    return clean(text.value.decode())


def clean(ptx: str) -> str:
    """Without the compiler's banner, and with the version that the code needs instead of the compiler's
    own."""
    lines = [line for line in ptx.splitlines() if line.strip() and not line.startswith("//")]
    body = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", "\n".join(lines), flags=re.MULTILINE)
    return "// Generated from kernels.cu by build.py.  Do not edit.\n" + body + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Writes the files, or names those that are not current; exit status 1 for the latter."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nvrtc", default=None)
    options = parser.parse_args(arguments)
    nvrtc = ctypes.CDLL(options.nvrtc or find_nvrtc())
    source = (HERE / "kernels.cu").read_text()
    stale = []
    for name, flags in FLAVOURS.items():
        path, ptx = HERE / f"{name}.ptx", compile_ptx(nvrtc, source, flags)
        if not path.exists() or path.read_text() != ptx:
            stale.append(path.name)
            if not options.check:
                path.write_text(ptx)
    print(f"{'not current' if options.check else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
