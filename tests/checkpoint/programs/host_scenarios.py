"""What is done with a job in a box of its own: run as first process of new namespaces; argv: scenario, place.

Each scenario raises unless all is as it must be.  When this process ends, the kernel ends all others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_box import CRIU, MEMORY, Box, Job, bring_back, leftovers, save, script, until

from singularity_core.checkpoint import DamagedCheckpointError, Store
from singularity_core.checkpoint.criu_trial import _raise_loopback
from singularity_core.checkpoint.host.cgroup import cgroup_of, free_cgroup_of
from singularity_core.checkpoint.host.errors import (
    DumpError,
    HoldError,
    NoRoomError,
    RefusedError,
    RestoreError,
    TreeGoneError,
)
from singularity_core.checkpoint.host.facts import Allowed
from singularity_core.checkpoint.host.guard import judge
from singularity_core.checkpoint.host.hold import Hold
from singularity_core.checkpoint.host.ingest import ingest
from singularity_core.checkpoint.host.keeper_link import KeeperLink, KeeperLostError
from singularity_core.checkpoint.host.process_tree import all_processes, tree_of
from singularity_core.checkpoint.host.restore import restore
from singularity_core.checkpoint.host.scan import scan


def lives_through_all(place: Path) -> None:
    """Dumps that leave it running, then end and restore, over and over, of the restored one too."""
    store, job = Store.open(place / "store"), Job(place)
    verdicts = judge(scan(job.pid))
    assert verdicts == [], verdicts
    checkpoint, first = "", 0
    for number, with_cgroup in enumerate((*job.modes, job.modes[0])):
        with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
            assert (held.why_not_still is None) == with_cgroup
            held.dump(CRIU)
            before = job.rounds()
            held.go_on()
            assert held.held_seconds is not None
            job.must_go_on()
            assert job.rounds()[: len(before)] == before
            checkpoint, new = save(store, held)
            first = first or new
            # Half of the pages stay: those that are kept, and all of the interpreter that nobody writes to.
            assert number == 0 or new < first / 2
        job.must_be_free()
    for with_cgroup in job.modes:
        with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
            held.dump(CRIU)
            checkpoint, _ = save(store, held)
            held.end()
        job.must_be_gone()
        rounds = job.rounds()
        bring_back(store, checkpoint, job)
        job.must_be_free()
        assert job.rounds()[: len(rounds)] == rounds
    assert store.verify() == []
    # All pids are taken: the restore of a second one is refused, and the first lives.
    with pytest.raises(RestoreError) as caught:
        bring_back(store, checkpoint, job)
    assert "the number of one of its processes is taken" in caught.value.cause, caught.value
    job.must_be_free()
    refuses_damage(store, checkpoint, job)


def refuses_damage(store: Store, checkpoint: str, job: Job) -> None:
    """Of a checkpoint that lost something nothing is restored."""
    with Hold(job.pid, place=MEMORY) as held:
        held.dump(CRIU)
        held.end()
    job.must_be_gone()
    with store.read(checkpoint) as reader:
        packs = next(it for it in reader.manifest.objects if it.name == "host/packs")
    path = Path(store.place) / packs.chunks[-1].key
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(DamagedCheckpointError) as caught:
        bring_back(store, checkpoint, job)
    assert caught.value.damage.key == packs.chunks[-1].key
    assert leftovers() == []
    assert list(filter(str.isdigit, os.listdir("/proc"))) == [str(os.getpid())]
    path.write_bytes(data)
    bring_back(store, checkpoint, job)
    os.kill(job.pid, signal.SIGKILL)


class Deadly:
    """Wraps something whose calls by these names are steps; before the n-th one this process is killed."""

    def __init__(self, real: Any, names: tuple[str, ...], steps: list[int]) -> None:
        self._real, self._names, self._steps = real, names, steps

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            self.step()
        return getattr(self._real, name)

    def step(self) -> None:
        """One more."""
        self._steps[0] -= 1
        if self._steps[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def dump_deadly(job: Job, place: Path, with_cgroup: bool, then: str, deadly: int) -> None:
    """Checkpoints a job and is killed before the n-th word from or to the keeper, or step of the store."""
    steps = [deadly]
    receive = KeeperLink._receive

    def receive_deadly(link: Any, kind: Any) -> Any:
        if not isinstance(link._socket, Deadly):
            link._socket = Deadly(link._socket, ("send", "recv"), steps)
        return receive(link, kind)

    KeeperLink._receive = receive_deadly  # type: ignore[method-assign]
    store = Store.open(place / "store", threads=0)
    with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
        held.dump(CRIU)
        if then == "go on":
            held.go_on()
        with store.write("job") as writer:
            writer_steps = Deadly(writer, ("add_pieces", "commit"), steps)
            ingest(writer_steps, held.images)  # type: ignore[arg-type]
            writer_steps.commit()
            writer_steps.step()
        if then == "end":
            held.end()


def kill_dumper(job: Job, place: Path, with_cgroup: bool, then: str, deadly: int) -> bool:
    """Whether it came through, because there were fewer steps."""
    dumper = os.fork()
    if dumper == 0:
        try:
            dump_deadly(job, place, with_cgroup, then, deadly)
            os._exit(0)
        finally:
            os._exit(1)
    exitcode = os.waitstatus_to_exitcode(os.waitpid(dumper, 0)[1])
    assert exitcode in (0, -signal.SIGKILL), exitcode
    # The keeper, and CRIU if it runs, have lost their parent; when all such are gone, what they do is done.
    until(lambda: children_but(job) == [], f"the keeper's end after step {deadly}")
    return exitcode == 0


def children_but(job: Job) -> list[int]:
    """Other children of this process that live."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == job.pid:
                break
            os.waitpid(ended.si_pid, 0)
    mine = [it for it in all_processes().values() if it.parent == os.getpid() and not it.has_ended]
    return [it.pid for it in mine if it.pid != job.pid]


