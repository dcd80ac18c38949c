"""Random programs of ranks that do not speak to each other, and what numpy says they hold in the end.

The steps are those of tests/multirank/programs/interpreter.py; each rank draws its own.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Step = list[Any]
Words = npt.NDArray[np.uint32]
NAMES = ("p", "q", "r", "s")
WORDS = (1, 33, 1000, 40_000, 300_000)
KINDS = (*["kernel"] * 4, "graph", "copy", "set", "fill", "again", "call_host", "read", "wait", "sleep")


@dataclass
class Rank:
    """A rank's program while it is drawn, with its memory as it should be."""

    number: int
    steps: list[Step] = field(default_factory=list)
    memory: dict[str, Words] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    host_functions: int = 0

    def use(self, stream: int, *names: str) -> None:
        """Orders `stream` after the buffers' last uses."""
        self.steps += [
            ["order", before, stream] for before in sorted({self.used[n] for n in names} - {stream})
        ]
        self.used |= dict.fromkeys(names, stream)

    def alloc(self, name: str, words: int, seed: int) -> None:
        """A buffer with its first content, as the interpreter's `fill` draws it."""
        self.steps += [["alloc", name, words], ["fill", name, seed, False]]
        self.fill(name, words, seed)

    def fill(self, name: str, words: int, seed: int) -> None:
        drawn = np.random.default_rng(1000 * seed + self.number)
        self.memory[name], self.used[name] = drawn.integers(0, 2**32, words, np.uint32), 0

    def read(self, name: str) -> None:
        digest = hashlib.blake2b(self.memory[name].tobytes(), digest_size=8).hexdigest()
        self.results.append(f"{name} {digest}")

    def mix(self, to: str, source: str, factor: int) -> None:
        """What the interpreter's kernel does."""
        a, b = self.memory[to], self.memory[source]
        count = min(len(a), len(b))
        a[:count] = a[:count] * np.uint32(factor) + b[:count]


def _step(rank: Rank, draw: random.Random) -> None:
    kind = draw.choice(KINDS)
    stream = draw.randrange(3)
    to, source = draw.sample(NAMES, 2)
    if kind in ("kernel", "graph"):
        stream, times = (stream, 1) if kind == "kernel" else (max(1, stream), draw.randint(1, 3))
        factor = draw.randint(1, 9)
        rank.use(stream, to, source)
        rank.steps.append([kind, to, source, stream, factor, *([times] if kind == "graph" else [])])
        for _ in range(times):
            rank.mix(to, source, factor)
    elif kind == "copy":
        rank.use(stream, to, source)
        rank.steps.append(["copy", to, source, stream])
        count = min(len(rank.memory[to]), len(rank.memory[source]))
        rank.memory[to][:count] = rank.memory[source][:count]
    elif kind == "set":
        value = draw.randrange(2**32)
        rank.use(stream, to)
        rank.steps.append(["set", to, stream, value])
        rank.memory[to][:] = value
    elif kind in ("fill", "again"):
        seed, words = draw.randrange(99), len(rank.memory[to])
        rank.steps.append(["synchronize", None])
        if kind == "again":
            words = draw.choice(WORDS)
            rank.steps += [["free", to], ["alloc", to, words]]
        rank.steps.append(["fill", to, seed, False])
        rank.fill(to, words, seed)
    elif kind == "read":
        rank.steps += [["synchronize", rank.used[to]], ["read", to]]
        rank.read(to)
    elif kind == "call_host":
        rank.steps.append(["call_host", stream])
        rank.host_functions += 1
    elif kind == "wait":
        rank.steps.append([draw.choice(["synchronize", "poll"]), stream])
    else:
        rank.steps.append(["sleep", draw.choice([0.0, 0.001, 0.02])])


def draw_program(seed: int, ranks: int, steps: int) -> tuple[dict[str, Any], list[list[str]]]:
    """A program as the interpreter reads it, and the results that each rank must report."""
    draw = random.Random(seed)
    drawn = [Rank(number) for number in range(ranks)]
    for rank in drawn:
        for name in NAMES:
            rank.alloc(name, draw.choice(WORDS), draw.randrange(99))
        for _ in range(steps):
            _step(rank, draw)
        for name in sorted(rank.memory):
            rank.read(name)
        rank.results.append(f"host functions {rank.host_functions}")
    program = {"communicators": {}, "ranks": [rank.steps for rank in drawn]}
    return program, [rank.results for rank in drawn]
