"""A rank that works for ever, with host functions in flight.  Says `working` once."""

from __future__ import annotations

import ctypes as c

import driver

COUNT = 100_000
HOST_FUNCTION = c.CFUNCTYPE(None, c.c_void_p)


@HOST_FUNCTION
def nothing(_: object) -> None:
    """Called in the stream's order."""


driver.start()
scale = driver.function()
stream = driver.make(driver.Handle, "cuStreamCreate", 0)
address = driver.allocate(4 * COUNT)
rounds = 0
while True:
    for _ in range(20):
        code = driver.launch(
            scale, address, c.c_uint(COUNT), c.c_float(1.5), grid=-(-COUNT // 128), block=128, stream=stream
        )
        assert code == 0, code
    driver.check("cuLaunchHostFunc", stream, nothing, None)
    driver.check("cuMemsetD32_v2", address, c.c_uint(rounds), c.c_size_t(COUNT))
    driver.check("cuStreamSynchronize", stream)
    rounds += 1
    if rounds == 3:
        print("working", flush=True)