PIDFD_GETFD = 438
WORDS, STORE_STEPS = 9, 3
"""Ready, freeze, held, dump, started, begin, ended, finish, done; and add, commit, committed."""


def outlives_its_dumper(place: Path) -> None:
    """Wherever the dumper is killed, the job goes on, free, and the store is whole."""
    job, store = Job(place, "small"), Store.open(place / "store")
    for with_cgroup in job.modes:
        for deadly in range(1, WORDS + STORE_STEPS + 1):
            before = len(store.checkpoints())
            assert not kill_dumper(job, place, with_cgroup, "go on", deadly)
            job.must_be_free()
            assert store.verify() == []
            assert len(store.checkpoints()) - before == (deadly == WORDS + STORE_STEPS), deadly
    assert kill_dumper(job, place, job.modes[0], "go on", WORDS + STORE_STEPS + 1)
    job.must_be_free()


def is_ended_only_when_it_is_saved(place: Path) -> None:
    """Wherever the dumper is killed that is to end it: the job goes on, or its checkpoint is committed."""
    job, store = Job(place, "small"), Store.open(place / "store")
    saved = WORDS - 2 + STORE_STEPS
    for deadly in (saved - 2, saved - 1, saved, saved + 1):
        assert not kill_dumper(job, place, job.modes[0], "end", deadly)
        assert len(store.checkpoints()) == max(deadly - saved + 1, 0)
        job.must_be_free()
    kill_dumper(job, place, job.modes[0], "end", saved + 2)  # the word to end it was sent
    job.must_be_gone()
    bring_back(store, store.checkpoints()[0].checkpoint, job)
    job.must_be_free()


def outlives_its_keeper(place: Path) -> None:
    """Whenever the keeper is killed, its owner says so, and the job goes on, free."""
    job = Job(place, "small")
    murderer = script(place, 'kill -9 $PPID; exec $CRIU "$@"')
    for with_cgroup in job.modes:
        for when in ("held", "dumping", "dumped"):
            with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
                keeper = held._keeper._process
                with pytest.raises(KeeperLostError) as caught:  # noqa: PT012
                    if when == "held":
                        os.kill(keeper.pid, signal.SIGKILL)
                    held.dump(murderer if when == "dumping" else CRIU)
                    os.kill(keeper.pid, signal.SIGKILL)
                    held.go_on()
                assert "the job goes on" in caught.value.cause, caught.value
                job.must_go_on()
            job.must_be_free()


