"""Which device serves which rank follows from the command line, or is refused with exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from singularity_core.launcher.errors import LaunchError
from singularity_core.launcher.run import cli
from singularity_core.launcher.settings import JobSettings
from singularity_core.launcher.sharing import Placement, place_again, place_ranks, swap_limit


def options(*arguments: str) -> dict[str, Any]:
    """What click makes of a command line."""
    return cli.make_context("singularity-run", [*arguments, "x.py"]).params


def placed(*arguments: str, count: int | None = 8, available: int = 8) -> tuple[int, ...]:
    """The device of each rank."""
    return place_ranks(options(*arguments), count, available).device_of_rank


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (0, 1, 2, 3, 4, 5, 6, 7)),
        (["--devices=2"], (0, 0, 0, 0, 1, 1, 1, 1)),
        (["--devices=4", "--tensor-parallel=2", "--pipeline-parallel=2"], (0, 1, 0, 1, 2, 3, 2, 3)),
        (["--devices=4", "--tensor_parallel=2", "--pipeline_parallel=2", "--rank_order=deepspeed"],
         (0, 1, 0, 1, 2, 3, 2, 3)),
        (["--devices=4", "--tensor-parallel=2", "--pipeline-parallel=2", "--rank-order=megatron-tp-pp-dp"],
         (0, 1, 2, 3, 0, 1, 2, 3)),
        (["--devices=4", "--sharding-factor=4"], (0, 1, 2, 3, 0, 1, 2, 3)),
        (["--rank-devices=0,0,1,1,2,2,3,3"], (0, 0, 1, 1, 2, 2, 3, 3)),
        (["--rank-devices=0,2,4,6/1,3,5,7", "--tensor-parallel=2"], (0, 1, 0, 1, 0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_placement_of_eight_ranks(arguments: list[str], expected: tuple[int, ...]) -> None:
    """Degrees, orders and maps decide who shares."""
    assert placed(*arguments) == expected


def test_without_devices_as_many_as_fit_evenly() -> None:
    """Six devices at hand, four partitions: four devices are used, without being asked."""
    arguments = ("--tensor-parallel=2", "--pipeline-parallel=2")
    found = place_ranks(options(*arguments), 8, 6)
    assert (found.devices, found.device_of_rank) == (4, (0, 1, 0, 1, 2, 3, 2, 3))


def test_one_rank_per_device() -> None:
    """--nproc-per-node gpu gives each device in use a rank."""
    assert placed(count=None, available=3) == (0, 1, 2)
    assert placed("--devices=2", count=None, available=3) == (0, 1)


def test_map_from_file_and_from_text(tmp_path: Path) -> None:
    """--rank-map takes a file, or the map itself."""
    text = "0=DP0,PP1 1=DP0,PP0 2=DP1,PP1 3=DP1,PP0"
    (tmp_path / "map").write_text(text.replace(" ", "\n"))
    assert placed("--devices=2", "--rank-map", text, count=4) == (0, 1, 0, 1)
    assert placed("--devices=2", "--rank-map", str(tmp_path / "map"), count=4) == (0, 1, 0, 1)
    as_json = '{"0": {"pp": 1}, "1": {}, "2": {"dp": 1, "pp": 1}, "3": {"dp": 1}}'
    assert placed("--devices=2", "--rank-map", as_json, count=4) == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices=2", "--pipeline-parallel=4"], "4 model partitions do not fit on 2"),
        (["--rank-devices=0,0,0,0,0,0,0,0", "--pipeline-parallel=2"], "pipeline stages 0 and 1"),
        (["--rank-devices=0,1,2,3,4,5,6,9"], "device 9"),
        (["--rank-devices=0,1"], "2 ranks, but there are 8"),
        (["--rank-map=/no/such/file"], "No such file"),
        (["--rank-map=0=DP0", "--tensor-parallel=2"], "leave out --tensor-parallel"),
        (["--rank-map=0=DP0"], "who rank 1 is"),
        (["--data-parallel=3"], "does not give 8 ranks"),
        (["--rank-order=random"], "no rank order 'random'"),
    ],
)
def test_refusals(arguments: list[str], said: str) -> None:
    """What cannot work is a usage error that says why."""
    with pytest.raises(click.UsageError, match=said):
        placed(*arguments)


def test_too_many_ranks_on_a_device() -> None:
    """A device serves 64 ranks at most."""
    with pytest.raises(click.UsageError, match="more than 64 ranks"):
        placed("--devices=1", count=65)


def test_environment_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The placement options have environment defaults as all others."""
    monkeypatch.setenv("SINGULARITY_RUN_RANK_DEVICES", "0,2/1,3")
    monkeypatch.setenv("SINGULARITY_RUN_SWAP_LIMIT", "2G")
    assert placed(count=4) == (0, 1, 0, 1)
    assert swap_limit(options()) == 2 << 30


