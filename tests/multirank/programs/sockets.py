"""Ranks that meet over TCP, out of the device's sight: an all-reduce through rank 0, as gloo would do one."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import nccl
import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint32]]


def _receive(connection: socket.socket, like: Words) -> Words:
    data = bytearray()
    while len(data) < like.nbytes:
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError("the other rank is gone")
        data += part
    return np.frombuffer(bytes(data), np.uint32)


def all_reduce(place: Path, data: Words) -> Words:
    """The sum over all ranks; rank 0 says in the file `place` at which port it listens."""
    if nccl.rank() == 0:
        return _collect(place, data)
    while not place.exists():
        time.sleep(0.002)
    with socket.create_connection(("127.0.0.1", int(place.read_text())), timeout=60) as connection:
        connection.sendall(data.tobytes())
        return _receive(connection, data)


def _collect(place: Path, data: Words) -> Words:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        made = place.with_suffix(".making")
        made.write_text(str(listener.getsockname()[1]))
        made.rename(place)
        others = [listener.accept()[0] for _ in range(nccl.world() - 1)]
    total = data.copy()
    for connection in others:
        total += _receive(connection, data)
    for connection in others:
        connection.sendall(total.tobytes())
        connection.close()
    return total