def outlives_both(place: Path) -> None:
    """With owner and keeper killed, a tree in a cgroup is freed by the next hold, any other at once."""
    job = Job(place, "small")
    for with_cgroup in job.modes:
        read, write = os.pipe()
        owner = os.fork()
        if owner == 0:
            with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
                held.dump(CRIU)
                held._keeper._process.kill()
                held._keeper._process.wait()
                os.write(write, b"dumped")
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(write)
        os.waitpid(owner, 0)
        assert os.read(read, 6) == b"dumped"
        os.close(read)
        if with_cgroup:
            held_in = cgroup_of(job.pid)
            assert "frozen 1" in (held_in / "cgroup.events").read_text().splitlines()
            assert free_cgroup_of(job.pid) == job.cgroup
        job.must_go_on()
        with Hold(job.pid, place=MEMORY):
            if job.cgroup is not None:
                with pytest.raises(HoldError) as caught:
                    Hold(job.pid, place=MEMORY)
                assert "being held" in caught.value.cause, caught.value
        job.must_be_free()


def outlives_criu(place: Path) -> None:
    """Whatever CRIU does instead of dumping, the job goes on, and the error says what it was."""
    job = Job(place, "small")
    for with_cgroup in job.modes:
        for lines, cause in (
            ("kill -9 $$", "was killed by signal 9"),
            ("sleep 1000", "did not end within 0.5 s and was killed"),
            ("cd /dev/shm/sing* && echo '(00.1) Error (x.c:1): No space left on device' > dump.log; exit 3",
             "there is no room left for its images. CRIU ended with 3. CRIU says: Error (x.c:1)"),
            ("echo unheard-of; exit 1", "cannot be dumped. CRIU ended with 1 (unheard-of)"),
        ):  # fmt: skip
            with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
                with pytest.raises(DumpError) as caught:
                    held.dump(script(place, lines), seconds=0.5)
                assert cause in caught.value.cause, caught.value
            job.must_be_free()
        with Hold(job.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
            with pytest.raises(HoldError) as caught:
                held.dump(place / "nowhere")
            assert "nowhere" in caught.value.cause, caught.value
        job.must_be_free()
    with Hold(job.pid, place=MEMORY, with_cgroup=False) as held:
        held.dump(CRIU)
        assert held._keeper.criu_pid is not None
        os.kill(held._keeper.criu_pid, signal.SIGKILL)
        job.must_go_on()
    job.must_be_free()


def leaves_nothing_of_a_failed_restore(place: Path) -> None:
    """However a restore fails: the error says why, no process or image is left, the next one works."""
    job, store = Job(place, "small"), Store.open(place / "store")
    with Hold(job.pid, place=MEMORY) as held:
        held.dump(CRIU)
        checkpoint, _ = save(store, held)
        held.end()
    job.must_be_gone()
    log_bytes = job.log.stat().st_size
    for lines, cause in (
        ("kill -9 $$", "was killed by signal 9"),
        ("setsid sleep 1000 & sleep 1000", "did not end within 2 s"),
        ('$CRIU "$@"; exit 7', "CRIU ended with 7"),
        ('kill -9 $PPID; $CRIU "$@"', "watched over the restore was killed"),
    ):
        with store.read(checkpoint) as reader:
            with pytest.raises(RestoreError) as caught:
                restore(reader, place=MEMORY, criu=script(place, lines), seconds=2)
            assert cause in caught.value.cause, caught.value
        job.must_be_gone()
        assert leftovers() == []
    if (owner := os.fork()) == 0:
        owner_kill = script(place, f'kill -9 {os.getpid()}; $CRIU "$@"')
        with store.read(checkpoint) as reader:
            restore(reader, place=MEMORY, criu=owner_kill)
    assert os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1]) == -signal.SIGKILL
    job.must_be_gone()
    assert leftovers() == []
    constants = (place / "constants").read_bytes()
    (place / "constants").write_bytes(constants[1:])
    with pytest.raises(RestoreError) as caught:
        bring_back(store, checkpoint, job)
    assert f"{str(place)[1:]}/constants is not what it was (its size differs)" in str(caught.value)
    assert "Put that file back" in caught.value.remedy
    job.must_be_gone()
    (place / "constants").write_bytes(constants)
    os.truncate(job.log, log_bytes)  # some of these ran for a moment before they were ended
    bring_back(store, checkpoint, job)
    job.must_be_free()


