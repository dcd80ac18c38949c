"""Loads and launches one PTX text, most of which must be refused; or prints: refusals.py ANSWER NAME."""
# ruff: noqa: E501  (kernels' source text)

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_uint, c_void_p
from pathlib import Path

import numpy as np

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
ERROR_LOG, ERROR_LOG_SIZE = 5, 6


def load_and_launch(text: str, room: int = 4096) -> dict[str, object]:
    """The first call that fails, of load, look up, launch, synchronise; in a context of its own."""
    device = driver.Device()
    module, function, log = c_void_p(), c_void_p(), ctypes.create_string_buffer(b"?" * 4096)
    options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
    values = (c_void_p * 2)(ctypes.addressof(log), room)
    library, out = device.library, device.zeros(1, np.uint32)
    parameters = (c_void_p * 1)(ctypes.addressof(pointer := ctypes.c_uint64(out.pointer)))
    one = c_uint(1)
    steps: dict[str, Callable[[], int]] = {
        "load": lambda: library.cuModuleLoadDataEx(
            byref(module), c_char_p(text.encode()), c_uint(2), options, values
        ),
        "look up": lambda: library.cuModuleGetFunction(byref(function), module, b"k"),
        "launch": lambda: library.cuLaunchKernel(function, *[one] * 6, c_uint(0), None, parameters, None),
        "synchronize": library.cuCtxSynchronize,
    }
    code, failed = 0, ""
    for name, step in steps.items():
        code = code or step()
        failed = failed or (name if code else "")
    del pointer
    return {"code": code, "log": log.value.decode(), "size": values[1] or 0, "step": failed}


def missing_kernel() -> int:
    device, found = driver.Device(), c_void_p()
    return int(device.library.cuModuleGetFunction(byref(found), device.load(GOOD.encode()).handle, b"other"))


def main() -> None:
    answers, wanted = Path(sys.argv[1]), sys.argv[2]
    if wanted == "printing":
        driver.Device().build(PRINTING).run("say", 1, 3, ctypes.c_longlong(123456789012))
        answer: object = {}
    elif wanted == "missing_kernel":
        answer = {"code": missing_kernel()}
    elif wanted == "little_room":
        answer = load_and_launch(TEXTS["missing_brace"], 16)
    else:
        answer = load_and_launch(TEXTS[wanted])
    answers.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
