"""What a training script keeps besides its model: batches that other processes load, a log, files with
weights, and an eye on the other ranks.

All of it is ordinary: children by multiprocessing, a thread that writes files, a TCP connection to rank 0.
Nothing here knows of Singularity HAL.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from nccl_ranks import Place, connect

_AHEAD = 2  # batches that a loader keeps ready
_LOOK_SECONDS = 1.0  # how often a wait for another process looks whether that still lives


class Batch(NamedTuple):
    """One rank's part of a batch."""

    images: np.ndarray
    labels: np.ndarray
    order: str
    """A digest of what the whole batch, of all ranks, was drawn to be."""


class Batches:
    """The batches of a training, in the same order however many processes load them.

    Loader number k makes the batches k, k + loaders, ... and keeps a few of them ready.  Iterate once."""

    def __init__(
        self,
        data: tuple[np.ndarray, np.ndarray],
        *,
        seed: int,
        size: int,
        count: int,
        place: Place,
        loaders: int,
    ) -> None:
        """`data`: images and labels; `size`: of a batch, of all ranks.  With `loaders`, forks that many
        processes: be early, before there are threads and a device."""
        self._data, self._seed, self._size, self._count, self._place = data, seed, size, count, place
        context = multiprocessing.get_context("fork")
        self._ready = [context.Queue(_AHEAD) for _ in range(loaders)]
        self._processes = [
            context.Process(target=self._load, args=(number,), daemon=True, name=f"loader-{number}")
            for number in range(loaders)
        ]
        for process in self._processes:
            process.start()

    def _draw(self) -> Iterator[Batch]:
        images, labels = self._data
        draw, part = np.random.default_rng(self._seed), self._size // self._place.world
        for _ in range(self._count):
            chosen = draw.integers(0, len(labels), self._size)
            mine = chosen[self._place.rank * part : (self._place.rank + 1) * part]
            yield Batch(images[mine], labels[mine], hashlib.sha256(chosen.tobytes()).hexdigest()[:16])

    def _load(self, loader: int) -> None:
        for number, batch in enumerate(self._draw()):
            if number % len(self._ready) == loader:
                self._ready[loader].put(batch)

    def __iter__(self) -> Iterator[Batch]:
        if not self._processes:
            yield from self._draw()
            return
        for number in range(self._count):
            yield self._take(number % len(self._processes))

    def _take(self, loader: int) -> Batch:
        while True:
            try:
                batch: Batch = self._ready[loader].get(timeout=_LOOK_SECONDS)
                return batch
            except queue.Empty:
                code = self._processes[loader].exitcode
                if code is not None and code != 0:
                    raise RuntimeError(f"Data loader {loader} ended with {code}.") from None

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


class Log:
    """A file to which each step appends a line: its number, the exact loss, the order of the data."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1, encoding="utf-8")

    def step(self, number: int, loss: float | None, order: str) -> None:
        """After each step; a rank that does not know the loss gives None."""
        self._file.write(f"{number} {'-' if loss is None else loss.hex()} {order}\n")

    def close(self) -> None:
        """All lines are written."""
        self._file.close()


class Saver:
    """Writes weights to DIRECTORY/step-N.npz in a thread, while the training goes on.  A file is there whole
    or not at all."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._waiting: queue.Queue[tuple[int, dict[str, np.ndarray]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="saver", daemon=True)
        self._thread.start()

    def save(self, number: int, weights: dict[str, np.ndarray]) -> None:
        """The weights after step `number`; they must not change afterwards."""
        self._waiting.put((number, weights))

    def close(self) -> None:
        """All are written."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            number, weights = item
            making = self._directory / "making"
            with making.open("wb") as file:
                np.savez(file, **weights)
                file.flush()
                os.fsync(file.fileno())
            making.rename(self._directory / f"step-{number}.npz")


class Watch:
    """All ranks tell rank 0, over TCP, the loss that each step gave them: models that drift apart are a
    mistake to be found at once.  The connections stay for as long as the training."""

    def __init__(self, place: Place) -> None:
        """Returns when all ranks are connected."""
        self._said: queue.Queue[str] = queue.Queue()
        self._apart = ""
        self._peers = _meet(place) if place.rank == 0 else [_join(place)]
        self._thread = threading.Thread(
            target=self._compare if place.rank == 0 else self._tell, name="watch", daemon=True
        )
        self._thread.start()

    def step(self, number: int, loss: float) -> None:
        """After each step.  `RuntimeError`, now or later, when another rank had another loss."""
        if self._apart:
            raise RuntimeError(self._apart)
        self._said.put(f"{number} {loss.hex()}\n")

    def close(self) -> None:
        """All ranks were compared to the last step."""
        self._said.put("")
        self._thread.join()
        for peer in self._peers:
            peer.close()
        if self._apart:
            raise RuntimeError(self._apart)

    def _tell(self) -> None:
        peer = self._peers[0]
        try:
            while line := self._said.get():
                peer.sendall(line.encode())
            peer.shutdown(socket.SHUT_WR)
            peer.recv(1)  # until rank 0 has read it all
        except OSError as error:
            self._apart = f"Rank 0 does not listen: {error}"

    def _compare(self) -> None:
        lines = [peer.makefile(encoding="utf-8") for peer in self._peers]
        mine = " "
        while mine and not self._apart:
            mine = self._said.get()
            for rank, theirs in enumerate(lines, 1):
                if (told := theirs.readline()) != mine:
                    self._apart = f"Rank {rank} says {told!r}, and rank 0 {mine!r}."


def _meet(place: Place) -> list[socket.socket]:
    """Rank 0's connections to the others, by rank."""
    peers: dict[int, socket.socket] = {}
    with socket.create_server(place.master, backlog=place.world) as server:
        while len(peers) < place.world - 1:
            peer, _ = server.accept()
            peers[int.from_bytes(peer.recv(4, socket.MSG_WAITALL))] = peer
    for peer in peers.values():  # only now: the port is free for others
        peer.sendall(b"!")
    return [peers[rank] for rank in sorted(peers)]


def _join(place: Place) -> socket.socket:
    peer = connect(place.master)
    peer.settimeout(None)
    peer.sendall(place.rank.to_bytes(4))
    if peer.recv(1) != b"!":
        raise RuntimeError("Rank 0 hung up.")
    return peer
