"""A rank's proxy is exchanged under it, again and again; under sanitizers, too (run_sanitized.sh)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from singularity_core.barrier.coordinator import BoardCut, carry_communicators
from singularity_core.barrier.interface import CutState
from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import PREFIX, SANITIZER, SLOW, compile_c, sanitizer_options
from .conftest import PROGRAMS, Stack

THREADS = 3
ARENA = 64 << 20


def wait_for(what: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + 60 * SLOW
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.005)


class Proxy:
    """One that serves `door`, alone on `exchange`."""

    def __init__(self, stack: Stack, door: Path, exchange: Path, *, resumes: bool) -> None:
        exchange.mkdir(mode=0o700)
        self.exchange = exchange
        self.cut: BoardCut | None = None
        if resumes:
            self.cut = BoardCut(exchange, 1)
            self.cut.freeze_ahead()
        of_device = sanitizer_options(
            asan="detect_leaks=0:use_sigaltstack=0:allow_user_segv_handler=1:handle_sigbus=0"
        )
        stub = {"STUB_EXCHANGE": str(exchange)} | ({"STUB_RESUMES": "1"} if resumes else {})
        compiler = {"SINGULARITY_FAKE_PTX_COMPILE": f"{sys.executable} -P -m singularity_backend_fake.ptx"}
        self.said = (exchange / "said").open("w+")
        self.process = subprocess.Popen(
            self._command(stack, door, resumes),
            env=os.environ | {"SINGULARITY_FAKE_MEMORY": str(2 * ARENA)} | compiler | of_device | stub,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )
        assert self.process.stdout is not None
        wanted = "prepared\n" if resumes else "ready\n"
        assert self.process.stdout.readline() == wanted, self.heard()
        self.cut = self.cut or BoardCut(exchange, 1)

    def _command(self, stack: Stack, door: Path, resumes: bool) -> list[str]:
        if SANITIZER:
            return [*stack.proxy, str(door), str(stack.device)]
        command = [sys.executable, "-P", "-m", "singularity_core.proxy", "--backend=fake", "--device=0"]
        command += ["--ready-fd=1", f"--directory={door}", f"--exchange={self.exchange}", f"--arena={ARENA}"]
        return command + ["--resume-fd=0"] * resumes

    def stop_ranks(self) -> None:
        """Returns when all stand at a cut, and their sessions are written down."""
        assert self.cut is not None
        self.cut.begin(60.0)
        wait_for(lambda: self.cut.poll().state is CutState.ACQUIRED, "the cut")
        self.cut.hand_over()
        wait_for(self.cut.handed_over, "the sessions")

    def take_over(self, before: Proxy) -> None:
        """Makes the sessions of `before` again."""
        carry_communicators(before.exchange, self.exchange, [0])
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("resume\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n", self.heard()

    def go_on(self) -> None:
        """Lets ranks go on here."""
        assert self.cut is not None
        self.cut.release()
        wait_for(lambda: self.cut.poll().state is CutState.OPEN, "the release")

    def heard(self) -> str:
        """What it has said so far."""
        self.said.seek(0)
        return self.said.read()

    def end(self, number: int = signal.SIGTERM) -> None:
        """Ends it; nothing that a sanitizer found may be in what it said."""
        self.process.send_signal(number)
        self.process.communicate(timeout=60 * SLOW)
        said = self.heard()
        self.said.close()
        assert not [found for found in ("Sanitizer", "runtime error") if found in said], said
        assert self.process.returncode == (0 if number == signal.SIGTERM else -number), said
        if self.cut is not None:
            self.cut.close()


@pytest.fixture(scope="module")
def program(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank, linked with the client."""
    out = tmp_path_factory.mktemp("carried") / "carried"
    options = ["-isystem", str(header_directory()), f"-L{stack.client}", "-l:libcuda.so.1"]
    compile_c(out, [PROGRAMS / "carried.c"], *options)
    return out


@pytest.fixture
def place() -> Iterator[Path]:
    """A private directory on memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def rounds(folder: Path) -> list[int]:
    """How many each thread of the rank has made."""
    files = [folder / f"rounds.{number}" for number in range(THREADS)]
    return [int.from_bytes(file.read_bytes(), "little") if file.exists() else 0 for file in files]


def stands(folder: Path, seen: list[int]) -> bool:
    """Whether no thread got on since `seen`; each may still count a round that it had made."""
    return all(before <= now <= before + 1 for before, now in zip(seen, rounds(folder), strict=True))


def test_a_rank_notices_nothing_when_its_proxy_is_exchanged(
    stack: Stack, program: Path, place: Path, tmp_path: Path
) -> None:
    """The threads of a C program go on with streams, graphs, events, device and page-locked memory, and find
    the numbers that they must, whether another proxy takes over or the old one goes on after all."""
    door = place / "door"
    door.mkdir(mode=0o700)
    proxies = [Proxy(stack, door, place / "exchange-0", resumes=False)]
    environment = {
        "SINGULARITY_DEVICES": str(door),
        "SINGULARITY_RANK": "0",
        "LD_LIBRARY_PATH": str(stack.client),
    }
    rank = subprocess.Popen(
        [*PREFIX, str(program), str(tmp_path)],
        env=os.environ | environment | sanitizer_options(asan="use_sigaltstack=0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def goes_on() -> None:
        before = max(rounds(tmp_path))

        def later() -> bool:
            assert rank.poll() is None, rank.communicate()
            return min(rounds(tmp_path)) > before + 2

        wait_for(later, "all threads of the rank to go on")

    try:
        goes_on()
        for number in range(1, 7):
            old = proxies[-1]
            new = Proxy(stack, door, place / f"exchange-{number}", resumes=True)
            proxies.append(new)
            old.stop_ranks()
            seen = rounds(tmp_path)
            new.take_over(old)
            if number % 3 == 0:  # nobody lets the new one go
                new.end(signal.SIGKILL)
                proxies.pop()
                assert stands(tmp_path, seen)
                old.go_on()
            else:
                assert stands(tmp_path, seen)
                new.go_on()
                old.end(signal.SIGKILL)
                proxies.remove(old)
            goes_on()
        (tmp_path / "stop").touch()
        said, complaint = rank.communicate(timeout=60 * SLOW)
        assert (rank.returncode, said) == (0, "passed\n"), complaint
        proxies.pop().end()
        assert list(door.iterdir()) == []
    finally:
        rank.kill()
        rank.communicate()
        for proxy in proxies:
            proxy.process.kill()
            proxy.process.communicate()
            print(proxy.heard()[-8000:])
