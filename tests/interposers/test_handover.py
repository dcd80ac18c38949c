"""A rank's proxy is exchanged under it, again and again, and its device comes back from checkpoints; under
sanitizers, too (run_sanitized.sh)."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from singularity_core._native import lib

from singularity_core.barrier.coordinator import BoardCut, carry_communicators
from singularity_core.barrier.interface import CutState
from singularity_core.checkpoint import Store
from singularity_core.checkpoint.job import (
    StagedMemory,
    put_memory,
    put_tree,
    read_sessions,
    stage_tree,
    take_memory,
    take_tree,
)
from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import PREFIX, SANITIZER, SLOW, compile_c, sanitizer_options
from .conftest import PROGRAMS, Stack

THREADS = 3
ARENA = 64 << 20
TSAN_DEVICE_BASE = 0x1000000000
"""See tests/sanitizers.py."""


def wait_for(what: Callable[[], object], why: str) -> None:
    deadline = time.monotonic() + 60 * SLOW
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.005)


class Proxy:
    """One that serves `door`, alone on `exchange`."""

    def __init__(
        self,
        stack: Stack,
        door: Path,
        exchange: Path,
        *,
        resumes: bool,
        boxed: bool = False,
        memory: int = 2 * ARENA,
    ) -> None:
        """`boxed`: as for ranks in a pid namespace; with `resumes`, these come from a checkpoint."""
        exchange.mkdir(mode=0o700)
        self.exchange = exchange
        self.cut: BoardCut | None = None
        if resumes:
            self.cut = BoardCut(exchange, 1)
            self.cut.freeze_ahead()
        of_device = sanitizer_options(
            asan="detect_leaks=0:use_sigaltstack=0:allow_user_segv_handler=1:handle_sigbus=0"
        )
        stub = {"STUB_EXCHANGE": str(exchange)} | ({"STUB_BOXED": "1"} if boxed else {})
        stub |= {"STUB_RESUMES": "2" if boxed else "1"} if resumes else {}
        compiler = {"SINGULARITY_FAKE_PTX_COMPILE": f"{sys.executable} -P -m singularity_backend_fake.ptx"}
        self.said = (exchange / "said").open("w+")
        with open("/proc/self/ns/pid") as namespace:
            self.process = subprocess.Popen(
                self._command(stack, door, resumes, memory // 2, namespace.fileno() if boxed else 0),
                env=os.environ | {"SINGULARITY_FAKE_MEMORY": str(memory)} | compiler | of_device | stub,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                text=True,
                pass_fds=[namespace.fileno()],
            )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != ("prepared\n" if resumes else "ready\n"):
            self.process.kill()
            self.process.communicate()
            raise AssertionError(self.heard())
        self.cut = self.cut or BoardCut(exchange, 1)

    def _command(self, stack: Stack, door: Path, resumes: bool, arena: int, namespace: int) -> list[str]:
        if SANITIZER:
            return [*stack.proxy, str(door), str(stack.device)]
        command = [sys.executable, "-P", "-m", "singularity_core.proxy", "--backend=fake", "--device=0"]
        command += ["--ready-fd=1", f"--directory={door}", f"--exchange={self.exchange}", f"--arena={arena}"]
        command += [f"--pid-namespace-fd={namespace}"] if namespace else []
        return command + ["--resume-fd=0"] * resumes + ["--restored"] * (resumes and namespace != 0)

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


class Rank:
    """The program, with its threads."""

    def __init__(self, stack: Stack, program: Path, door: Path, folder: Path) -> None:
        self.folder = folder
        environment = {
            "SINGULARITY_DEVICES": str(door),
            "SINGULARITY_RANK": "0",
            "LD_LIBRARY_PATH": str(stack.client),
        }
        self.process = subprocess.Popen(
            [*PREFIX, str(program), str(folder)],
            env=os.environ | environment | sanitizer_options(asan="use_sigaltstack=0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def goes_on(self) -> None:
        """All its threads do, from here."""
        before = max(rounds(self.folder))

        def later() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return min(rounds(self.folder)) > before + 2

        wait_for(later, "all threads of the rank to go on")

    def passes(self) -> None:
        """It ends, and never found another number than it must."""
        (self.folder / "stop").touch()
        said, complaint = self.process.communicate(timeout=60 * SLOW)
        assert (self.process.returncode, said) == (0, "passed\n"), complaint

    def kill(self) -> None:
        """Whatever it does."""
        self.process.kill()
        self.process.communicate()


def test_a_rank_notices_nothing_when_its_proxy_is_exchanged(
    stack: Stack, program: Path, place: Path, tmp_path: Path
) -> None:
    """The threads of a C program go on with streams, graphs, events, device and page-locked memory, and find
    the numbers that they must, whether another proxy takes over or the old one goes on after all."""
    door = place / "door"
    door.mkdir(mode=0o700)
    proxies = [Proxy(stack, door, place / "exchange-0", resumes=False)]
    rank = Rank(stack, program, door, tmp_path)
    try:
        rank.goes_on()
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
            rank.goes_on()
        rank.passes()
        proxies.pop().end()
        assert list(door.iterdir()) == []
    finally:
        rank.kill()
        for proxy in proxies:
            proxy.process.kill()
            proxy.process.communicate()
            print(proxy.heard()[-8000:])


def copy_into(source: Path, target: Path) -> None:
    """The contents, and holes, into a file that a rank has mapped."""
    subprocess.run(["cp", "--sparse=always", "--no-preserve=all", str(source), str(target)], check=True)
    assert target.stat().st_size == source.stat().st_size


def test_a_rank_goes_on_with_what_a_checkpoint_holds(
    stack: Stack, program: Path, place: Path, tmp_path: Path
) -> None:
    """Its proxy is killed at the cut; what its threads find afterwards, on the device, in page-locked memory
    and in the ring, is what was stored: copied beforehand, or read from the proxy that stands still."""
    job = place / "job"
    door = job / "ordinal-0"
    door.mkdir(mode=0o700, parents=True)
    store = Store.open(place / "store")
    proxy = Proxy(stack, door, place / "exchange-0", resumes=False, boxed=True)
    rank = Rank(stack, program, door, tmp_path)
    try:
        for number in range(1, 5):
            rank.goes_on()
            proxy.stop_ranks()
            seen = rounds(tmp_path)
            rank.process.send_signal(signal.SIGSTOP)
            checkpoint = save(store, job, place / f"stage-{number}", copied=number % 2 == 0)
            proxy.end(signal.SIGKILL)
            restored = place / f"restored-{number}"
            restored.mkdir()
            with store.read(checkpoint) as reader:
                take_tree(reader, "sessions", restored)
                take_memory(reader, restored)
            (memory,) = restored.glob("ordinal-0/*.memory")
            memory.rename(door / memory.name)
            for path in (restored / "ordinal-0").iterdir():
                copy_into(path, door / path.name)
            before = proxy
            proxy = Proxy(stack, door, place / f"exchange-{number}", resumes=True, boxed=True)
            rank.process.send_signal(signal.SIGCONT)
            proxy.take_over(before)
            assert stands(tmp_path, seen)
            assert sorted(path.suffix for path in door.iterdir()) == ["", ".image", ".pinned", ".session"]
            for path in (door / "door", *door.glob("*.session")):
                assert path.stat().st_blocks * 512 >= path.stat().st_size, "a full /dev/shm would kill ranks"
            proxy.go_on()
        rank.goes_on()
        rank.passes()
        proxy.end()
        assert list(door.iterdir()) == []
    finally:
        rank.kill()
        proxy.process.kill()
        proxy.process.communicate()
        print(proxy.heard()[-8000:] if not proxy.said.closed else "")


def move_blocks(image: Path) -> None:
    """A proxy under ThreadSanitizer has its device elsewhere, which the installed code refuses, rightly.  Who
    goes on with a session does not look at the table of its blocks."""
    data = bytearray(image.read_bytes())
    head, table = struct.Struct("<56xQ336x"), struct.Struct("<QQ")
    for number in range(head.unpack_from(data)[0]):
        at = head.size + number * table.size
        address, size = table.unpack_from(data, at)
        table.pack_into(data, at, address - TSAN_DEVICE_BASE + int(lib.SG_DEVICE_BASE), size)
    image.write_bytes(data)


def save(store: Store, job: Path, stage: Path, *, copied: bool) -> str:
    """A checkpoint of a job's sessions; `copied`: by way of memory."""
    for image in job.glob("*/*.image") if SANITIZER == "thread" else ():
        move_blocks(image)
    stage_tree(job, stage)
    sessions = read_sessions(job)
    assert [session.bytes > 0 for session in sessions] == [True]
    with contextlib.closing(StagedMemory(stage.parent, 1 << 20)) as memory, store.write("job") as writer:
        put_tree(writer, "sessions", stage)
        if copied:
            memory.stage(sessions)
            memory.put(writer)
        else:
            put_memory(writer, sessions)
        return writer.commit().checkpoint


def test_another_device_than_the_job_knew_is_refused(stack: Stack, place: Path) -> None:
    """By what differs, before the proxy says that it is prepared; the door stays as it is."""
    door = place / "ordinal-0"
    door.mkdir(mode=0o700)
    old = Proxy(stack, door, place / "exchange-0", resumes=False, boxed=True)
    old.end(signal.SIGKILL)
    before = (door / "door").read_bytes()
    with pytest.raises(AssertionError, match=r"the job saw a device of \d+ bytes, this one has \d+"):
        Proxy(stack, door, place / "exchange-1", resumes=True, boxed=True, memory=ARENA)
    assert (door / "door").read_bytes() == before