def speaks_through_a_pipe(place: Path) -> None:
    """A pipe to somebody else is refused unless allowed; at restore another is given in its place."""
    read, write = os.pipe()
    job, store = Job(place, "small", output=write), Store.open(place / "store")
    pipe = os.fstat(write).st_ino
    os.close(write)
    facts = scan(job.pid)
    verdicts = judge(facts)
    assert [(it.pid, it.what.split(" is ")[0]) for it in verdicts] == [
        (process.pid, f"descriptor {number} (pipe:[{pipe}])")
        for process in facts.processes
        for number in (1, 2)
    ]
    allowed = Allowed(pipes=frozenset({pipe}))
    assert judge(facts, allowed) == []
    with Hold(job.pid, place=MEMORY) as held, pytest.raises(RefusedError) as refused:
        held.dump(CRIU)
    assert f"(pipe:[{pipe}]) is a pipe that process {os.getpid()}" in refused.value.cause, refused.value
    job.must_be_free()
    with Hold(job.pid, place=MEMORY, allowed=allowed) as held:
        held.dump(CRIU)
        checkpoint, _ = save(store, held)
        held.end()
    job.must_be_gone()
    with open(read) as stream:
        said = stream.read().split()
    read, write = os.pipe()
    with store.read(checkpoint) as reader:
        restore(reader, place=MEMORY, criu=CRIU, inherit={f"pipe:[{pipe}]": write})
    os.close(write)
    job.must_be_free()
    os.kill(job.pid, signal.SIGKILL)
    job.must_be_gone()
    with open(read) as stream:
        said += stream.read().split()
    rounds = job.rounds()
    assert said[: len(rounds)] == rounds


def moves_to_another_box(place: Path) -> None:
    """Dumped from outside of its namespaces, a job is restored in others, under the pids that it had."""
    store, old = Store.open(place / "store"), Box(last_pid=1000)
    job = Job(place, "small", enter=old.enter)
    assert judge(scan(job.pid)) == []
    with Hold(job.pid, place=MEMORY) as held:
        held.dump(CRIU, enter=old.enter)
        checkpoint, _ = save(store, held)
        held.end()
    old.end()
    job.must_be_gone()
    new = Box()
    rounds = job.rounds()
    with store.read(checkpoint) as reader:
        restored = restore(reader, place=MEMORY, criu=CRIU, enter=new.enter)
    job.pid = new.pid_outside(restored.pid)
    job.must_be_free()
    assert job.rounds()[: len(rounds)] == rounds
    new.end()
    job.must_be_gone()


def refuses_what_moved(place: Path) -> None:
    """A dump during which data arrived on a connection of the job is none."""
    job = Job(place)
    if job.cgroup is None:
        return  # what has arrived before CRIU stops the tree is not known
    facts = scan(job.pid)
    inode = next(it.inode for each in facts.connections.values() for it in each if it.state == "ESTABLISHED")
    holder, number = next(
        (process.pid, each.number)
        for process in facts.processes
        for each in process.descriptors
        if each.target == f"socket:[{inode}]"
    )
    lines = f"""import ctypes, fcntl, os, socket, struct, termios
process = os.pidfd_open({holder})
end = socket.socket(fileno=ctypes.CDLL(None).syscall({PIDFD_GETFD}, process, {number}, 0))
end.send(b"x")
while struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)))[0]:
    pass  # until it has arrived
"""
    (place / "send.py").write_text(lines)
    sender = script(place, f"{sys.executable} {place / 'send.py'}")
    with Hold(job.pid, place=MEMORY) as held:
        with pytest.raises(DumpError) as caught:
            held.dump(sender)
        assert "Data arrived on a TCP connection" in caught.value.cause, caught.value
        with pytest.raises(ValueError, match="Only a tree that was dumped"):
            held.end()
    assert leftovers() == []


