"""The cut at scale: simulated ranks, the real decision code (singularity_core/barrier/cut.c).

A job of `ranks` = data x pipeline x tensor parallel ranks trains mini-batches: per micro-batch a stage
receives, all-reduces in its tensor group, and sends; forward, then backward; at the end all replicas of a
stage all-reduce, and wait.  Compute times are random, and one rank in a hundred is slow.  At a random moment
the cut is asked for; every `POLL` seconds the coordinator looks at all clocks.  What counts: how many
mini-batches the ranks go on for, and what a look costs.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from singularity_core._native import ffi, lib

STAGES, TENSOR, MICRO = 4, 2, 4
POLL = 0.005
COMPUTE = 0.004
NO_TARGET = 2**64 - 1
MEMBER = np.dtype([("channel", "u4"), ("rank", "u4"), ("clock", "u8"), ("wants", "u4"), ("reserved", "u4")])
CHANNEL = np.dtype([("target", "u8"), ("aligned", "u8")])
RANK = np.dtype([("flags", "u4"), ("behind", "u4")])


@dataclass(frozen=True)
class Outcome:
    """Of one request."""

    minibatches: float
    """Between the request and the cut, by the rank that went on for longest."""
    look_ms: float
    """Wall time of one look of the coordinator, median."""
    raises: int


class Job:
    """Ranks, their channels and programs."""

    def __init__(self, ranks: int) -> None:
        if ranks % (STAGES * TENSOR):
            raise ValueError(f"a multiple of {STAGES * TENSOR} ranks, not {ranks}")
        self.ranks, self.replicas = ranks, ranks // (STAGES * TENSOR)
        self.names: dict[tuple[object, ...], int] = {}
        self.size: list[int] = []
        self.members: list[tuple[int, int]] = []
        self.own: list[dict[int, int]] = []
        """Per rank: the index of its member on each of its channels."""
        self.programs = [self._program(rank) for rank in range(ranks)]

    def _program(self, rank: int) -> list[tuple[str, int]]:
        """Megatron's order: tensor fastest, then data, then pipeline."""
        tensor, data, stage = rank % TENSOR, rank // TENSOR % self.replicas, rank // (TENSOR * self.replicas)
        own: dict[int, int] = {}
        self.own.append(own)

        def channel(*name: object, size: int) -> int:
            number = self.names.setdefault(name, len(self.names))
            if number == len(self.size):
                self.size.append(size)
            if number not in own:
                own[number] = len(self.members)
                self.members.append((number, rank))
            return number

        def pipe(source: int) -> int:
            return channel("p", data, tensor, source, source + 1, size=2)

        def back(source: int) -> int:
            return channel("p", data, tensor, source, source - 1, size=2)

        steps: list[tuple[str, int]] = []
        group = channel("t", data, stage, size=TENSOR)
        for _ in range(MICRO):
            if stage > 0:
                steps += [("issue", pipe(stage - 1)), ("wait", pipe(stage - 1))]
            steps += [("compute", 0), ("issue", group), ("wait", group)]
            if stage < STAGES - 1:
                steps.append(("issue", pipe(stage)))
        for _ in range(MICRO):
            if stage < STAGES - 1:
                steps += [("issue", back(stage + 1)), ("wait", back(stage + 1))]
            steps += [("compute", 0), ("issue", group), ("wait", group)]
            if stage > 0:
                steps.append(("issue", back(stage)))
        replicas = channel("d", stage, tensor, size=self.replicas)
        return [*steps, ("issue", replicas), ("wait", replicas)]


