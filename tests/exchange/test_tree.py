"""The fixed tree, and how it is cut over devices."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from singularity_core._native import ffi, lib

from .arithmetic import tree
from .conftest import SUM


@dataclass(frozen=True)
class Step:
    """A step of a program, as tree.h says."""

    first: int
    count: int
    place: int
    index: int


def program(places: list[int], merge: bool, first: int = 0, count: int | None = None) -> list[Step]:
    """The steps."""
    count = len(places) if count is None else count
    out = ffi.new("struct sg_tree_step[]", 2 * count)
    used = lib.sg_tree_program(places, first, count, merge, out)
    return [Step(step.first, step.count, step.place, step.index) for step in out[0:used]]


def run(steps: list[Step], leaves: list[np.float32], places: list[int]) -> np.float32:
    """Runs a program; an atom is computed by the program over its own leaves, as its device would."""
    stack: list[np.float32] = []
    for step in steps:
        if step.count == 0:
            right = stack.pop()
            stack[-1] = np.float32(stack[-1] + right)
        elif step.count == 1:
            stack.append(leaves[step.first])
        else:
            stack.append(run(program(places, False, step.first, step.count), leaves, places))
    (result,) = stack
    return result


def maps(ranks: int, devices: int) -> Any:
    """All maps of ranks to devices, up to the devices' names."""
    for places in itertools.product(range(devices), repeat=ranks):
        seen: list[int] = []
        for place in places:
            if place not in seen:
                seen.append(place)
        if seen == sorted(seen) and seen == list(range(len(seen))):
            yield list(places)


@pytest.mark.parametrize("ranks", range(1, 17))
def test_partials_do_not_change_bits(ranks: int) -> None:
    """For every map to at most 4 devices the tree over partials gives the bits of the plain tree (all maps
    up to 8 ranks, 300 of those of more)."""
    generator = np.random.default_rng(ranks)
    leaves = [
        np.float32(x) for x in generator.standard_normal(ranks) * 10.0 ** generator.integers(-6, 7, ranks)
    ]
    expected = tree(SUM, [np.array([x]) for x in leaves])[0]
    chosen: Any = maps(ranks, 4) if ranks <= 8 else generator.integers(0, 4, (300, ranks)).tolist()
    for places in chosen:
        steps = program(places, True)
        assert run(steps, leaves, places).tobytes() == expected.tobytes()
        atoms = [step for step in steps if step.count]
        covered = [i for step in atoms for i in range(step.first, step.first + step.count)]
        assert covered == list(range(ranks))
        for step in atoms:
            assert {places[i] for i in range(step.first, step.first + step.count)} == {step.place}
        for place in set(places):
            mine = [step.index for step in atoms if step.place == place]
            assert mine == list(range(len(mine)))


def test_atoms_are_maximal() -> None:
    """Two devices that hold halves of eight ranks give one partial each; dealt alternately, leaves."""
    halves = [(step.first, step.count) for step in program([0] * 4 + [1] * 4, True) if step.count]
    assert halves == [(0, 4), (4, 4)]
    assert [step.count for step in program([0, 1] * 4, True) if step.count] == [1] * 8
    assert [step.count for step in program([0, 0, 0], True) if step.count] == [3]


def test_the_stack_is_bounded() -> None:
    """A program over the largest number of ranks needs no more stack than the engine has."""
    for ranks in (1, 2, 3, 511, 513, 1000, 1023, 1024):
        out = ffi.new("struct sg_tree_step[]", 2 * ranks)
        used = lib.sg_tree_program([0] * ranks, 0, ranks, False, out)
        assert used == 2 * ranks - 1
        assert lib.sg_tree_depth(out, used) <= 11