RENAMED = """
import mmap, os, struct, time
for name in ("one", "other"):
    file = os.open(f"/dev/shm/first-{name}", os.O_CREAT | os.O_RDWR, 0o600)
    os.truncate(file, mmap.PAGESIZE)
    os.link(f"/dev/shm/first-{name}", f"/dev/shm/{name}")
    os.unlink(f"/dev/shm/first-{name}")
    memory = mmap.mmap(file, mmap.PAGESIZE) if name == "one" else memory
    os.close(file) if name == "one" else None
number = 0
while True:
    number += 1
    struct.pack_into("Q", memory, 0, number)
    os.pwrite(file, struct.pack("Q", number), 0)
    time.sleep(0.01)
"""


def keeps_other_names(place: Path) -> None:
    """A file, open or mapped, that lost the name it was opened by and has another is the same after a
    restore, if the names in its directory are copied before the hold is over."""
    names = [MEMORY / name for name in ("one", "other")]
    store = Store.open(place / "store")
    for with_cgroup in Job(place, "small").modes:
        command = [sys.executable, "-I", "-c", RENAMED]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, cwd="/", start_new_session=True)  # fmt: skip
        until(lambda: all(count_in(name) > 3 for name in names), "a count")
        with Hold(process.pid, place=MEMORY, with_cgroup=with_cgroup) as held:
            held.dump(CRIU)
            seen = [it for it in MEMORY.iterdir() if it.is_file()]
            copies = [(it, it.read_bytes(), it.stat().st_ino) for it in seen]
            held.go_on()
            checkpoint, _ = save(store, held)
        until(lambda copies=copies: count_in(names[0]) > number_in(copies[0][1]) + 100, "more")
        process.kill()
        process.wait()
        for name in names:
            name.unlink()
        assert not [it for it in MEMORY.iterdir() if it.is_file()]
        first: dict[int, Path] = {}
        for path, contents, inode in copies:
            if inode in first:
                os.link(first[inode], path)
            else:
                first[inode] = path
                path.write_bytes(contents)
                path.chmod(0o600)  # CRIU compares it
        with store.read(checkpoint) as reader:
            pid = restore(reader, place=MEMORY, criu=CRIU).pid
        until(lambda: all(count_in(name) > 100 for name in names), "more after the restore")
        assert sorted(it.name for it in MEMORY.iterdir() if it.is_file()) == ["one", "other"]
        os.kill(pid, signal.SIGKILL)
        for name in names:
            name.unlink()


def number_in(contents: bytes) -> int:
    """What the process wrote there."""
    return int.from_bytes(contents[:8], sys.byteorder)


def count_in(name: Path) -> int:
    """The same, of a file; 0: it is not there yet."""
    return number_in(name.read_bytes()) if name.exists() else 0


def needs_room(place: Path) -> None:
    """Without memory-backed room a dump is refused before anything is stopped."""
    job = Job(place, "small")
    small = place / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    for where, cause in ((small, "has 1 MiB of room; the images take about"), (place, "would stand still")):
        with pytest.raises(NoRoomError) as caught:
            Hold(job.pid, place=where)
        assert cause in caught.value.cause, caught.value
    job.must_be_free()
    with pytest.raises(TreeGoneError) as caught:
        Hold(2**22 - 1, place=MEMORY)
    assert "has ended" in caught.value.cause, caught.value
    assert len(tree_of(job.pid)) == 2


SCENARIOS: dict[str, Callable[[Path], None]] = {
    "lives": lives_through_all,
    "dumper": outlives_its_dumper,
    "ended": is_ended_only_when_it_is_saved,
    "keeper": outlives_its_keeper,
    "both": outlives_both,
    "criu": outlives_criu,
    "restore": leaves_nothing_of_a_failed_restore,
    "box": moves_to_another_box,
    "pipe": speaks_through_a_pipe,
    "moved": refuses_what_moved,
    "names": keeps_other_names,
    "room": needs_room,
}


def main() -> None:
    """Run one."""
    _raise_loopback()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(MEMORY)], check=True)
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
    print("as it must be")


if __name__ == "__main__":
    main()