def test_swap_limit_is_a_number_of_bytes() -> None:
    """Anything else is a usage error."""
    with pytest.raises(click.UsageError, match="--swap-limit much"):
        swap_limit(options("--swap-limit=much"))
    for wrong in ("0", "99999999T", "-1"):  # 0 would mean the default to a proxy
        with pytest.raises(click.UsageError, match=f"--swap-limit {wrong}"):
            swap_limit(options(f"--swap-limit={wrong}"))


@pytest.mark.parametrize(
    ("device_of_rank", "line"),
    [
        ((0, 1, 2), ""),
        ((0, 0), "2 ranks share 1 device, time-sliced (device 0: ranks 0, 1)"),
        ((0, 1, 0, 1, 2), "5 ranks share 3 devices, time-sliced (device 0: ranks 0, 2; device 1: ranks 1, 3; "
         "device 2: rank 4)"),
    ],
)  # fmt: skip
def test_one_line_says_who_shares(device_of_rank: tuple[int, ...], line: str) -> None:
    """The notice names devices and ranks, and is empty when nobody shares."""
    assert Placement(3, device_of_rank).describe_sharing() == line


def again(devices: int, *arguments: str, ranks: int = 4, available: int = 4) -> JobSettings:
    """The settings of a job that begins with `arguments` and is resized."""
    placement = place_ranks(options(*arguments), ranks, available)
    begun = JobSettings(
        backend="fake", command=("x",), ranks=ranks, devices=placement.devices, proxied=True, run_id="r",
        device_of_rank=placement.device_of_rank, master_addr="127.0.0.1", master_port=1,
        grid=placement.grid, available=available,
    )  # fmt: skip
    return place_again(begun, devices)


@pytest.mark.parametrize(
    ("arguments", "devices", "expected"),
    [
        ((), 2, (0, 0, 1, 1)),
        ((), 3, (0, 0, 1, 2)),
        (("--devices=1",), 4, (0, 1, 2, 3)),
        (("--rank-devices=0,1,0,1",), 1, (0, 0, 0, 0)),
        (("--rank-devices=0,1,0,1",), 2, (0, 0, 1, 1)),
        (("--tensor-parallel=2",), 2, (0, 1, 0, 1)),
    ],
)
def test_placement_after_a_resize(
    arguments: tuple[str, ...], devices: int, expected: tuple[int, ...]
) -> None:
    """Ranks are dealt out as at the start of a job with that many devices, and each rank finds its device
    behind the ordinal that it has always had."""
    found = again(devices, *arguments)
    assert (found.devices, found.device_of_rank) == (devices, expected)
    assert found.device_of_ordinal[: found.ranks] == expected
    assert place_again(found, devices) == found


def test_ordinals_of_idle_devices_stay() -> None:
    """A rank that saw more devices than it uses sees as many afterwards: idle ones where there are, else
    those of others."""
    assert again(4, "--devices=4", ranks=2).device_of_ordinal == (0, 1, 2, 3)
    assert again(3, "--devices=4", ranks=2).device_of_ordinal == (0, 1, 2, 2)
    assert again(1, "--devices=4", ranks=2).device_of_ordinal == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "devices", "ranks", "available", "reason"),
    [
        ((), 5, 4, 8, "this job can have 1 to 4; its ranks see 4"),
        ((), 4, 4, 2, "this job can have 1 to 2"),
        ((), 0, 4, 4, "this job can have 1 to 4"),
        (
            ("--tensor-parallel=2", "--pipeline-parallel=2"),
            3,
            8,
            8,
            "4 model partitions do not fit on 3 device(s)",
        ),
        ((), 1, 128, 128, "64"),
    ],
)
def test_resizes_that_cannot_be(
    arguments: tuple[str, ...], devices: int, ranks: int, available: int, reason: str
) -> None:
    """What a job could not begin with it cannot be resized to; the reason says what is possible."""
    with pytest.raises(LaunchError) as refused:
        again(devices, *arguments, ranks=ranks, available=available)
    assert reason in refused.value.cause
