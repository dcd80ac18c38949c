"""A rank that wants 60 % of the device for itself, fills it, and looks at it again.  argv: rank's pattern.

Lines: `filled`, then, after a line on standard input, `unchanged`."""

from __future__ import annotations

import ctypes as c
import sys

import driver

PIECE = 8 << 20
pattern = int(sys.argv[1])
driver.start()


def info() -> tuple[int, int]:
    """(free, total) bytes, as the driver says."""
    free, total = c.c_size_t(), c.c_size_t()
    driver.check("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    return free.value, total.value


free, total = info()
assert free == total, f"{total - free} bytes are somebody else's"
pieces = [driver.allocate(PIECE) for _ in range(int(total * 0.6) // PIECE)]
assert info() == (total - len(pieces) * PIECE, total)
driver.expect(2, "cuMemAlloc_v2", c.byref(driver.Address()), c.c_size_t(free - len(pieces) * PIECE + 512))
for number, piece in enumerate(pieces):
    driver.check("cuMemsetD32_v2", piece, c.c_uint(pattern + number), c.c_size_t(PIECE // 4))
driver.check("cuCtxSynchronize")
print("filled", pieces[0].value, flush=True)
sys.stdin.readline()
for number, piece in enumerate(pieces):
    expected = (pattern + number).to_bytes(4, "little") * (PIECE // 4)
    assert driver.download(piece, PIECE) == expected, f"piece {number} of pattern {pattern} is another's"
print("unchanged", flush=True)
