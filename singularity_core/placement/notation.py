"""What users write: who each rank is, and which device it goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from .errors import PlacementError
from .grid import Coordinates

_FIELDS = {"DP": "dp", "TP": "tp", "MP": "tp", "PP": "pp", "SHARD": "shard"}
_TERM = re.compile(r"(DP|TP|MP|PP|SHARD)\s*(\d{1,6})", re.IGNORECASE)
_REMEDY = 'State each rank once, as in `4=DP0,MP0,PP1`, or as JSON: {"4": {"dp": 0, "tp": 0, "pp": 1}}.'

_DEVICES_REMEDY = "Write one device per rank, as in 0,0,1,1, or the ranks of each device, as in 0,2/1,3."


class _JsonCoordinates(msgspec.Struct, forbid_unknown_fields=True):
    dp: int = 0
    tp: int = 0
    pp: int = 0
    shard: int = 0


def parse_rank_map(text: str, world: int) -> tuple[Coordinates, ...]:
    """The coordinates of ranks 0 to `world`, from a custom map.

    Either JSON, an object from rank to coordinates, or entries ``RANK=DP0,TP1,PP2`` (MP means TP; SHARD
    names a ZeRO shard; what is not named is 0), separated by line ends, semicolons or blanks; ``#`` starts
    a comment. `PlacementError` names the entry that is wrong, missing, or there twice."""
    stated = _from_json(text) if text.lstrip().startswith("{") else _from_entries(text)
    for rank in stated:
        if rank >= world:
            raise PlacementError(f"The map names rank {rank}, but there are {world} ranks.", remedy=_REMEDY)
    missing = [rank for rank in range(world) if rank not in stated]
    if missing:
        raise PlacementError(f"The map does not say who rank {missing[0]} is.", remedy=_REMEDY)
    holders: dict[Coordinates, int] = {}
    for rank in range(world):
        if stated[rank] in holders:
            raise PlacementError(
                f"The map makes ranks {holders[stated[rank]]} and {rank} both {stated[rank]}.", remedy=_REMEDY
            )
        holders[stated[rank]] = rank
    return tuple(stated[rank] for rank in range(world))


def _from_json(text: str) -> Mapping[int, Coordinates]:
    try:
        found = msgspec.json.decode(text, type=dict[str, _JsonCoordinates])
    except msgspec.DecodeError as error:  # of which ValidationError is one
        raise PlacementError(f"The map is not what it should be: {error}.", remedy=_REMEDY) from error
    stated = {}
    for rank, at in found.items():
        if not re.fullmatch(r"0|[1-9]\d{0,6}", rank) or min(at.dp, at.tp, at.pp, at.shard) < 0:
            raise PlacementError(
                f"The map has {rank!r}: {msgspec.to_builtins(at)}, which is no rank's place.", remedy=_REMEDY
            )
        stated[int(rank)] = Coordinates(at.dp, at.tp, at.pp, at.shard)
    return stated


def _from_entries(text: str) -> Mapping[int, Coordinates]:
    stated: dict[int, Coordinates] = {}
    bare = re.sub(r"#[^\n]*", "", text)
    bare = re.sub(r"[ \t]*([=,])[ \t]*", r"\1", bare)
    for entry in re.split(r"[\s;]+", bare.strip()):
        rank, equals, terms = entry.partition("=")
        if not equals or not re.fullmatch(r"\d{1,6}", rank):
            raise PlacementError(f"The map has {entry!r}, which states no rank.", remedy=_REMEDY)
        at: dict[str, int] = {}
        for term in terms.split(","):
            matched = _TERM.fullmatch(term)
            if matched is None or _FIELDS[matched[1].upper()] in at:
                raise PlacementError(
                    f"The map has {entry!r}: {term!r} is not understood, or there twice.", remedy=_REMEDY
                )
            at[_FIELDS[matched[1].upper()]] = int(matched[2])
        if int(rank) in stated:
            raise PlacementError(f"The map states rank {int(rank)} twice.", remedy=_REMEDY)
        stated[int(rank)] = Coordinates(**at)
    return stated


def parse_rank_devices(text: str, world: int) -> tuple[int, ...]:
    """The device of each rank from ``0,0,1,1`` (the device of ranks 0, 1, ...) or ``0,2/1,3`` (the ranks of
    devices 0, 1, ...; a device may have none).  `PlacementError` for an unknown rank, or one that is
    missing or there twice."""
    groups = [[_number(word, text) for word in part.split(",") if word.strip()] for part in text.split("/")]
    if len(groups) == 1:
        if len(groups[0]) != world:
            raise PlacementError(
                f"{text!r} gives devices to {len(groups[0])} ranks, but there are {world}.",
                remedy=_DEVICES_REMEDY,
            )
        return tuple(groups[0])
    device_of: dict[int, int] = {}
    for device, ranks in enumerate(groups):
        for rank in ranks:
            if rank >= world:
                raise PlacementError(f"{text!r} names rank {rank}, but there are {world} ranks.")
            if rank in device_of:
                raise PlacementError(f"{text!r} puts rank {rank} on devices {device_of[rank]} and {device}.")
            device_of[rank] = device
    missing = [rank for rank in range(world) if rank not in device_of]
    if missing:
        raise PlacementError(f"{text!r} puts rank {missing[0]} on no device.", remedy="Name every rank once.")
    return tuple(device_of[rank] for rank in range(world))


def _number(word: str, text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,6}\s*", word):
        raise PlacementError(
            f"{text!r}: {word.strip()!r} is not a number.",
            remedy=_DEVICES_REMEDY,
        )
    return int(word)
