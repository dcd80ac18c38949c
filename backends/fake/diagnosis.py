"""Whether this installation can compile: the in-memory device runs nothing without its compiler."""

from __future__ import annotations

import importlib.metadata
import shlex
import struct
import subprocess
from pathlib import Path

from singularity_core.hal import Diagnosis

_SECONDS = 60.0
_LOAD, _COMPILE = 1, 2
_PTX = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry probe(.param .u64 out)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    st.global.u32 [%rd1], 1;
    ret;
}
"""


def diagnose(compiler: str) -> list[Diagnosis]:
    """Looks for llvmlite and lets the compile service `compiler` compile a kernel."""
    return [_llvmlite(), _service(compiler)]


def _llvmlite() -> Diagnosis:
    try:
        return Diagnosis("llvmlite", True, importlib.metadata.version("llvmlite"))
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis("llvmlite", False, "not installed", "pip install 'singularity-hal[fake]'")


def _service(compiler: str) -> Diagnosis:
    try:
        detail = _compile(compiler)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Diagnosis(
            "ptx-compile", False, f"{compiler}: {error}", "Correct SINGULARITY_FAKE_PTX_COMPILE, or unset it."
        )
    return Diagnosis("ptx-compile", True, detail)


def _compile(compiler: str) -> str:
    """Two requests as kernel_abi.h defines them.  ValueError when the service answers otherwise."""
    with subprocess.Popen(
        [*shlex.split(compiler), "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as service:
        try:
            # The second request needs the answer to the first, but the digest is the service's own.
            said, errors = service.communicate(_request(_LOAD, _PTX), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            service.kill()
            raise
    loaded = _answer(said, errors)
    module = next((line.split()[1] for line in loaded if line.startswith("module ")), "")
    finished = subprocess.run(
        [*shlex.split(compiler), "--serve"],
        input=_request(_LOAD, _PTX) + _request(_COMPILE, f"{module} probe 32 1 1 0\n".encode()),
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
    skipped = 4 + struct.unpack_from("<I", finished.stdout)[0] if len(finished.stdout) >= 4 else 0
    compiled = _answer(finished.stdout[skipped:], finished.stderr)
    made = next((line.split(maxsplit=1)[1] for line in compiled if line.startswith("object ")), "")
    if not Path(made).is_file():
        raise ValueError(f"it compiled a kernel, but there is no object {made!r}")
    return f"compiles into {Path(made).parent}"


def _request(verb: int, payload: bytes) -> bytes:
    return struct.pack("<II", 4 + len(payload), verb) + payload


def _answer(said: bytes, errors: bytes) -> list[str]:
    if len(said) < 8:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ValueError(f"it does not answer: {lines[-1] if lines else 'no message'}")
    length, status = struct.unpack_from("<II", said)
    text = said[8 : 4 + length].decode(errors="replace")
    if status != 0:
        raise ValueError(f"it refuses a simple kernel with status {status}: {text}")
    return text.splitlines()