class Simulation:
    """One run of a job up to the cut."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job, self.random = job, random.Random(seed)
        self.members = np.zeros(len(job.members), MEMBER)
        self.members["channel"], self.members["rank"] = np.array(job.members).T
        self.channels = np.zeros(len(job.size), CHANNEL)
        self.states = np.zeros(job.ranks, RANK)
        self.cut: Any = ffi.new("struct sg_cut *")
        self.kept = [ffi.from_buffer(a) for a in (self.members, self.channels, self.states)]
        for name, array in zip(("members", "channels", "ranks"), self.kept, strict=True):
            setattr(self.cut, name, ffi.cast(f"struct sg_cut_{name[:-1]} *", array))
        self.cut.member_count, self.cut.channel_count = len(self.members), len(self.channels)
        self.cut.rank_count = job.ranks
        self.clock = [0] * len(job.members)
        self.done = [0] * job.ranks  # steps, also of earlier mini-batches
        self.arrived: dict[tuple[int, int], int] = {}
        self.completed = [0] * len(job.size)
        self.waiting: dict[int, list[tuple[int, int]]] = {}
        self.speed = [
            self.random.uniform(0.8, 1.2) * (3 if rank % 97 == 13 else 1) for rank in range(job.ranks)
        ]
        self.events: list[tuple[float, int]] = [(self.random.uniform(0, 0.02), r) for r in range(job.ranks)]
        heapq.heapify(self.events)
        self.active = False
        self.held: set[int] = set()

    def may_issue(self, rank: int, channel: int) -> bool:
        if not self.active:
            return True
        own = self.job.own[rank]
        standings = ffi.new("struct sg_cut_standing[]", len(own))
        for i, (number, member) in enumerate(own.items()):
            standings[i].clock = self.clock[member]
            standings[i].target = int(self.channels["target"][number])
            standings[i].wants = number == channel
        return bool(lib.sg_cut_may_issue(standings, len(own)))

    def go_on(self, now: float, rank: int) -> None:
        """Lets a rank take steps until it waits, computes or is held."""
        program, own = self.job.programs[rank], self.job.own[rank]
        while True:
            kind, channel = program[self.done[rank] % len(program)]
            if kind == "issue":
                if not self.may_issue(rank, channel):
                    self.held.add(rank)
                    return
                self.clock[own[channel]] += 1
                self.arrive(now, channel, self.clock[own[channel]])
            elif kind == "wait":
                number = self.clock[own[channel]]
                if self.completed[channel] < number:
                    self.waiting.setdefault(channel, []).append((number, rank))
                    return
            self.done[rank] += 1
            if kind == "compute":
                heapq.heappush(
                    self.events, (now + COMPUTE * self.speed[rank] * self.random.uniform(0.9, 1.1), rank)
                )
                return

    def arrive(self, now: float, channel: int, number: int) -> None:
        count = self.arrived.get((channel, number), 0) + 1
        if count < self.job.size[channel]:
            self.arrived[channel, number] = count
            return
        self.arrived.pop((channel, number), None)
        self.completed[channel] = number
        ready = [r for n, r in self.waiting.get(channel, ()) if n <= number]
        self.waiting[channel] = [w for w in self.waiting.get(channel, ()) if w[0] > number]
        for rank in ready:
            heapq.heappush(self.events, (now + 0.0001, rank))

    def look(self, now: float, *, begin: bool) -> bool:
        """The coordinator's.  True: the cut is reached."""
        self.members["clock"] = self.clock
        self.members["wants"] = 0
        self.states["flags"] = 0
        for rank in self.held:
            program = self.job.programs[rank]
            channel = program[self.done[rank] % len(program)][1]
            self.members["wants"][self.job.own[rank][channel]] = 1
            self.states["flags"][rank] = lib.SG_CUT_HELD
        if begin:
            lib.sg_cut_begin(self.cut, int(0.1e9), int(now * 1e9))
            self.active = True
            return False
        before = self.channels["target"].copy()
        reached = lib.sg_cut_update(self.cut, int(now * 1e9)) == lib.SG_CUT_REACHED
        if (before != self.channels["target"]).any():
            released, self.held = self.held, set()
            for rank in released:
                heapq.heappush(self.events, (now, rank))
        return reached

    def run(self) -> Outcome:
        request = COMPUTE * MICRO * 2 * self.random.uniform(3, 5)
        at_request: list[int] = []
        looks: list[float] = []
        tick = request
        while True:
            if self.events and self.events[0][0] < tick:
                now, rank = heapq.heappop(self.events)
                self.go_on(now, rank)
                continue
            start = time.perf_counter()
            reached = self.look(tick, begin=not at_request)
            looks.append((time.perf_counter() - start) * 1e3)
            at_request = at_request or list(self.done)
            if reached:
                break
            tick += POLL
        went_on = max(
            (after - before) / len(program)
            for before, after, program in zip(at_request, self.done, self.job.programs, strict=True)
        )
        return Outcome(went_on, statistics.median(looks), int(self.cut.raises))


def simulate(ranks: int, requests: int) -> dict[str, float]:
    """`requests` cuts of a job of `ranks` ranks, each at another moment."""
    job = Job(ranks)
    outcomes = [Simulation(job, seed).run() for seed in range(requests)]
    return {
        "ranks": ranks,
        "minibatches_max": round(max(o.minibatches for o in outcomes), 2),
        "look_ms": round(statistics.median(o.look_ms for o in outcomes), 3),
        "raises_max": max(o.raises for o in outcomes),
    }
