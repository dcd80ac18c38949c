"""A rank that has a context and a buffer, and then does nothing until a line comes."""

from __future__ import annotations

import sys

import driver

driver.start()
address = driver.allocate(1000)
driver.upload(address, bytes(range(250)) * 4)
print("idle", flush=True)
sys.stdin.readline()
assert driver.download(address, 1000) == bytes(range(250)) * 4
print("still there", flush=True)
