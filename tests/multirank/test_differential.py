"""Ranks that share devices compute what they do on devices of their own: random programs, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .generate import programs
from .jobs import run_job

PROGRAM = Path(__file__).parent / "programs" / "interpreter.py"
BATCH = 12


def results(folder: Path, ranks: int, devices: int, batch: list[dict[str, Any]]) -> list[Any]:
    """What each rank read, per program."""
    folder.mkdir()
    (folder / "programs.json").write_text(json.dumps(batch))
    run_job(PROGRAM, str(folder / "programs.json"), str(folder), ranks=ranks, devices=devices)
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (3, 2), (4, 1), (4, 2)])
def test_sliced_ranks_get_the_bytes_of_dedicated_devices(ranks: int, devices: int, tmp_path: Path) -> None:
    """Random programs (memory, kernels, streams, events, graphs, host functions, all collectives, groups,
    several communicators, threads) leave the same bytes on shared devices as on dedicated ones."""
    number = 0

    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(programs(ranks), min_size=BATCH, max_size=BATCH))
    def compare(batch: list[dict[str, Any]]) -> None:
        nonlocal number
        number += 1
        dedicated = results(tmp_path / f"{number}-dedicated", ranks, ranks, batch)
        sliced = results(tmp_path / f"{number}-sliced", ranks, devices, batch)
        for rank in range(ranks):
            for at, (wanted, found) in enumerate(zip(dedicated[rank], sliced[rank], strict=True)):
                assert found == wanted, f"rank {rank}, program {at}: {json.dumps(batch[at])}"

    compare()
