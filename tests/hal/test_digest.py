"""The content digest is one function, in C, Python and numpy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from singularity_core.hal.digest import digest, finish, word_sums
from singularity_core.testing import oracles

from .conftest import ROOT

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "singularity_core/hal/digest.h"
int main(void)
{
    size_t size = 0, room = 1 << 20;
    char *content = malloc(room);
    size = fread(content, 1, room, stdin);
    uint8_t out[16];
    sg_digest(content, size, out);
    free(content);
    return fwrite(out, 1, 16, stdout) != 16;
}
"""


@pytest.fixture(scope="module")
def c_digest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bytes]:
    """digest.h, compiled."""
    folder = tmp_path_factory.mktemp("digest")
    (folder / "main.c").write_text(PROGRAM)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{ROOT}"]
    subprocess.run(["gcc", *flags, "main.c", "-o", "main"], cwd=folder, check=True, timeout=60)
    program: Path = folder / "main"

    def run(content: bytes) -> bytes:
        return subprocess.run([program], input=content, capture_output=True, check=True, timeout=60).stdout

    return run


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 4096, 65_537])
def test_all_three_agree(c_digest: Callable[[bytes], bytes], size: int) -> None:
    """The C header, the Python module and the kit's oracle compute the same digest."""
    content = np.random.default_rng(size).bytes(size)
    assert digest(content) == c_digest(content) == oracles.digest(content)


def test_digest_is_pinned() -> None:
    """The digest of known content does not change: stored digests must stay valid."""
    assert digest(b"hello world, this is content").hex() == "36df17a1138e6f147d3e6a485a3873b1"


def test_parts_can_be_summed_apart() -> None:
    """Sums of consecutive parts add up to those of the whole, so threads may share the work."""
    content = np.random.default_rng(3).bytes(8 * 1000)
    first, second = word_sums(content[:2400]), word_sums(content[2400:], first=300)
    total = tuple((a + b) & (1 << 64) - 1 for a, b in zip(first, second, strict=True))
    assert finish((total[0], total[1]), len(content)) == digest(content)


def test_zeros_of_different_length_differ() -> None:
    """Zero padding is not confused with content."""
    assert len({digest(bytes(size)) for size in range(40)}) == 40


def test_swapped_words_differ() -> None:
    """The position of a word counts."""
    words = [bytes([k]) * 8 for k in range(1, 9)]
    seen = set()
    for i in range(8):
        for j in range(i):
            order = list(words)
            order[i], order[j] = order[j], order[i]
            seen.add(digest(b"".join(order)))
    assert len(seen) == 28
