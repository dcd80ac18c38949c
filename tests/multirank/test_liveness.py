"""Sharing a device makes no deadlock that devices of their own would not have: ranks that meet awkwardly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .jobs import run_job

PROGRAM = Path(__file__).parent / "programs" / "interpreter.py"
Steps = list[list[Any]]
# The wait: a copy from pageable memory may return before it has arrived, and stream 2 does not wait for it.
START: Steps = [
    *(["alloc", "p", 1000], ["fill", "p", 1, True], ["alloc", "q", 1000], ["fill", "q", 2, True]),
    ["synchronize", None],
]


def reduce(communicator: str = "world", stream: int = 1, buffer: str = "p") -> list[Any]:
    more = {"send": buffer, "receive": buffer, "count": 1000}
    return ["collective", communicator, "AllReduce", "int32", more, stream]


def send(to: int, stream: int = 1) -> list[Any]:
    return ["collective", "world", "Send", "int32", {"send": "p", "count": 1000, "root": to}, stream]


def receive(source: int, stream: int = 1) -> list[Any]:
    return ["collective", "world", "Recv", "int32", {"receive": "q", "count": 1000, "root": source}, stream]


def kernel(stream: int, buffer: str = "p") -> list[Any]:
    return ["kernel", buffer, buffer, stream, 3]


WAIT: list[Any] = ["synchronize", None]


def tcp(name: str) -> list[Any]:
    return ["tcp_reduce", name, 5000]


def beside(number: int) -> Steps:
    """A gloo-like all-reduce in a background thread while the rank trains, and joined only afterwards."""
    return [["thread", [tcp(f"gloo{number}")]], kernel(1), reduce(), WAIT, ["join"]]


PROGRAMS: dict[str, list[Steps]] = {
    "meet in the file system between device calls": [
        [kernel(1), ["meet", "a"], kernel(1), reduce(), ["meet", "b"], WAIT, ["meet", "c"], kernel(1)],
        [["meet", "a"], kernel(1), WAIT, reduce(), WAIT, ["meet", "b"], kernel(1), ["meet", "c"]],
    ],
    "meet over TCP between device calls": [
        [kernel(1), tcp("a"), kernel(1), reduce(), tcp("b"), WAIT, tcp("c"), kernel(1)],
        [tcp("a"), kernel(1), WAIT, reduce(), WAIT, tcp("b"), kernel(1), tcp("c")],
    ],
    "meet after only one has used the device": [
        [kernel(1), WAIT, ["meet", "a"], kernel(1)],
        [["meet", "a"], kernel(1)],
    ],
    "wait for a collective that others reach after a long sleep": [
        [reduce(), WAIT],
        [["sleep", 0.5], reduce(), WAIT],
    ],
    "poll instead of waiting": [
        [reduce(), ["poll", 1], kernel(1)],
        [["sleep", 0.1], reduce(), ["poll", 1], kernel(1)],
    ],
    "both send first, in a group": [
        [["group", [send(1), receive(1)]], WAIT],
        [["group", [send(0), receive(0)]], WAIT],
    ],
    "send and receive in opposite orders in the groups": [
        [["group", [send(1), receive(1)]], WAIT],
        [["group", [receive(0), send(0)]], WAIT],
    ],
    "two communicators in opposite orders on two streams": [
        [reduce("world", 1, "p"), reduce("other", 2, "q"), WAIT],
        [reduce("other", 2, "q"), reduce("world", 1, "p"), WAIT],
    ],
    "the second of two collectives is needed before the first": [
        [reduce("world", 1, "p"), kernel(2, "q"), reduce("other", 2, "q"), WAIT],
        [
            kernel(2, "q"),
            reduce("other", 2, "q"),
            ["synchronize", 2],
            kernel(2, "q"),
            reduce("world", 1, "p"),
            WAIT,
        ],
    ],
    "two communicators from two threads": [
        [
            ["thread", [reduce("world", 1, "p"), ["synchronize", 1]]],
            ["thread", [reduce("other", 2, "q"), ["synchronize", 2]]],
            ["join"],
        ],
        [
            ["thread", [["sleep", 0.05], reduce("world", 1, "p"), ["synchronize", 1]]],
            ["thread", [reduce("other", 2, "q"), ["synchronize", 2]]],
            ["join"],
        ],
    ],
    "a thread blocks in a wait while another goes on": [
        [
            ["thread", [reduce(), ["synchronize", 1]]],
            kernel(2, "q"),
            ["synchronize", 2],
            ["meet", "a"],
            ["join"],
        ],
        [["meet", "a"], reduce(), WAIT],
    ],
    "run ahead by many collectives": [
        [*[reduce()] * 40, WAIT],
        [*[kernel(1), reduce(), ["synchronize", 1]] * 40],
    ],
    "a host function in front of a collective": [
        [["call_host", 1], reduce(), WAIT],
        [reduce(), ["call_host", 1], WAIT],
    ],
}
FOUR: dict[str, list[Steps]] = {
    "a gloo job beside NCCL": [[step for number in range(6) for step in beside(number)] for _ in range(4)],
    "groups that cross": [
        [reduce("a", 1, "p"), reduce("c", 2, "q"), WAIT] * 3,
        [reduce("b", 2, "q"), reduce("a", 1, "p"), WAIT] * 3,
        [reduce("c", 1, "q"), reduce("d", 2, "p"), WAIT] * 3,
        [reduce("d", 1, "p"), reduce("b", 2, "q"), WAIT] * 3,
    ],
    "unequal numbers of synchronisations on two devices": [
        [reduce("a"), WAIT] * 5 + [reduce(), WAIT],
        [reduce("a"), WAIT] * 5 + [reduce(), WAIT],
        [reduce("d"), WAIT, reduce(), WAIT],
        [reduce("d"), WAIT, reduce(), WAIT],
    ],
    "a rank that needs the others over TCP before it uses the device": [
        [kernel(1), tcp("x"), WAIT, reduce(), WAIT],
        [reduce("b", 2, "q"), ["synchronize", 2], tcp("x"), reduce(), WAIT],
        [["thread", [tcp("x")]], kernel(1), WAIT, ["join"], reduce(), WAIT],
        [reduce("b", 2, "q"), tcp("x"), reduce(), WAIT],
    ],
    "a ring of sends without groups, one starts": [
        [send(1), receive(3), WAIT],
        [receive(0), send(2), WAIT],
        [receive(1), send(3), WAIT],
        [receive(2), send(0), WAIT],
    ],
    "the last rank sleeps while the others meet": [
        [["meet", "x"], reduce(), WAIT],
        [["meet", "x"], reduce(), WAIT],
        [["meet", "x"], reduce(), WAIT],
        [kernel(1), ["sleep", 0.3], ["meet", "x"], kernel(1), reduce(), WAIT],
    ],
}


def outcome(
    folder: Path, ranks: int, devices: int, options: list[str], programs: list[dict[str, Any]]
) -> list[Any]:
    folder.mkdir()
    (folder / "programs.json").write_text(json.dumps(programs))
    arguments = str(folder / "programs.json"), str(folder)
    run_job(PROGRAM, *arguments, ranks=ranks, devices=devices, options=options, timeout=60.0)
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(ranks)]


def test_two_ranks_on_one_device_end_as_on_two(tmp_path: Path) -> None:
    """Each awkward meeting of two ranks ends, and leaves the same bytes, on one device as on two."""
    both = {"world": [0, 1], "other": [1, 0]}
    programs = [
        {"communicators": both, "ranks": [[*START, *steps] for steps in ranks]} for ranks in PROGRAMS.values()
    ]
    wanted = outcome(tmp_path / "dedicated", 2, 2, [], programs)
    found = outcome(tmp_path / "shared", 2, 1, [], programs)
    for at, name in enumerate(PROGRAMS):
        assert [r[at] for r in found] == [r[at] for r in wanted], name


@pytest.mark.parametrize("where", ["0,0,1,1", "0,1,0,1", "0,0,0,0"])
def test_four_ranks_end_however_they_are_dealt(where: str, tmp_path: Path) -> None:
    """Crossing groups, unequal synchronisations, rings, sleepers, and all-reduces over TCP beside NCCL end on
    every deal of four ranks."""
    groups = {"world": [0, 1, 2, 3], "a": [0, 1], "b": [1, 3], "c": [0, 2], "d": [2, 3]}
    programs = [
        {"communicators": groups, "ranks": [[*START, *steps] for steps in ranks]} for ranks in FOUR.values()
    ]
    devices = len(set(where.split(",")))
    wanted = outcome(tmp_path / "dedicated", 4, 4, [], programs)
    found = outcome(tmp_path / "shared", 4, devices, [f"--rank-devices={where}"], programs)
    for at, name in enumerate(FOUR):
        assert [r[at] for r in found] == [r[at] for r in wanted], name
