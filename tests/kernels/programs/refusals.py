"""Loads PTX that must be refused, and prints from a kernel: refusals.py ANSWERS."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_uint, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import driver

GOOD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
TEXTS = {
    "unknown_opcode": GOOD.replace("mov.u32 %r1, 7", "frobnicate.u32 %r1, 7"),
    "not_ptx": "this is not PTX at all\n",
    "missing_brace": GOOD[: GOOD.rindex("}")],
    "undeclared_register": GOOD.replace("mov.u32 %r1, 7", "mov.u32 %q9, 7"),
    "undefined_label": GOOD.replace("mov.u32 %r1, 7;", "bra NOWHERE;"),
    "wrong_type": GOOD.replace("mov.u32 %r1, 7", "add.u32 %r1, %rd1, %rd1"),
    "future_version": GOOD.replace(".version 8.0", ".version 99.0"),
    "good": GOOD,
}
PRINTING = r"""
extern "C" __global__ void say(long long big) {
  printf("thread %d of %u: %i %.3f %s 0x%04x %lld\n", threadIdx.x, blockDim.x, (int)threadIdx.x - 7, 2.5 + threadIdx.x * 0.5,
         "text", 255 + threadIdx.x, big + threadIdx.x);
}"""
INFO_LOG, INFO_LOG_SIZE, ERROR_LOG, ERROR_LOG_SIZE = 3, 4, 5, 6


def load(device: driver.Device, text: str) -> dict[str, object]:
    """cuModuleLoadDataEx with an error log."""
    module, log = c_void_p(), ctypes.create_string_buffer(4096)
    options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
    values = (c_void_p * 2)(ctypes.addressof(log), 4096)
    code = device.library.cuModuleLoadDataEx(
        byref(module), c_char_p(text.encode()), c_uint(2), options, values
    )
    return {"code": code, "log": log.value.decode()}


def main() -> None:
    device = driver.Device()
    answers: dict[str, object] = {name: load(device, text) for name, text in TEXTS.items()}
    module = device.load(GOOD.encode())
    found = c_void_p()
    answers["missing_kernel"] = {
        "code": device.library.cuModuleGetFunction(byref(found), module.handle, b"other")
    }
    device.build(PRINTING).run("say", 1, 3, ctypes.c_longlong(123456789012))
    Path(sys.argv[1]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
