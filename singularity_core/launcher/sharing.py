"""From the command line to the device of each rank, and what users are told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ..placement import (
    Coordinates,
    Degrees,
    PlacementError,
    assign,
    check_assignment,
    parse_rank_devices,
    parse_rank_map,
    rank_grid,
    usable_devices,
)
from ..proxy.process import parse_bytes
from .errors import LaunchError
from .option_group import option_group
from .seconds import Seconds
from .settings import MAX_RANKS_PER_DEVICE, JobSettings

_LONGEST_MAP = 1 << 20
_DEGREES = ("data_parallel", "tensor_parallel", "pipeline_parallel", "sharding_factor")
_OPTIONS = (*_DEGREES, "rank_order", "rank_map", "rank_devices")


def swap_limit(options: dict[str, Any]) -> int | None:
    """--swap-limit in bytes; `click.UsageError` when it is no number of bytes."""
    text = options["swap_limit"]
    try:
        found = None if text is None else parse_bytes(text)
    except ValueError as error:
        raise click.UsageError(f"--swap-limit {text}: write 1073741824, 512M or 4G") from error
    if found == 0:
        raise click.UsageError(
            "--swap-limit 0: ranks that share a device need host memory to be swapped out to"
        )
    return found


def placement_options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Adds the options about who shares a device; `option` makes one in all its spellings."""
    degree = click.IntRange(1)
    options = [
        option("--data-parallel", type=degree, help="Replicas of the model.  [default: what is left]"),
        option("--tensor-parallel", type=degree, help="Ranks that share each layer.  [default: 1]"),
        option("--pipeline-parallel", type=degree, help="Pipeline stages.  [default: 1]"),
        option("--sharding-factor", type=degree,
               help="Consecutive replicas among which ZeRO/FSDP shards.  [default: 1, no sharding]"),
        option("--rank-order",
               help="How ranks number the grid: megatron, megatron-tp-pp-dp, deepspeed, or such as tp-dp-pp "
               "(first varies fastest).  [default: megatron]"),
        option("--rank-map", metavar="FILE|TEXT",
               help="Who each rank is, instead of degrees and order: '0=DP0,TP0,PP0 1=DP1,...', or JSON."),
        option("--rank-devices", metavar="LIST",
               help="The device of each rank (0,0,1,1), or the ranks of each device (0,2/1,3)."),
        option("--swap-limit", metavar="BYTES",
               help="Host memory for what is swapped out, per device.  [default: the proxy's]"),
        option("--slice-wait", type=Seconds(0.0, 3600.0, min_open=True), metavar="SECONDS",
               help="How long a rank that waits for other devices, or computes on the host, keeps a device "
               "that others want.  Longer: fewer switches, more idle time.  [default: 0.002]"),
    ]  # fmt: skip
    return option_group(options)


@dataclass(frozen=True)
class Placement:
    """Which physical device serves which rank."""

    devices: int
    """At hand; ordinals 0 to this number, exclusively."""
    device_of_rank: tuple[int, ...]
    grid: tuple[Coordinates, ...] = ()
    """Who each rank is."""

    def describe_sharing(self) -> str:
        """One line that says who shares; empty when nobody does."""
        sharing = {
            device: [rank for rank, its in enumerate(self.device_of_rank) if its == device]
            for device in sorted(set(self.device_of_rank))
        }
        if len(sharing) == len(self.device_of_rank):
            return ""
        parts = [f"device {device}: {_ranks(ranks)}" for device, ranks in sharing.items()]
        return (
            f"{len(self.device_of_rank)} ranks share {len(sharing)} device{'s' * (len(sharing) > 1)}, "
            f"time-sliced ({'; '.join(parts)})"
        )


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"


def place_ranks(options: dict[str, Any], count: int | None, available: int) -> Placement:
    """Places `count` ranks (None: one per device) on `available` devices or on as many as --devices says.
    `click.UsageError` with the reason when that cannot work."""
    given = [name for name in (*_OPTIONS, "swap_limit", "slice_wait") if options[name] is not None]
    if options["no_proxy"] and given:
        name = given[0].replace("_", "-")
        raise click.UsageError(f"--{name}: without proxies no device is shared; leave out --no-proxy")
    wanted = options["devices"]
    ranks = count or wanted or available
    try:
        grid = _grid(options, ranks)
        if options["rank_devices"] is not None:
            device_of_rank = parse_rank_devices(options["rank_devices"], ranks)
            devices = wanted or min(available, max(device_of_rank) + 1)
            check_assignment(grid, device_of_rank, devices, most=MAX_RANKS_PER_DEVICE)
            return Placement(devices, device_of_rank, grid)
        if options["no_proxy"]:
            return Placement(wanted or min(ranks, available), assign(grid, ranks), grid)
        devices = wanted or usable_devices(grid, available)
        device_of_rank = assign(grid, devices)
        check_assignment(grid, device_of_rank, devices, most=MAX_RANKS_PER_DEVICE)
        return Placement(devices, device_of_rank, grid)
    except PlacementError as error:
        raise click.UsageError(f"{error.cause}  {error.remedy}".rstrip()) from error


def place_again(settings: JobSettings, devices: int) -> JobSettings:
    """The same job on another number of devices: neighbours stay together, as at its start without a map.
    `LaunchError` with the reason when that cannot work."""
    seen = len(settings.device_of_ordinal)
    most = min(settings.available, seen)
    if not 1 <= devices <= most:
        raise LaunchError(
            f"{devices} devices: this job can have 1 to {most}; its ranks see {seen}, and backend "
            f"{settings.backend!r} has {settings.available} here."
        )
    try:
        device_of_rank = assign(settings.grid, devices)
        check_assignment(settings.grid, device_of_rank, devices, most=MAX_RANKS_PER_DEVICE)
    except PlacementError as error:
        raise LaunchError(error.cause, remedy=error.remedy) from error
    idle = [device for device in range(devices) if device not in device_of_rank] or list(range(devices))
    rest = [idle[i % len(idle)] for i in range(seen - len(device_of_rank))]
    return replace(settings, devices=devices, device_of_rank=device_of_rank, behind=(*device_of_rank, *rest))


def _grid(options: dict[str, Any], ranks: int) -> tuple[Coordinates, ...]:
    if options["rank_map"] is not None:
        clash = [name for name in (*_DEGREES, "rank_order") if options[name] is not None]
        if clash:
            raise click.UsageError(
                f"--rank-map says who each rank is; leave out --{clash[0].replace('_', '-')}"
            )
        return parse_rank_map(_text_or_file(options["rank_map"]), ranks)
    degrees = Degrees(
        tensor=options["tensor_parallel"] or 1,
        pipeline=options["pipeline_parallel"] or 1,
        data=options["data_parallel"],
        shards=options["sharding_factor"] or 1,
    )
    return rank_grid(ranks, degrees, options["rank_order"] or "megatron")


def _text_or_file(value: str) -> str:
    if "=" in value or value.lstrip().startswith("{"):
        return value
    try:
        with Path(value).open(encoding="utf-8") as file:
            return file.read(_LONGEST_MAP)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.UsageError(f"--rank-map {value}: {why}") from error
