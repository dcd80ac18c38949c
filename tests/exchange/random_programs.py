"""Random programs of several ranks, with what numpy says that they compute."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import Array, random_array, reduce, storage
from .conftest import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AVG,
    BF16,
    BROADCAST,
    GATHER,
    PREMUL,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    SUM,
    World,
)  # fmt: skip

COUNTS = (0, 1, 2, 17, 1000, 20_000)


@dataclass
class Check:
    """An output of a rank, and what it has to be."""

    rank: int
    kind: int
    dtype: int
    got: Array
    expected: Array


@dataclass
class Step:
    """What each rank of one communicator adds to its program at one point: a group."""

    communicator: int
    operations: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    """By global rank: kind, dtype, reduction, root, count, send, receive, factor."""


def _buffers(
    kind: int, dtype: int, count: int, ranks: int, choice: random.Random
) -> tuple[list[Array], list[Array]]:
    """Inputs with random content and outputs, by rank; some in place, where NCCL allows it."""
    wide_in = kind in (REDUCE_SCATTER, ALL_TO_ALL, SCATTER)
    wide_out = kind in (ALL_GATHER, ALL_TO_ALL, GATHER)
    inputs = [
        random_array(dtype, count * (ranks if wide_in else 1), choice.getrandbits(32)) for _ in range(ranks)
    ]
    outputs = [np.zeros(count * (ranks if wide_out else 1), storage(dtype)) for _ in range(ranks)]
    if choice.random() < 0.3 and kind != ALL_TO_ALL:
        for rank in range(ranks):
            part = slice(rank * count, (rank + 1) * count)
            if wide_in:
                outputs[rank] = inputs[rank][part]
            elif wide_out:
                outputs[rank][part] = inputs[rank]
                inputs[rank] = outputs[rank][part]
            else:
                outputs[rank] = inputs[rank]
    return inputs, outputs


def _expected(
    kind: int, dtype: int, reduction: int, root: int, inputs: list[Array], factors: list[int]
) -> list[Array | None]:
    """By rank; None: the rank gets nothing."""
    ranks = len(inputs)
    blocks = (
        [np.split(array, ranks) for array in inputs] if kind in (REDUCE_SCATTER, ALL_TO_ALL, SCATTER) else []
    )
    if kind == ALL_REDUCE:
        return [reduce(dtype, reduction, inputs, factors)] * ranks
    if kind == REDUCE:
        result = reduce(dtype, reduction, inputs, factors)
        return [result if rank == root else None for rank in range(ranks)]
    if kind == REDUCE_SCATTER:
        return [reduce(dtype, reduction, [block[rank] for block in blocks], factors) for rank in range(ranks)]
    if kind == BROADCAST:
        return [inputs[root].copy()] * ranks
    if kind == ALL_GATHER:
        return [np.concatenate(inputs)] * ranks
    if kind == GATHER:
        return [np.concatenate(inputs) if rank == root else None for rank in range(ranks)]
    if kind == SCATTER:
        return [blocks[root][rank].copy() for rank in range(ranks)]
    return [np.concatenate([block[rank] for block in blocks]) for rank in range(ranks)]


def add_collective(
    step: Step,
    members: list[int],
    choice: random.Random,
    checks: list[Check],
    counts: tuple[int, ...] = COUNTS,
) -> None:
    """One collective of any kind."""
    kind = choice.choice(
        (ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER)
    )
    dtype, reduction = choice.randrange(BF16 + 1), choice.randrange(SUM, PREMUL + 1)
    count, root = choice.choice(counts), choice.randrange(len(members))
    if reduction == AVG and count > 2000:
        reduction = SUM  # the oracle divides integers one by one
    inputs, outputs = _buffers(kind, dtype, count, len(members), choice)
    factors = [
        int(random_array(dtype, 1, choice.getrandbits(32)).view(f"u{storage(dtype).itemsize}")[0])
        for _ in members
    ]
    expected = _expected(kind, dtype, reduction, root, inputs, factors)
    for rank, global_rank in enumerate(members):
        result = expected[rank]
        if result is not None:
            checks.append(Check(global_rank, kind, dtype, outputs[rank], result))
        operation = (kind, dtype, reduction, root, count, inputs[rank], outputs[rank], factors[rank])
        step.operations.setdefault(global_rank, []).append(operation)


def add_transfers(
    step: Step,
    members: list[int],
    choice: random.Random,
    checks: list[Check],
    counts: tuple[int, ...] = COUNTS,
) -> None:
    """Transfers among some pairs, to oneself included; each rank lists them in its order."""
    mine: dict[int, list[tuple[Any, ...]]] = {rank: [] for rank in members}
    for sender, from_rank in enumerate(members):
        for receiver, to_rank in enumerate(members):
            if choice.random() < 0.5:
                continue
            dtype, count = choice.randrange(BF16 + 1), choice.choice(counts)
            source = random_array(dtype, count, choice.getrandbits(32))
            target = np.zeros(count, storage(dtype))
            mine[from_rank].append((SEND, dtype, 0, receiver, count, source, None, 0))
            mine[to_rank].append((RECV, dtype, 0, sender, count, None, target, 0))
            checks.append(Check(to_rank, RECV, dtype, target, source))
    for rank, operations in mine.items():
        choice.shuffle(operations)
        step.operations.setdefault(rank, []).extend(operations)


def play(
    world: World, members: list[list[Any]], groups: list[list[int]], steps: list[Step], choice: random.Random
) -> None:
    """Every rank issues its groups in its order; who goes next, when groups arrive, and which engine runs is
    random.  Ends when everything was issued, has arrived and nothing moves any more."""
    from singularity_core._native import lib

    todo = {rank: [s for s in steps if s.operations.get(rank)] for rank in range(len(world.ranks))}
    flying: list[Any] = []
    while any(todo.values()) or flying:
        ready = [rank for rank, rest in todo.items() if rest]
        what = choice.random()
        if ready and what < 0.5:
            rank = choice.choice(ready)
            step = todo[rank].pop(0)
            member = members[step.communicator][groups[step.communicator].index(rank)]
            flying.append(
                world.ranks[rank].submit(*((member, *op) for op in step.operations[rank]), arrive=False)
            )
        elif flying and what < 0.8:
            lib.sg_group_arrived(flying.pop(choice.randrange(len(flying))))
        else:
            world.turn()
    world.settle()
