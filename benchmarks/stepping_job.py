"""A job whose steps are counted while it is stopped, resized or looked at."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ranks import launcher

from singularity_core.launcher.agent_client import ask, find_job
from singularity_core.launcher.agent_messages import ContinueRequest, Done, PauseRequest, ResizeRequest

FOR_EVER = 100_000
WINDOW = 0.5
LOOK_SECONDS = 0.005


class Job:
    """Ranks that take steps until they are told to stop."""

    def __init__(
        self, program: Path, directory: Path, ranks: int, devices: int, step_ms: int, live_mib: int = 1
    ) -> None:
        """`program`: sliced_step; each rank has `live_mib` MiB on its device, of which it reduces one."""
        arguments = [str(directory), str(FOR_EVER), str(step_ms), str(live_mib), "1"]
        self._begin(["--no-python", str(program), *arguments], directory, ranks, devices, live_mib)

    def _begin(
        self, command: Sequence[str], directory: Path, ranks: int, devices: int, live_mib: int
    ) -> None:
        """`command`: options for the launcher, and what it runs."""
        directory.mkdir()
        self.directory, self.ranks, self.devices = directory, ranks, devices
        options = [f"--nproc-per-node={ranks}", f"--devices={devices}", f"--rdzv-id={directory.name}"]
        self.environment = {
            **os.environ,
            "SINGULARITY_FAKE_DEVICES": str(devices),
            "SINGULARITY_FAKE_MEMORY": f"{live_mib + 256}M",
        }
        self._follow([launcher(), "--backend", "fake", *options, *command])

    def _follow(self, command: Sequence[str]) -> None:
        """Starts the launcher, and waits for the first steps."""
        before = min(self.steps())
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while min(self.steps()) < before + 5:
            if self.process.poll() is not None:
                raise SystemExit(f"the job ended early: {self.process.communicate()[1].decode()[-2000:]}")
            time.sleep(0.02)
        self.path = find_job(self.directory.name).path

    def steps(self) -> list[int]:
        """How many each rank has begun."""
        found = []
        for rank in range(self.ranks):
            path = self.directory / f"steps.{rank}"
            data = path.read_bytes() if path.exists() else b""
            found.append(struct.unpack("Q", data)[0] if len(data) == 8 else 0)
        return found

    def rate(self, during: Callable[[], object]) -> float:
        """Steps per second of all ranks, while `during` is called again and again."""
        before, start = sum(self.steps()), time.monotonic()
        while time.monotonic() - start < WINDOW:
            during()
            time.sleep(LOOK_SECONDS)
        return (sum(self.steps()) - before) / (time.monotonic() - start)

    def pause(self) -> tuple[int, float]:
        """(steps that a rank still began, milliseconds); lets the job go on."""
        before, start = self.steps(), time.monotonic()
        done = ask(self.path, PauseRequest(timeout=60), Done, seconds=90)
        took, after = time.monotonic() - start, self.steps()
        if not done.ok:
            raise SystemExit(f"the job could not be paused: {done.message} {done.waiting}")
        ask(self.path, ContinueRequest(), Done, seconds=60)
        return max(b - a for a, b in zip(before, after, strict=True)), took * 1e3

    def resize(self, devices: int) -> None:
        """Returns when the job goes on."""
        done = ask(self.path, ResizeRequest(devices=devices, timeout=60), Done, seconds=300)
        if not done.ok:
            raise SystemExit(f"the job could not be resized: {done.message} {done.waiting}")

    def longest_stop(self, during: Callable[[], object]) -> float:
        """Seconds of the longest time in which no rank began a step, from `during` on until some more."""
        longest, over = 0.0, threading.Event()

        def look() -> None:
            nonlocal longest
            seen, since, more = sum(self.steps()), time.monotonic(), 0
            while more < 4 * self.ranks:
                now = sum(self.steps())
                if now != seen:
                    longest, since = max(longest, time.monotonic() - since), time.monotonic()
                    more, seen = more + over.is_set(), now
                time.sleep(0.0005)

        watcher = threading.Thread(target=look)
        watcher.start()
        during()
        over.set()
        watcher.join()
        return longest

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)
