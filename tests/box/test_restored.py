"""What a restore needs of a box: CRIU runs in it, and what it restores elsewhere is adopted."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import pytest

from singularity_core.box.messages import Share
from singularity_core.box.remote import Box, BoxedProcess
from singularity_core.checkpoint.criu import CriuFound, CriuUnavailableError, find_criu

from .conftest import MakeBox

RANK = """
import os, pathlib, socket, sys, time
place, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("198.18.0.1", 7000 + number))
begun, pid = time.monotonic(), os.getpid()
print("begun", flush=True)
while not (place / "go").exists():
    time.sleep(0.01)
    assert time.monotonic() >= begun
    begun = time.monotonic()
assert os.getpid() == pid
print("ends", listener.getsockname()[1], flush=True)
os._exit(3 + number)
"""


@pytest.fixture(scope="module")
def criu() -> CriuFound:
    """Skips without one."""
    try:
        return find_criu()
    except CriuUnavailableError as error:
        pytest.skip(f"no CRIU here: {error}")


def wait_until_ended(box: Box, process: BoxedProcess) -> int | None:
    deadline = time.monotonic() + 60
    while process.returncode() is None:
        ready, _, _ = select.select([box], [], [], deadline - time.monotonic())
        assert ready, "nothing is told of it"
        if not box.look():
            box.lost()
    return process.returncode()


class Generation:
    """A box with two ranks, at /dev/shm/... inside, and in a directory of its own outside."""

    def __init__(self, make_box: MakeBox, criu: CriuFound, folder: Path, number: int) -> None:
        self.criu, self.folder, self.number = criu, folder, number
        self.inside = Path(f"/dev/shm/singularity-test-{folder.name}")
        self.place = folder / f"place-{number}"
        self.images = folder / f"images-{number}"
        self.place.mkdir()
        self.images.mkdir()
        share = Share(os.fsencode(self.place), os.fsencode(self.inside))
        self.box = make_box(directory=self.inside, shared=[share], restored=number > 0)
        self.ranks: list[BoxedProcess] = []

    def begin(self) -> None:
        (self.folder / "rank.py").write_text(RANK)
        for rank in range(2):
            log = str(self.inside / f"{rank}.log")
            command = [sys.executable, "rank.py", str(self.inside), str(rank)]
            self.ranks.append(self.box.start(command, dict(os.environ), log, log))
        self.box.seal()
        self.wait_for("begun")

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + 60
        while not all(word in (self.place / f"{rank}.log").read_text() for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def dump(self) -> None:
        """To the box's end; what was written goes to the next one."""
        self._tool("dump", "-t", str(self.box.keeper_inside), "--leave-stopped")
        self.box.end()

    def restore(self, dumped: Generation, *, ended: bool = False) -> None:
        """`ended`: adopts them only when they have ended."""
        for path in dumped.place.glob("*.log"):
            path.rename(self.place / path.name)
        dumped.images.rename(self.images / "images")
        self._tool("restore", "--restore-detached", images=self.images / "images")
        if ended:
            self.wait_for("ends")
        self.ranks = [self.box.adopt_rank(rank.pid_inside) for rank in dumped.ranks]
        self.box.adopt_keeper(dumped.box.keeper_inside)

    def let_go(self) -> None:
        (self.place / "go").touch()

    def end(self) -> list[int | None]:
        return [wait_until_ended(self.box, rank) for rank in self.ranks]

    def _tool(self, *arguments: str, images: Path | None = None) -> None:
        log = self.images / f"{arguments[0]}.log"
        options = ["-D", str(images or self.images), "-v4", "-o", str(log), "--network-lock", "skip"]
        command = [str(self.criu.command), *arguments, *options]
        tool = self.box.run_tool(command, dict(os.environ), str(log.with_suffix(".said")))
        assert wait_until_ended(self.box, tool) == 0, log.read_text()[-3000:]


@pytest.mark.parametrize("ended", [False, True])
def test_a_dumped_tree_goes_on_in_another_box(
    make_box: MakeBox, criu: CriuFound, tmp_path: Path, ended: bool
) -> None:
    """All ranks are dumped as one tree, without the box's first process.  In a box with another directory
    in the place of the old they go on, also a second time: with the same pids, ports and log files, and with
    clocks that do not go back; and it is told how they end, also when they did before they were adopted."""
    first, second, third = (Generation(make_box, criu, tmp_path, number) for number in range(3))
    first.begin()
    first.dump()
    second.restore(first)
    second.dump()
    if ended:
        third.let_go()
    third.restore(second, ended=ended)
    third.let_go()
    assert third.end() == [3, 4]
    for rank in range(2):
        assert (third.place / f"{rank}.log").read_text() == f"begun\nends {7000 + rank}\n"


def test_tools(make_box: MakeBox) -> None:
    """It is told how a tool ends; one that does not exist, and a keeper that was not restored, are errors."""
    box = make_box(restored=True)
    with pytest.raises(ProcessLookupError):
        box.adopt_keeper(4321)
    with pytest.raises(FileNotFoundError):
        box.run_tool(["/no/such/tool"], {}, os.devnull)
    assert wait_until_ended(box, box.run_tool(["sh", "-c", "exit 5"], dict(os.environ), os.devnull)) == 5
